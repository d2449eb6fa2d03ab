"""Mutations for the fuzzer: bytes, length fields, and whole values of MessagePack.

A mutation takes a generator and other inputs to borrow from, and gives new bytes. What it knows of
a format is only as much as it takes to get past the first check: where a value ends, and that an
envelope and a nested one say how long they are.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

Mutation: TypeAlias = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
Span: TypeAlias = tuple[int, int, int]
"""A MessagePack value: where it begins and ends, and where its first child begins (or its end)."""

ENVELOPE_BYTES = 16
MAX_INPUT_BYTES = 1 << 16

_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_NUMBERS: tuple[int, ...] = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    1024,
    1025,
    32767,
    32768,
    65535,
    1 << 20,
    (1 << 20) + 1,
)
_NUMBERS += ((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 40) + 1, 1 << 63)
_NUMBERS += ((1 << 64) - 8, (1 << 64) - 1)
_VALUES: tuple[bytes, ...] = (
    b"\x00",
    b"\x01",
    b"\xff",
    b"\x7f",
    b"\xcc\x80",
    b"\xcd\xff\xff",
    b"\xce\x7f\xff\xff\xff",
)
_VALUES += (b"\xcf\x7f" + b"\xff" * 7, b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7))
_VALUES += (
    b"\xc0",
    b"\xc2",
    b"\xc3",
    b"\xa0",
    b"\xa1x",
    b"\xc4\x00",
    b"\x90",
    b"\x80",
    b"\x91\xc0",
)
_VALUES += (b"\xcb\x7f\xf8" + bytes(6), b"\xcb\x7f\xf0" + bytes(6), b"\xca\x7f\xc0\x00\x00")
_VALUES += (b"\xa3\xff\xfe\xfd", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1")
# Head byte of MessagePack -> (bytes of its own length field, bytes of payload, children a length).
_HEADS = {0xC4: (1, 1, 0), 0xC5: (2, 1, 0), 0xC6: (4, 1, 0)}
_HEADS |= {0xD9: (1, 1, 0), 0xDA: (2, 1, 0), 0xDB: (4, 1, 0)}
_HEADS |= {0xDC: (2, 0, 1), 0xDD: (4, 0, 1), 0xDE: (2, 0, 2), 0xDF: (4, 0, 2)}
_SCALARS = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_SCALARS |= {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def mutate_bytes(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One to four changes that know nothing but bytes and integers."""
    for _ in range(generator.choice((1, 1, 1, 2, 2, 3, 4))):
        data = generator.choice(_BYTE_MUTATIONS)(generator, data, others)
    return data[:MAX_INPUT_BYTES]


