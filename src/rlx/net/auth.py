"""The handshake: both ends prove that they hold the job's token, and agree on what the job is.

It knows messages of fixed size and no sockets: bytes go in, bytes come out.

    connector -> acceptor   hello      facts of the connector, a fresh nonce
    acceptor  -> connector  challenge  facts of the acceptor, a fresh nonce
    connector -> acceptor   proof      HMAC-SHA256(token, "connector", hello, challenge)
    acceptor  -> connector  verdict    a status,
                                       HMAC-SHA256(token, "acceptor", status, hello, challenge)

The facts are protocol version, job, world size, rank and channel. Nothing of a hello but its magic
is looked at before the proof over it holds. The connector proves first, so that whoever merely
reaches a listener obtains nothing keyed with the token. The labels keep a proof from being
reflected to its maker. Without a token the key is empty: the same handshake then still keeps jobs
apart, and callers keep such jobs on loopback.

The connection is authenticated when it is made; what follows is neither encrypted nor signed, so
the token does not protect against someone who can alter packets between the ranks.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from rlx.errors import AuthenticationError, ConnectError, UsageError

PROTOCOL_VERSION = 2
MAX_JOB_BYTES = 64

_MAGIC = b"rlx/net\n"
# This layout is the same in every protocol version, so that versions can tell each other theirs:
# magic, version, channel, shares, rank, peer, world size, nonce, bytes of the job, the job.
_HELLO = struct.Struct("<8sHBBIII32sB64s3x")
_VERDICT = struct.Struct("<B3x32s")
_ANY = 0xFFFFFFFF
_NONCE_BYTES = 32

HELLO_BYTES = _HELLO.size
PROOF_BYTES = 32
VERDICT_BYTES = _VERDICT.size


class Channel(IntEnum):
    """What a connection is for."""

    ANY = 0
    DATA = 1
    CONTROL = 2
    STORE = 3


class Status(IntEnum):
    """What the acceptor thinks of a connector."""

    WELCOME = 0
    BAD_PROOF = 1
    OTHER_FACTS = 2
    TAKEN = 3
    NOT_EXPECTED = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """What two ends must agree on. `peer` is the rank expected at the other end.

    They need not agree on `shares`: whether an end would share memory with the other.
    """

    rank: int
    world_size: int
    job: str = ""
    peer: int = _ANY
    channel: int = Channel.ANY
    version: int = PROTOCOL_VERSION
    shares: bool = False

    def pack(self, nonce: bytes) -> bytes:
        """These facts and a nonce, as a hello or a challenge."""
        job = self.job.encode()
        return _HELLO.pack(
            _MAGIC,
            self.version,
            self.channel,
            self.shares,
            self.rank,
            self.peer,
            self.world_size,
            nonce,
            len(job),
            job,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Facts:
        """The facts in a hello or challenge."""
        _, version, channel, shares, rank, peer, world_size, _, size, job = _HELLO.unpack(data)
        name = job[: min(size, MAX_JOB_BYTES)].decode("utf-8", "replace")
        return cls(rank, world_size, name, peer, channel, version, shares == 1)


def check_job(job: str) -> None:
    """Refuse a job id that does not fit the handshake."""
    if len(job.encode()) > MAX_JOB_BYTES:
        raise UsageError(f"the job id {job!r} is over {MAX_JOB_BYTES} bytes")


def key_of(token: bytes | None) -> bytes:
    """The HMAC key. No token is the empty key; an empty token is a mistake and refused."""
    if token is None:
        return b""
    if not token:
        raise UsageError("the token is empty; give at least 16 random bytes, or none")
    return bytes(token)


def _proof(key: bytes, label: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(key, b"rlx " + label + b"\0" + hello + challenge, "sha256")


def _verdict_proof(key: bytes, status: int, hello: bytes, challenge: bytes) -> bytes:
    return _proof(key, b"acceptor" + bytes((status,)), hello, challenge)


def disagreements(here: Facts, there: Facts) -> list[str]:
    """What two ends differ in, each with both values. Facts left open by one end do not count."""
    found = []
    for name, own, other in (
        ("protocol version", here.version, there.version),
        ("job", repr(here.job), repr(there.job)),
        ("world size", here.world_size, there.world_size),
    ):
        if own != other:
            found.append(f"{name} {own} here, {other} there")
    if _ANY not in (here.peer, there.rank) and here.peer != there.rank:
        found.append(f"rank {here.peer} expected, rank {there.rank} there")
    if _ANY not in (there.peer, here.rank) and there.peer != here.rank:
        found.append(f"rank {here.rank} here, rank {there.peer} expected there")
    return found


class _Exchange:
    """Messages of known sizes, put together from whatever pieces arrive."""

    def __init__(self, needed: int) -> None:
        self._received = bytearray()
        self._size = needed

    @property
    def needed(self) -> int:
        """How many bytes the next message still lacks; 0 when there is no next message."""
        return self._size - len(self._received)

    def _take(self, next_size: int) -> bytes:
        message = bytes(self._received)
        self._received.clear()
        self._size = next_size
        return message


class Accepting(_Exchange):
    """The acceptor's end for one stranger. Feed it at most `needed` bytes at a time.

    `judge` is asked about a stranger whose proof holds and whose job agrees. When `needed` is 0
    the outcome is in `status`, and `peer` holds the stranger's facts if its proof held.
    """

    def __init__(self, own: Facts, key: bytes, judge: Callable[[Facts], Status]) -> None:
        super().__init__(HELLO_BYTES)
        self._own = own
        self._key = key
        self._judge = judge
        self._hello = b""
        self._challenge = b""
        self.status: Status | None = None
        self.peer: Facts | None = None

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those to send. Garbage ends it with status BAD_PROOF, unanswered."""
        self._received += data
        if not self._hello:
            return self._feed_hello()
        if self.needed:
            return b""
        return self._feed_proof()

    def _feed_hello(self) -> bytes:
        head = bytes(self._received[: len(_MAGIC)])
        if not _MAGIC.startswith(head):
            self._take(0)
            self.status = Status.BAD_PROOF
            return b""
        if self.needed:
            return b""
        self._hello = self._take(PROOF_BYTES)
        self._challenge = self._own.pack(secrets.token_bytes(_NONCE_BYTES))
        return self._challenge

    def _feed_proof(self) -> bytes:
        expected = _proof(self._key, b"connector", self._hello, self._challenge)
        if hmac.compare_digest(expected, self._take(0)):
            self.peer = Facts.unpack(self._hello)
            agrees = not disagreements(self._own, self.peer)
            self.status = self._judge(self.peer) if agrees else Status.OTHER_FACTS
        else:
            self.status = Status.BAD_PROOF
        mac = _verdict_proof(self._key, self.status, self._hello, self._challenge)
        return _VERDICT.pack(self.status, mac)


