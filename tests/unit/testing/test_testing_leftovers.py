"""What is left open is found, and only that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from rlx.testing import make_mesh, run_on_mesh
from rlx.testing.laws import LAWS, nothing_left_open


@pytest.mark.parametrize("kind", ["memory", "tcp", "sockets"])
@pytest.mark.parametrize("text", LAWS)
def test_no_law_leaves_anything_open(text, kind):
    with nothing_left_open():
        run_on_mesh(make_mesh(kind, 3), LAWS[text].body)


def test_a_transport_that_is_not_closed_is_found():
    close_all(make_mesh("tcp", 2))  # what is made once for a process is made by now
    left = []
    found = finding_of(lambda: left.extend(make_mesh("tcp", 2)))
    assert found.count("(socket:") >= 4, "two ranks have an end each of a data and a control link"
    assert "thread rlx-" in found
    close_all(left)


def test_a_socket_a_thread_and_a_process_are_found():
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="forgotten")
    held: list = []

    def leave():
        thread.start()
        held.append(socket.create_server(("127.0.0.1", 0)))
        held.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

    found = finding_of(leave)
    server, process = held
    for fact in ("thread forgotten", "(socket:", f"process {process.pid}"):
        assert fact in found
    release.set()
    thread.join()
    server.close()
    process.communicate(b"\n", timeout=20)


def test_what_was_open_before_or_is_closed_soon_is_no_finding():
    before = os.open(os.devnull, os.O_RDONLY)
    with nothing_left_open():
        late = os.open(os.devnull, os.O_RDONLY)
        threading.Timer(0.2, os.close, (late,)).start()
    os.close(before)


def test_an_error_of_the_inside_is_not_hidden_by_a_finding():
    left: list[int] = []

    def leave_and_fail():
        left.append(os.open(os.devnull, os.O_RDONLY))
        raise ValueError("the inside")

    with pytest.raises(ValueError, match="the inside"):
        checked(leave_and_fail)
    os.close(left[0])


def checked(action):
    with nothing_left_open(grace_s=0.1):
        action()


def finding_of(action):
    with pytest.raises(AssertionError, match="left open") as caught:
        checked(action)
    return str(caught.value)


def close_all(transports):
    for one in transports:
        one.close()