def mutate_sealed(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change the body of an envelope, or that of one nested in it, and mend the lengths around."""
    if len(data) < ENVELOPE_BYTES or generator.random() < 0.15:
        return mutate_bytes(generator, data, others)
    head, body = data[:8], data[ENVELOPE_BYTES:]
    nested = _nested(body) if generator.random() < 0.5 else None
    if nested is not None:
        begin, middle, end = nested
        graphs = [one for one in others if one[4:6] == b"\x01\x00"]
        inner = mutate_sealed(generator, body[middle:end], graphs or [body[middle:end]])
        body = body[:begin] + _bin_head(len(inner)) + inner + body[end:]
    else:
        body = mutate_values(generator, body, [one[ENVELOPE_BYTES:] for one in others])
    return head + struct.pack("<Q", len(body)) + body


def mutate_values(generator: random.Random, body: bytes, others: Sequence[bytes]) -> bytes:
    """Replace, double or drop whole values of MessagePack; bytes alone where `body` is none."""
    for _ in range(generator.choice((1, 1, 2, 3))):
        spans = value_spans(body)
        if not spans or generator.random() < 0.2:
            return mutate_bytes(generator, body, others)
        begin, end, _ = generator.choice(spans)
        choice = generator.randrange(4)
        if choice == 0:
            donor = generator.choice(others)
            found = value_spans(donor) or [(0, len(donor), 0)]
            start, stop, _ = generator.choice(found)
            body = body[:begin] + donor[start:stop] + body[end:]
        elif choice == 1:
            body = body[:begin] + generator.choice(_VALUES) + body[end:]
        elif choice == 2:
            body = _resized(generator, body, spans)
        else:
            other_begin, other_end, _ = generator.choice(spans)
            body = body[:begin] + body[other_begin:other_end] + body[end:]
    return body[:MAX_INPUT_BYTES]


def value_spans(body: bytes) -> list[Span]:
    """Every value in `body`, the outer before the inner; nothing if it is not one whole value."""
    spans: list[Span] = []
    try:
        end = _walk(body, 0, spans)
    except (IndexError, RecursionError):
        return []
    return spans if end == len(body) else []


def _walk(body: bytes, at: int, spans: list[Span]) -> int:
    place = len(spans)
    spans.append((at, at, at))
    content, size, children = _head(body, at)
    end = content + size
    if end > len(body):
        raise IndexError
    for _ in range(children):
        end = _walk(body, end, spans)
    spans[place] = (at, end, content if children else end)
    return end


def _head(body: bytes, at: int) -> tuple[int, int, int]:
    """Where the content of the value at `at` begins, its bytes, and its children."""
    head = body[at]
    if head <= 0x7F or head >= 0xE0:
        return at + 1, 0, 0
    if head <= 0x8F:
        return at + 1, 0, 2 * (head & 0x0F)
    if head <= 0x9F:
        return at + 1, 0, head & 0x0F
    if head <= 0xBF:
        return at + 1, head & 0x1F, 0
    if head in _SCALARS:
        return at + 1, _SCALARS[head], 0
    if head not in _HEADS:
        raise IndexError
    width, payload, children = _HEADS[head]
    length = int.from_bytes(body[at + 1 : at + 1 + width], "big")
    if children * length > len(body):
        raise IndexError
    return at + 1 + width, payload * length, children * length


def _resized(generator: random.Random, body: bytes, spans: Sequence[Span]) -> bytes:
    """One short array has a value more, or its first one less, and says so."""
    arrays = [one for one in spans if 0x91 <= body[one[0]] <= 0x9E]
    if not arrays:
        return body
    begin, end, first = generator.choice(arrays)
    first_end = next(stop for start, stop, _ in spans if start == first)
    if generator.random() < 0.5:
        return (
            body[:begin] + bytes((body[begin] + 1,)) + body[first:first_end] + body[first:end]
        ) + body[end:]
    return body[:begin] + bytes((body[begin] - 1,)) + body[first_end:end] + body[end:]


def _nested(body: bytes) -> tuple[int, int, int] | None:
    """The first binary value that is an envelope: its beginning, its content, its end."""
    middle = body.find(b"RLXW")
    for head, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        begin = middle - width - 1
        if middle >= 0 and begin >= 0 and body[begin] == head:
            end = middle + int.from_bytes(body[begin + 1 : middle], "big")
            if middle + ENVELOPE_BYTES <= end <= len(body):
                return begin, middle, end
    return None


def _bin_head(size: int) -> bytes:
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    return struct.pack(">BH", 0xC5, size) if size < 1 << 16 else struct.pack(">BI", 0xC6, size)


def _flip(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def _set(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[generator.randrange(len(data))] = generator.randrange(256)
    return bytes(changed)


def _truncate(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: generator.randrange(len(data) + 1)]


def _insert(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    place = generator.randrange(len(data) + 1)
    return data[:place] + generator.randbytes(generator.randrange(1, 17)) + data[place:]


def _delete(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    place = generator.randrange(len(data) + 1)
    return data[:place] + data[place + generator.randrange(1, 17) :]


def _double(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    place = generator.randrange(len(data) + 1)
    end = place + generator.randrange(1, 65)
    return data[:end] + data[place:]


def _splice(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = generator.choice(others)
    return data[: generator.randrange(len(data) + 1)] + other[generator.randrange(len(other) + 1) :]


def _length(generator: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Overwrite 1, 2, 4 or 8 bytes, in either order, with a number at which checks go wrong."""
    width = generator.choice((1, 2, 4, 8))
    if len(data) < width:
        return data
    place = generator.randrange(len(data) - width + 1)
    form = generator.choice("<>") + _WIDTHS[width]
    number = generator.choice((*_NUMBERS, len(data), len(data) - place - width))
    if generator.random() < 0.3:
        number = struct.unpack_from(form, data, place)[0] + generator.choice((-1, 1, 8))
    field = struct.pack(form, number & ((1 << 8 * width) - 1))
    return data[:place] + field + data[place + width :]


_BYTE_MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _set, _truncate, _insert, _delete, _double, _splice),
    *(_length, _length, _length),
)
