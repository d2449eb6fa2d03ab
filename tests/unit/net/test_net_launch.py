"""Which rank a process is, read from the environments that launchers really set."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.errors import ConfigError
from rlx.net import Place, find_place, parse_address

BY_HAND = {"RLX_RANK": "1", "RLX_WORLD_SIZE": "3", "RLX_COORDINATOR": "10.0.0.7:29400"}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def refusal_of(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        find_place(environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_process_that_nobody_launched_has_no_place():
    assert find_place({}) is None
    assert find_place({"HOME": "/root", "PATH": "/usr/bin"}) is None


# By hand, and by rlx itself.


def test_a_rank_started_by_hand_is_found():
    assert find_place(BY_HAND) == Place(1, 3, "rlx", ("10.0.0.7", 29400))


def test_the_token_file_is_named_and_not_read():
    place = find_place({**BY_HAND, "RLX_TOKEN_FILE": "/nowhere/token"})
    assert place is not None
    assert place.token_file == "/nowhere/token"


@pytest.mark.parametrize("missing", sorted(BY_HAND))
def test_the_missing_variable_of_a_partial_set_is_named(missing):
    assert f" but {missing} is not;" in refusal_of(without(BY_HAND, missing))


@pytest.mark.parametrize("present", sorted(BY_HAND))
def test_one_variable_alone_is_refused_with_the_other_two(present):
    message = refusal_of({present: BY_HAND[present]})
    assert message.startswith(f"{present} is set but ")
    first, second = (name for name in BY_HAND if name != present)
    assert f"{first} and {second} are not;" in message


def test_a_variable_set_to_nothing_counts_as_not_set():
    assert find_place(dict.fromkeys(BY_HAND, "")) is None
    assert "RLX_WORLD_SIZE is not" in refusal_of({**BY_HAND, "RLX_WORLD_SIZE": ""})


@pytest.mark.parametrize("name", ["RLX_RANK", "RLX_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["x", "-1", "1.0", " 1", "+1", "1_0", "٣", "0x1", "1" * 5000])
def test_a_value_that_is_no_integer_is_named_with_its_variable(name, value):
    message = refusal_of({**BY_HAND, name: value})
    assert message.startswith(f"{name}=")
    assert repr(value)[:20] in message
    assert len(message) < 200


@pytest.mark.parametrize("rank", ["3", "4", "1000000"])
def test_a_rank_outside_the_world_is_refused_with_both_values(rank):
    message = refusal_of({**BY_HAND, "RLX_RANK": rank})
    assert f"RLX_RANK={rank} " in message
    assert "RLX_WORLD_SIZE=3" in message


def test_the_last_rank_is_inside_the_world():
    place = find_place({**BY_HAND, "RLX_RANK": "2"})
    assert place is not None
    assert place.rank == 2


def test_an_empty_world_is_refused():
    assert refusal_of({**BY_HAND, "RLX_WORLD_SIZE": "0"}).startswith("RLX_WORLD_SIZE=0:")


def test_a_coordinator_that_is_no_address_is_named_with_its_variable():
    message = refusal_of({**BY_HAND, "RLX_COORDINATOR": "head"})
    assert message == "RLX_COORDINATOR='head': expected host:port"


def test_several_ranks_cannot_meet_at_any_free_port_but_one_alone_can():
    somewhere = {**BY_HAND, "RLX_COORDINATOR": "127.0.0.1:0"}
    assert "RLX_COORDINATOR='127.0.0.1:0'" in refusal_of(somewhere)
    alone = find_place({**somewhere, "RLX_RANK": "0", "RLX_WORLD_SIZE": "1"})
    assert alone == Place(0, 1, "rlx", ("127.0.0.1", 0))


# mpirun and mpiexec.


@pytest.mark.parametrize(
    ("launcher", "environ"),
    [
        ("openmpi", {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}),
        ("pmi", {"PMI_RANK": "2", "PMI_SIZE": "4"}),
    ],
)
def test_an_mpi_launcher_is_known_by_a_complete_pair(launcher, environ):
    assert find_place(environ) == Place(2, 4, launcher)
    for name in environ:
        assert find_place(without(environ, name)) is None
        assert refusal_of({**environ, name: "many"}).startswith(f"{name}='many'")


def test_the_local_rank_is_the_launchers():
    openmpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    place = find_place({**openmpi, "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert place is not None
    assert place.local_rank == 1


def test_a_launcher_without_a_meeting_point_takes_the_one_given_by_hand():
    environ = {"PMI_RANK": "2", "PMI_SIZE": "4", "RLX_COORDINATOR": "[fe80::1%eth0]:5"}
    place = find_place({**environ, "RLX_TOKEN_FILE": "token"})
    assert place == Place(2, 4, "pmi", ("fe80::1%eth0", 5), "token")


def test_ranks_started_by_hand_inside_mpirun_are_those_of_the_hand():
    place = find_place({"PMI_RANK": "0", "PMI_SIZE": "2", **BY_HAND})
    assert place == Place(1, 3, "rlx", ("10.0.0.7", 29400))


def test_the_real_mpirun_gives_each_rank_its_place():
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("there is no mpirun")
    if b"Open MPI" not in subprocess.run([mpirun, "--version"], capture_output=True).stdout:
        pytest.skip("this mpirun is not Open MPI's")
    body = (
        "import dataclasses, json, os; from rlx.net import find_place;"
        "print(json.dumps(dataclasses.asdict(find_place(os.environ))), flush=True)"
    )
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    result = subprocess.run(
        [mpirun, "--oversubscribe", "-n", "2", sys.executable, "-c", body],
        env={**os.environ, **root},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    found = [json.loads(text) for text in re.findall(r"\{[^}]*\}", result.stdout)]
    found.sort(key=lambda place: place["rank"])
    assert [place["rank"] for place in found] == [0, 1]
    assert [place["local_rank"] for place in found] == [0, 1]
    assert {(place["world_size"], place["launcher"]) for place in found} == {(2, "openmpi")}


# Addresses.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node-1.cluster_a:29400", ("node-1.cluster_a", 29400)),
        ("127.0.0.2:0", ("127.0.0.2", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_an_address_is_taken_as_written(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "host:port"),
        ("host", "host:port"),
        ("29400", "host:port"),
        (":29400", "host:port"),
        ("::1:29400", "brackets"),
        ("[::1]", "brackets"),
        ("[::1:29400", "brackets"),
        ("[host]:1", "brackets"),
        ("[127.0.0.1]:1", "brackets"),
        ("[]:1", "brackets"),
        ("tcp://host:1", "brackets"),
        ("user@host:1", "host is a name or an IP address"),
        ("a host:1", "host is a name or an IP address"),
        ("host:", "0 to 65535"),
        ("host:http", "0 to 65535"),
        ("host:65536", "0 to 65535"),
        ("host:-1", "0 to 65535"),
        ("host: 1", "0 to 65535"),
    ],
)
def test_what_is_no_address_is_refused_with_what_was_expected(text, hint):
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert str(caught.value).startswith(f"address={text!r}: ")
    assert hint in str(caught.value)
