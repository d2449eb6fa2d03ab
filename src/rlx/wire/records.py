"""Records: frozen values with typed fields, and their one encoding.

A record's bytes are the MessagePack map of its fields, in their order, in an envelope. Decoding
checks the structure, the field names and the types, runs the record's own checks, and at last
encodes the result again: bytes that are not exactly what this release writes are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from rlx.errors import Malformed, UsageError
from rlx.ir import Graph
from rlx.wire.envelope import WireKind, seal, unseal
from rlx.wire.graphs import decode_graph, encode_graph
from rlx.wire.scan import scan


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of a value that crosses the wire. Checks of its content go to `__post_init__`."""

    def _normalise(self, field: str, value: object) -> None:
        """Set a field while the record is being made (a list to a tuple, an int to a float)."""
        msgspec.structs.force_setattr(self, field, value)


RecordType = TypeVar("RecordType")


def replaced(record: RecordType, **changes: Any) -> RecordType:
    """A copy of a record with some fields changed, checked like a new one."""
    return msgspec.structs.replace(record, **changes)  # type: ignore[type-var]


def field_names(record: Record) -> tuple[str, ...]:
    """The names of a record's fields, in their order."""
    return type(record).__struct_fields__


def encode_value(value: object) -> bytes:
    """The bytes of one field's value, without an envelope: for digests of parts."""
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def encode_record(record: Record, kind: WireKind, version: int) -> bytes:
    """The canonical bytes of `record`."""
    return seal(kind, version, encode_value(record))


def decode_record(
    data: bytes, record: type[RecordType], kind: WireKind, version: int, *, limit_bytes: int
) -> RecordType:
    """The record that `data` encodes. Anything else is a `WireError`, and nothing big is
    allocated."""
    body = unseal(data, kind, (version,), limit_bytes)
    scan(body)
    made = _refusing(kind, lambda: _decode(body, record))
    if encode_value(made) != body:
        raise Malformed(f"these bytes are not the canonical encoding of a {kind.name}")
    return made


def _decode(body: bytes, record: type[RecordType]) -> RecordType:
    return msgspec.msgpack.decode(body, type=record, strict=True, dec_hook=_rich)


def _refusing(kind: WireKind, decode: Callable[[], RecordType]) -> RecordType:
    try:
        return decode()
    except (msgspec.MsgspecError, UsageError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"these bytes are no valid {kind.name}: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, Graph):
        return encode_graph(value)
    raise UsageError(f"a {type(value).__name__} has no encoding")


def _rich(wanted: type, value: object) -> object:
    if wanted is Graph and isinstance(value, bytes):
        return decode_graph(value)
    raise Malformed(f"expected an encoded {wanted.__name__}; got {type(value).__name__}")
