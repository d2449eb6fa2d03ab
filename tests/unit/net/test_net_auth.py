"""The handshake, message by message, without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlx.errors import AuthenticationError, ConnectError, UsageError
from rlx.net.auth import (
    HELLO_BYTES,
    PROOF_BYTES,
    VERDICT_BYTES,
    Accepting,
    Channel,
    Facts,
    Proving,
    Status,
    check_job,
    key_of,
)

TOKEN = b"correct horse battery staple"
ACCEPTOR = Facts(0, 4, "job-a")
CONNECTOR = Facts(2, 4, "job-a", peer=0, channel=Channel.DATA)


def welcome(_: Facts) -> Status:
    return Status.WELCOME


def talk(
    connector: Facts = CONNECTOR,
    acceptor: Facts = ACCEPTOR,
    connector_key: bytes = TOKEN,
    acceptor_key: bytes = TOKEN,
    judge=welcome,
) -> tuple[Accepting, Proving, list[bytes]]:
    """A whole handshake; every message that was sent, in order."""
    accepting = Accepting(acceptor, acceptor_key, judge)
    proving = Proving(connector, connector_key, "rank 0 at 127.0.0.1:1")
    challenge = accepting.feed(proving.hello)
    proof = proving.feed(challenge)
    verdict = accepting.feed(proof)
    sent = [proving.hello, challenge, proof, verdict]
    proving.feed(verdict)
    return accepting, proving, sent


def test_two_ends_with_one_token_let_each_other_in():
    accepting, proving, sent = talk()
    assert accepting.status is Status.WELCOME
    assert accepting.peer == CONNECTOR
    assert accepting.needed == proving.needed == 0
    assert [len(m) for m in sent] == [HELLO_BYTES, HELLO_BYTES, PROOF_BYTES, VERDICT_BYTES]


def test_without_a_token_the_same_handshake_holds():
    assert talk(connector_key=b"", acceptor_key=b"")[0].status is Status.WELCOME


@pytest.mark.parametrize("keys", [(TOKEN, b"other"), (TOKEN, b""), (b"", TOKEN)])
def test_a_refused_token_is_named_and_never_shown(keys):
    with pytest.raises(AuthenticationError, match=r"rank 2 .*127\.0\.0\.1:1.*token") as caught:
        talk(connector_key=keys[0], acceptor_key=keys[1])
    assert "horse" not in str(caught.value)


def test_the_token_is_in_no_message():
    assert not any(TOKEN in message for message in talk()[2])


def test_messages_may_come_in_single_bytes():
    accepting = Accepting(ACCEPTOR, TOKEN, welcome)
    proving = Proving(CONNECTOR, TOKEN, "x")
    to_acceptor, to_connector = proving.hello, b""
    while to_acceptor or to_connector:
        to_connector += b"".join(accepting.feed(bytes((b,))) for b in to_acceptor)
        to_acceptor, answer = b"", to_connector
        to_connector = b""
        for byte in answer:
            to_acceptor += proving.feed(bytes((byte,)))
    assert accepting.status is Status.WELCOME
    assert proving.needed == 0


@pytest.mark.parametrize(
    ("name", "value", "here", "there"),
    [
        ("job", "job-b", "'job-b'", "'job-a'"),
        ("world_size", 5, "5", "4"),
        ("version", 9, "9", "1"),
        ("peer", 1, "1", "0"),
    ],
)
def test_a_peer_of_another_job_is_told_both_values(name, value, here, there):
    with pytest.raises(ConnectError, match="not of one job") as caught:
        talk(connector=replace(CONNECTOR, **{name: value}))
    assert here in str(caught.value)
    assert there in str(caught.value)


def test_facts_are_not_judged_before_the_proof_holds():
    asked = []

    def judge(facts: Facts) -> Status:
        asked.append(facts)
        return Status.WELCOME

    with pytest.raises(AuthenticationError):
        talk(connector_key=b"wrong", judge=judge)
    assert asked == []
    talk(judge=judge)
    assert asked == [CONNECTOR]


@pytest.mark.parametrize(
    ("status", "words"),
    [(Status.TAKEN, "two processes claim this rank"), (Status.NOT_EXPECTED, "does not expect")],
)
def test_a_rank_that_is_not_wanted_is_told_so(status, words):
    with pytest.raises(ConnectError, match=words):
        talk(judge=lambda _: status)


def test_a_refusal_cannot_be_forged_into_a_welcome():
    accepting = Accepting(ACCEPTOR, TOKEN, lambda _: Status.NOT_EXPECTED)
    proving = Proving(CONNECTOR, TOKEN, "x")
    verdict = accepting.feed(proving.feed(accepting.feed(proving.hello)))
    with pytest.raises(AuthenticationError):
        proving.feed(bytes((Status.WELCOME,)) + verdict[1:])


def test_a_proof_reflected_to_its_maker_does_not_hold():
    proving = Proving(CONNECTOR, TOKEN, "x")
    proof = proving.feed(proving.hello)
    with pytest.raises(AuthenticationError):
        proving.feed(bytes(VERDICT_BYTES - PROOF_BYTES) + proof)


def test_a_recorded_handshake_is_of_no_use_the_second_time():
    sent = talk()[2]
    accepting = Accepting(ACCEPTOR, TOKEN, welcome)
    assert accepting.feed(sent[0]) != sent[1]
    accepting.feed(sent[2])
    assert accepting.status is Status.BAD_PROOF
    assert accepting.peer is None


def test_garbage_is_dropped_at_its_first_bytes():
    accepting = Accepting(ACCEPTOR, TOKEN, welcome)
    assert accepting.feed(b"GET /") == b""
    assert accepting.status is Status.BAD_PROOF
    assert accepting.needed == 0


def test_a_listener_that_is_not_ours_is_named():
    with pytest.raises(ConnectError, match="here:80 does not speak"):
        Proving(CONNECTOR, TOKEN, "here:80").feed(b"HTTP/1.1 400")


def test_tokens_and_jobs_that_cannot_work_are_refused():
    assert key_of(None) == b""
    assert key_of(b"secret") == b"secret"
    check_job("j" * 64)
    with pytest.raises(UsageError, match="empty"):
        key_of(b"")
    with pytest.raises(UsageError, match="64 bytes"):
        check_job("é" * 33)
