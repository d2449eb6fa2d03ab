"""The fuzzer itself, shortly: every decoder takes an input or refuses it by an error of its own."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rlx.errors import Malformed, UsageError
from rlx.testing.fuzz.__main__ import TARGETS, Finding, as_table, fuzz_target, outcome_of
from rlx.testing.fuzz.corpus import (
    LIMIT_BYTES,
    LIMIT_INPUTS,
    Distillate,
    Kept,
    read_corpus,
    write_corpus,
)
from rlx.testing.fuzz.target import Target

CORPUS = Path(__file__).parent / "corpus"


def _fuzz(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlx.testing.fuzz", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_valid_inputs_of_a_decoder_are_not_refused_as_bytes(name):
    target = TARGETS[name]
    outcomes = {outcome_of(target, data).word for data in target.seeds()}
    assert outcomes & {"accepted", "left", "mismatch"}, outcomes


def test_a_few_thousand_mutations_find_nothing():
    done = _fuzz("--inputs", "6000", "--seed", "5", "--corpus", CORPUS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == list(TARGETS)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_decoder_does_with_its_corpus_as_it_did_when_that_was_kept(name):
    kept = read_corpus(CORPUS, name)
    assert len({one.outcome for one in kept}) >= 2
    assert len(kept) >= 3
    tally = fuzz_target(TARGETS[name], 0, 1, kept)
    assert tally.outcomes == Counter(one.outcome for one in kept)


def test_no_corpus_belongs_to_a_decoder_that_is_gone():
    assert {path.stem for path in CORPUS.iterdir()} == set(TARGETS)


def test_an_input_of_the_corpus_that_does_something_else_is_a_finding():
    lenient = Target("lenient", lambda data: "accepted", lambda: [b""])
    with pytest.raises(Finding, match="was Malformed; it is accepted"):
        fuzz_target(lenient, 10, 1, [Kept("accepted", b"1"), Kept("Malformed", b"2")])


def test_distilling_keeps_the_shortest_input_for_each_way_to_answer(tmp_path):
    done = _fuzz("--distil", "--inputs", "400", "--only", "notice", "--corpus", tmp_path)
    assert done.returncode == 0, done.stderr
    kept = read_corpus(tmp_path, "notice")
    assert {"Malformed", "Truncated", "accepted"} <= {one.outcome for one in kept}
    distillate = Distillate()
    for data in (b"long", b"b", b"a", b"else", bytes(LIMIT_BYTES + 1)):
        distillate.add("accepted", len(data) > LIMIT_BYTES or data == b"else", data)
    assert distillate.kept() == [Kept("accepted", b"a"), Kept("accepted", b"else")]
    for number in range(2 * LIMIT_INPUTS):
        distillate.add("Malformed", number, bytes(number))
    assert len(distillate.kept()) == LIMIT_INPUTS


def test_a_corpus_comes_back_as_it_was_written(tmp_path):
    kept = [Kept("Truncated", b""), Kept("accepted", bytes(range(256)))]
    write_corpus(tmp_path / "new", "notice", kept)
    assert read_corpus(tmp_path / "new", "notice") == kept


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# nothing\n", "notice.txt holds no input"),
        ("accepted 00\nMalformed 0\n", "notice.txt:2: a line is an outcome and an input"),
        ("accepted\n", "notice.txt:1: a line is"),
        ("accepted 0\u00e9\n", "cannot be read"),
        (None, "cannot be read: .*notice.txt: .*No such file"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_named_with_its_line(tmp_path, text, complaint):
    if text is not None:
        (tmp_path / "notice.txt").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=complaint):
        read_corpus(tmp_path, "notice")


def test_options_that_do_not_go_together_are_refused(tmp_path):
    assert "--distil needs --corpus" in _fuzz("--distil").stderr
    assert "--replay needs one --only" in _fuzz("--replay", tmp_path).stderr
    missing = _fuzz("--inputs", "10", "--corpus", tmp_path)
    assert missing.returncode == 2
    assert missing.stderr.startswith("fuzz: the corpus of hello cannot be read")


def test_the_same_seed_gives_the_same_inputs():
    target = TARGETS["notice"]
    first, again, other = (fuzz_target(target, 300, seed).outcomes for seed in (1, 1, 2))
    assert first == again
    assert first != other


def _crash(data: bytes) -> str:
    if b"\xff" in data:
        raise IndexError("past the end")
    if len(data) > 4:
        raise Malformed("too long")
    return "accepted"


def test_a_decoder_that_crashes_is_found_with_the_input_that_did_it():
    broken = Target("broken", _crash, lambda: [b"1234"])
    with pytest.raises(Finding, match="broken: IndexError: past the end") as found:
        fuzz_target(broken, 100_000, 1)
    assert b"\xff" in found.value.data


def test_mutations_are_bounded_and_reach_what_is_behind_the_envelope():
    generator = random.Random(1)
    for name in ("graph", "link"):
        target = TARGETS[name]
        sources = target.seeds()
        for _ in range(200):
            assert len(target.mutate(generator, generator.choice(sources), sources)) <= 1 << 16
    tally = fuzz_target(TARGETS["facts"], 400, 1)
    assert tally.outcomes["accepted"] > 5
    assert "facts" in as_table([tally])
