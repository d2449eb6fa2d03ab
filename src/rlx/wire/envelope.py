"""The envelope around every encoded value: what it is, in which version, and how long.

Sixteen bytes, little-endian: magic "RLXW", kind (u16), version (u16), length of the body (u64).
"""

from __future__ import annotations

import enum
import struct

from rlx.errors import LimitExceeded, Malformed, Truncated, UnknownVersion

_HEADER = struct.Struct("<4sHHQ")
_MAGIC = b"RLXW"


class WireKind(enum.IntEnum):
    """What a body encodes. A number is never reused."""

    GRAPH = 1
    TRAIN_SPEC = 2
    FACTS = 3
    EVALUATION_SPEC = 4


def seal(kind: WireKind, version: int, body: bytes) -> bytes:
    """`body` in its envelope."""
    return _HEADER.pack(_MAGIC, kind, version, len(body)) + body


def unseal(data: bytes, kind: WireKind, versions: tuple[int, ...], limit_bytes: int) -> bytes:
    """The body of `data`; every check comes before a byte of the body is looked at."""
    if len(data) < _HEADER.size:
        raise Truncated(f"an envelope has {_HEADER.size} bytes; got {len(data)}")
    magic, found, version, length = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Malformed(f"these bytes are nothing that rlx wrote: they begin with {magic!r}")
    if found != kind:
        raise Malformed(f"expected an encoded {kind.name}; got kind {found}")
    if version not in versions:
        readable = ", ".join(str(one) for one in versions)
        raise UnknownVersion(
            f"an encoded {kind.name} of version {version}; this release reads {readable}"
        )
    if length > limit_bytes:
        raise LimitExceeded(f"a {kind.name} of {length} bytes is over the limit of {limit_bytes}")
    rest = len(data) - _HEADER.size
    if rest < length:
        raise Truncated(f"a {kind.name} of {length} bytes ends after {rest}")
    if rest > length:
        raise Malformed(f"{rest - length} bytes follow a {kind.name} of {length} bytes")
    return bytes(memoryview(data)[_HEADER.size :])
