"""The safetensors format: eight bytes of length, a JSON header, and the tensors' bytes.

Written to https://huggingface.co/docs/safetensors/index#format, whose rules are all checked before
an array is made: no duplicate key, bytes that are exactly those of the shape, and tensors that tile
the content without gap or overlap.
"""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, NoReturn, overload

import numpy as np

from rlx.dist.files.elements import ELEMENTS, Layout, supported
from rlx.dist.files.raw import AnyPath, Content, open_content

HEADER_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""Room for some 300 000 tensors; also the limit for what `save_safetensors` writes."""

METADATA: Final = "__metadata__"

LENGTH_BYTES: Final = 8
_FIELDS: Final = {"dtype", "shape", "data_offsets"}
_ELEMENTS: Final = {item.tag: item for item in ELEMENTS}

# A header is an object of objects of arrays, and nothing deeper. Strings are skipped; one that
# never ends runs to the end, so that each character is looked at once.
_OPENED: Final = b"{{["
_BRACKET: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_NEAR_AMONG: Final = 10_000
"""How many names are compared with one that is missing, so that an error comes soon."""

# What a file holds may be long; what is shown of it is not.
_REPR: Final = reprlib.Repr()
_REPR.maxstring = 120
_brief: Final = _REPR.repr


@overload
def read_safetensors(path: AnyPath, tensor: None = None) -> dict[str, np.ndarray]: ...
@overload
def read_safetensors(path: AnyPath, tensor: str) -> np.ndarray: ...
def read_safetensors(
    path: AnyPath, tensor: str | None = None
) -> dict[str, np.ndarray] | np.ndarray:
    """The tensor named `tensor` of the .safetensors file at `path`; without, all, by name, in the
    order of the header.

    Arrays are read-only, native and mapped where possible. bfloat16 needs ml_dtypes. Raises
    `DataError` for a file that breaks any rule of the format, whichever tensor is asked for, and
    for a tensor that is not there.
    """
    content = open_content(path)
    tensors = layouts(content)
    if tensor is not None:
        return find(content, tensors, tensor).array()
    return {name: layout.array() for name, layout in tensors.items()}


def layouts(content: Content) -> dict[str, Layout]:
    """Where each tensor of the file lies; every rule but the values of bools has been checked."""
    header, begin = _header(content)
    entries = _parsed(content, header)
    _check_metadata(content, entries.pop(METADATA, {}))
    found = {name: _layout(content, name, entry, begin) for name, entry in entries.items()}
    _check_tiling(content, found, begin)
    return found


def find(content: Content, tensors: Mapping[str, Layout], name: str) -> Layout:
    """The tensor `name`, or an error that lists those with near names."""
    if name in tensors:
        return tensors[name]
    near = difflib.get_close_matches(name, list(islice(tensors, _NEAR_AMONG)), n=5, cutoff=0.5)
    shown = f"near: {name_list(near)}" if near else f"it has {name_list(tensors)}"
    raise content.error(f"there is no tensor {_brief(name)}; {shown}")


def name_list(names: Iterable[str]) -> str:
    """The first few of the names, for messages."""
    listed = list(names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return (", ".join(_brief(name) for name in listed[:8]) or "none") + more


def _header(content: Content) -> tuple[bytes, int]:
    """The header's bytes, and where the tensors' bytes begin."""
    data = content.data
    if len(data) < LENGTH_BYTES:
        raise content.error(f"a .safetensors file has at least 8 bytes; this one has {len(data)}")
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    follow = len(data) - LENGTH_BYTES
    if length > min(follow, HEADER_LIMIT_BYTES):
        raise content.error(
            f"the .safetensors header says it has {length} bytes; {follow} follow, and at most "
            f"{HEADER_LIMIT_BYTES} are read"
        )
    begin = LENGTH_BYTES + length
    return bytes(data[LENGTH_BYTES:begin]), begin


def _parsed(content: Content, header: bytes) -> dict[str, Any]:
    if header[:1] != b"{":
        raise content.error(f"the .safetensors header starts with {header[:1]!r}; expected b'{{'")
    _check_depth(content, header)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return _unique(content, pairs)

    try:
        parsed: dict[str, Any] = json.loads(
            header.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=_refuse_constant,
            parse_int=_integer,
        )
    except ValueError as error:  # of json, of UTF-8 and of the two functions above
        raise content.error(f"the .safetensors header is no JSON: {error}") from error
    return parsed


def _check_depth(content: Content, header: bytes) -> None:
    """So that the JSON parser, which recurses, gets nothing deeper than a legal header."""
    opened = bytearray()
    for token in _BRACKET.finditer(header):
        bracket = token[0]
        if bracket in b"[{":
            opened += bracket
            if not _OPENED.startswith(opened):
                shown = opened.decode()
                raise content.error(f"the .safetensors header nests {shown!r}; legal is '{{{{['")
        elif bracket in b"]}" and opened:
            opened.pop()


def _unique(content: Content, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise content.error(f"the .safetensors header has the duplicate key {_brief(key)}")
            seen.add(key)
    for key in found:
        if _LONE_SURROGATE.search(key):
            raise content.error(f"the .safetensors header has a key that is no text: {_brief(key)}")
    return found


def _integer(text: str) -> int | float:
    if len(text) > 20:
        raise ValueError(f"an integer of {len(text)} digits")
    # -0 is no size, though int() would make one of it.
    return -0.0 if text == "-0" else int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _check_metadata(content: Content, metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(type(item) is str for item in metadata.values()):
        raise content.error(f"{METADATA} is no map from strings to strings")


def _layout(content: Content, name: str, entry: object, content_begin: int) -> Layout:
    what = f"tensor {_brief(name)}: "
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        has = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise content.error(f"{what}expected dtype, shape and data_offsets; got {_brief(has)}")
    tag = entry["dtype"]
    if not isinstance(tag, str) or tag not in _ELEMENTS:
        raise content.error(
            f"{what}dtype {_brief(tag)} is not supported; {supported(list(_ELEMENTS))}"
        )
    shape = _sizes(content, f"{what}shape", entry["shape"])
    offsets = _sizes(content, f"{what}data_offsets", entry["data_offsets"])
    size = len(content.data) - content_begin
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        raise content.error(
            f"{what}data_offsets {_brief(list(offsets))} are no begin and end within {size} bytes"
        )
    begin, end = (content_begin + offset for offset in offsets)
    layout = Layout(content, what, begin, end, _ELEMENTS[tag], shape)
    layout.check()
    return layout


def _sizes(content: Content, what: str, value: object) -> tuple[int, ...]:
    # A bool is an int to isinstance, so the type itself is compared.
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise content.error(f"{what} is no list of integers >= 0")
    return tuple(value)


def _check_tiling(content: Content, tensors: Mapping[str, Layout], begin: int) -> None:
    """The format forbids bytes that belong to no tensor, or to two."""
    reached = begin
    for layout in sorted(tensors.values(), key=lambda layout: (layout.begin, layout.end)):
        if layout.begin != reached:
            problem = "overlaps another" if layout.begin < reached else "leaves a gap before it"
            raise layout.error(f"its data begins at {layout.begin - begin}, which {problem}")
        reached = layout.end
    if reached != len(content.data):
        left = len(content.data) - reached
        raise content.error(f"{left} bytes at its end belong to no tensor")
