"""What ranks print comes out whole, marked and complete, however they write it."""

from __future__ import annotations

import os
import threading
import time

import pytest

from rlx.job.relay import LINE_LIMIT_BYTES, Relay, Sink

HEADER = b"Traceback (most recent call last):\n"
FRAMES = b'  File "model.py", line 3, in loss\n    return 1 / 0\n           ~~^~~\n'


class Ranks:
    """Pipes that stand for ranks, and what the relay makes of them."""

    def __init__(self, count: int, **options: bool) -> None:
        reading, writing = os.pipe()
        self.sink = Sink(writing, **options)
        self._target = writing
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()
        self.relay = Relay()
        self.pipes = [self.pipe(f"[rank {rank}] ") for rank in range(count)]

    def pipe(self, mark: str, *, is_kept: bool = False) -> int:
        reading, writing = os.pipe()
        self.relay.add(reading, mark, self.sink, is_kept=is_kept)
        return writing

    def write(self, rank: int, data: bytes) -> None:
        while data:
            data = data[os.write(self.pipes[rank], data) :]

    def shown(self) -> bytes:
        return bytes(self._shown)

    def shown_when(self, part: bytes, seconds: float = 20) -> bytes:
        end = time.monotonic() + seconds
        while part not in self._shown and time.monotonic() < end:
            time.sleep(0.01)
        return bytes(self._shown)

    def ended(self) -> bytes:
        """End all ranks; everything that was shown."""
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = []
        assert self.relay.finish(20)
        os.close(self._target)
        self._reader.join(20)
        return bytes(self._shown)

    def _read(self, fd: int) -> None:
        while data := os.read(fd, 1 << 20):
            self._shown += data
        os.close(fd)


def test_lines_of_ranks_that_write_at_once_stay_whole_and_have_one_mark():
    ranks = Ranks(4)

    def rank(number: int) -> None:
        letter = b"abcd"[number : number + 1]
        for line in range(1000):
            whole = b"%04d" % line + letter * 196 + b"\n"
            # In pieces that end anywhere but at the end of a line.
            ranks.write(number, whole[:70])
            ranks.write(number, whole[70:])

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = ranks.ended().splitlines()
    assert len(lines) == 4000
    for number, letter in enumerate(b"abcd"):
        own = [line for line in lines if line.startswith(b"[rank %d] " % number)]
        assert own == [
            b"[rank %d] %04d" % (number, line) + bytes([letter]) * 196 for line in range(1000)
        ]


def test_a_line_without_an_end_is_shown_when_its_rank_ends():
    ranks = Ranks(2)
    ranks.write(0, b"half a li")
    ranks.write(1, b"whole\n")
    assert ranks.shown_when(b"whole") == b"[rank 1] whole\n"
    assert ranks.ended() == b"[rank 1] whole\n[rank 0] half a li\n"


def test_an_empty_line_is_marked_too_and_nothing_makes_no_line():
    ranks = Ranks(2)
    ranks.write(0, b"\n")
    assert ranks.ended() == b"[rank 0] \n"


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 300_000])
def test_a_line_longer_than_a_pipe_is_whole(size):
    ranks = Ranks(1)
    ranks.write(0, b"x" * size + b"\nnext\n")
    assert ranks.ended() == b"[rank 0] " + b"x" * size + b"\n[rank 0] next\n"