class Proving(_Exchange):
    """The connector's end. Send `hello` first, then feed it at most `needed` bytes at a time.

    `where` names the other end in messages. When `needed` is 0 without an exception, both ends
    have proved themselves and agree.
    """

    def __init__(self, own: Facts, key: bytes, where: str) -> None:
        super().__init__(HELLO_BYTES)
        self._own = own
        self._key = key
        self._where = where
        self.hello = own.pack(secrets.token_bytes(_NONCE_BYTES))
        self._challenge = b""

    @property
    def proved(self) -> bool:
        """Whether this end has sent its proof."""
        return bool(self._challenge)

    @property
    def peer(self) -> Facts:
        """The facts of the other end, once it has sent its challenge."""
        return Facts.unpack(self._challenge)

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those to send.

        Raises
        ------
        AuthenticationError
            One end does not hold the other's token.
        ConnectError
            The other end is no rlx rank, or belongs to another job, or does not expect this one.
        """
        self._received += data
        if not self._challenge and not _MAGIC.startswith(bytes(self._received[: len(_MAGIC)])):
            raise ConnectError(f"what listens at {self._where} does not speak rlx's protocol")
        if self.needed:
            return b""
        if not self._challenge:
            self._challenge = self._take(VERDICT_BYTES)
            return _proof(self._key, b"connector", self.hello, self._challenge)
        self._check_verdict(self._take(0))
        return b""

    def _check_verdict(self, verdict: bytes) -> None:
        status, mac = _VERDICT.unpack(verdict)
        expected = _verdict_proof(self._key, status, self.hello, self._challenge)
        me = f"rank {self._own.rank}"
        if not hmac.compare_digest(expected, mac) or status == Status.BAD_PROOF:
            with_token = "a token" if self._key else "no token"
            raise AuthenticationError(
                f"{me} (which has {with_token}) and {self._where} do not hold the same token; "
                "give every rank the same one"
            )
        differences = disagreements(self._own, Facts.unpack(self._challenge))
        if differences or status == Status.OTHER_FACTS:
            raise ConnectError(
                f"{me} and {self._where} are not of one job: " + "; ".join(differences)
            )
        if status == Status.TAKEN:
            raise ConnectError(
                f"{self._where} has a connection from {me} already; two processes claim this rank"
            )
        if status != Status.WELCOME:
            raise ConnectError(f"{self._where} does not expect {me} (status {status})")
