"""Every exception that rlx raises, ordered by whose fault it is.

A message says what happened, what was expected, where (rank, peer, tag, file, parameter), and what
to do. This module imports nothing of rlx, so that every room can raise from it.
"""

from __future__ import annotations

from collections.abc import Iterable


class RlxError(Exception):
    """The root of all errors that rlx raises on purpose."""


class UsageError(RlxError):
    """The caller asked for something that cannot be done as asked."""


class GraphError(UsageError):
    """A graph does not type-check; raised at the line that built the wrong node."""


class NoGradientError(UsageError):
    """A gradient was asked of a value that the loss does not reach, or of an op without one."""


class ConfigError(UsageError):
    """A job file, an environment variable or a flag is wrong."""


class ClosedError(UsageError):
    """A transport or group was used after `close`, or after a failure that broke it."""


class WireError(RlxError):
    """Bytes are not the canonical encoding of what they should be."""


class Truncated(WireError):
    """Bytes end before the value does."""


class LimitExceeded(WireError):
    """A length or count in the bytes is over a limit; nothing was allocated for it."""


class UnknownVersion(WireError):
    """Bytes carry a format version that this release does not read."""


class Malformed(WireError):
    """Bytes have the right size but not the right content."""


class TransportError(RlxError):
    """Bytes could not be moved between ranks."""


class ConnectError(TransportError):
    """A connection could not be made: nobody listens, the port is taken, or the peer disagrees."""


class AuthenticationError(TransportError):
    """A peer could not prove that it holds the job's token."""


class PeerLost(TransportError):
    """A rank died, or left while others still expected it. `rank` is the one that went first."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class DeadlineExceeded(TransportError):
    """A wait ended without its peers. `peers` are the ranks that were not heard from."""

    def __init__(self, message: str, peers: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.peers = tuple(sorted(peers))


class LaunchError(RlxError):
    """A job that a script launched has failed. `status` is the exit status of its command."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DisagreementError(RlxError):
    """Ranks called different collectives, or bring different facts to one that must be equal."""


class FingerprintWarning(UserWarning):
    """Ranks compute with different libraries or CPUs, and may round differently."""


class DataError(RlxError):
    """A file of data is missing, malformed, of the wrong size, or outside the allowed roots."""


class RemoteError(RlxError):
    """Another rank failed with an exception of its own, and told the others."""

    def __init__(self, rank: int, kind: str, message: str, traceback: str = "") -> None:
        super().__init__(f"rank {rank} failed: {kind}: {message}")
        self.rank = rank
        self.kind = kind
        self.message = message
        self.traceback = traceback