def test_a_line_beyond_the_limit_is_cut_and_nothing_of_it_lost():
    ranks = Ranks(1)
    content = os.urandom(3 * LINE_LIMIT_BYTES // 2).hex().encode()
    ranks.write(0, content)
    lines = ranks.ended().splitlines()
    assert len(lines) > 1
    assert b"".join(line.removeprefix(b"[rank 0] ") for line in lines) == content
    assert max(map(len, lines)) <= LINE_LIMIT_BYTES + (1 << 16) + 9


def test_bytes_that_are_not_utf_8_pass_unchanged():
    ranks = Ranks(1)
    ranks.write(0, b"\xff\xfe\x00 \xc3\n")
    assert ranks.ended() == b"[rank 0] \xff\xfe\x00 \xc3\n"


def test_a_traceback_written_with_pauses_is_not_cut_by_other_ranks():
    ranks = Ranks(2)
    for piece in (HEADER, FRAMES):
        ranks.write(0, piece)
        time.sleep(0.4)  # longer than any other lines would wait
        ranks.write(1, b"between\n")
    ranks.write(0, b"ZeroDivisionError: division by zero\n")
    shown = ranks.ended()
    whole = HEADER + FRAMES + b"ZeroDivisionError: division by zero\n"
    assert b"".join(b"[rank 0] " + line + b"\n" for line in whole.splitlines()) in shown
    assert shown.count(b"[rank 1] between\n") == 2


def test_lines_that_are_no_traceback_do_not_wait_for_more():
    ranks = Ranks(1)
    ranks.write(0, b"before\n" + HEADER + FRAMES)
    assert ranks.shown_when(b"before") == b"[rank 0] before\n"
    # A traceback that never ends is shown after a while all the same.
    assert b"return 1 / 0" in ranks.shown_when(b"return 1 / 0")
    ranks.ended()


def test_a_rank_that_never_pauses_is_shown_all_the_time():
    ranks = Ranks(1)
    end = time.monotonic() + 20
    while not ranks.shown() and time.monotonic() < end:
        ranks.write(0, b"still here\n")
        time.sleep(0.01)
    assert ranks.shown()
    ranks.ended()


def test_what_is_kept_comes_last_and_unmarked_whoever_was_first():
    ranks = Ranks(1)
    ranks.pipes.append(ranks.pipe("", is_kept=True))
    ranks.write(1, b'{"result": 1}\n')
    time.sleep(0.2)
    ranks.write(0, b"said later\n")
    assert ranks.ended() == b'[rank 0] said later\n{"result": 1}\n'


def test_a_child_that_keeps_writing_after_its_rank_does_not_hold_up_the_end():
    ranks = Ranks(1)
    is_over = threading.Event()
    flooding = os.dup(ranks.pipes[0])

    def flood() -> None:
        while not is_over.is_set():
            try:
                os.write(flooding, b"and on and on\n" * 100)
            except BrokenPipeError:
                return

    child = threading.Thread(target=flood)
    child.start()
    assert b"and on" in ranks.shown_when(b"and on")
    assert ranks.relay.finish(20)
    is_over.set()
    child.join(20)
    os.close(flooding)
    assert ranks.ended().startswith(b"[rank 0] and on and on\n")


def test_a_reader_that_leaves_stops_neither_the_ranks_nor_the_relay():
    reading, writing = os.pipe()
    sink = Sink(writing)
    relay = Relay()
    ours, theirs = os.pipe()
    relay.add(ours, "", sink)
    os.close(reading)
    for _ in range(100):  # far more than a pipe holds: this would block if nobody read it
        os.write(theirs, b"x" * 10_000 + b"\n")
    os.close(theirs)
    assert relay.finish(20)
    assert isinstance(sink.error, BrokenPipeError)
    os.close(writing)


def test_an_output_that_takes_no_more_is_waited_for():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    relay = Relay()
    ours, theirs = os.pipe()
    relay.add(ours, "", Sink(writing))
    content = b"".join(b"%06d" % number + b"y" * 994 + b"\n" for number in range(1000))
    feeder = threading.Thread(target=lambda: (os.write(theirs, content), os.close(theirs)))
    feeder.start()
    feeder.join(0.3)
    assert feeder.is_alive()  # nobody reads, so that nobody may write for ever
    shown = b""
    while feeder.is_alive():
        shown += os.read(reading, 1 << 16)
    while len(shown) < len(content):
        shown += os.read(reading, 1 << 16)
    assert shown == content
    assert relay.finish(20)
    os.close(reading)
    os.close(writing)


def test_the_last_words_wait_for_a_slow_reader():
    reading, writing = os.pipe()
    os.write(writing, b"#" * 65_536)  # full
    relay = Relay()
    ours, theirs = os.pipe()
    relay.add(ours, "[rank 0] ", Sink(writing))
    os.write(theirs, b"the last words\n")
    assert not relay.finish(0.2)
    assert os.read(reading, 65_536) == b"#" * 65_536
    assert relay.finish(20)
    assert os.read(reading, 65_536) == b"[rank 0] the last words\n"
    for fd in (reading, writing, theirs):
        os.close(fd)


def test_a_bar_on_the_same_terminal_is_erased_before_lines_are_shown():
    ranks = Ranks(1, has_bar=True)
    ranks.write(0, b"over the bar\n")
    assert ranks.ended() == b"\r\x1b[K[rank 0] over the bar\n"
