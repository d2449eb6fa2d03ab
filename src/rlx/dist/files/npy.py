"""The .npy format, versions 1 to 3, without numpy.load and without evaluating its header.

The header is the text of a Python dict (NEP 1). Here it is read by the few rules that numpy's own
headers follow, so that no text in it, however deep or long, reaches a Python parser.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from rlx.dist.files.elements import ELEMENTS, Element, Layout, supported
from rlx.dist.files.raw import AnyPath, Content, open_content

HEADER_LIMIT_BYTES: Final = 64 * 1024
"""numpy's headers for the supported types take 128 bytes or so."""

_MAGIC: Final = b"\x93NUMPY"
_LENGTH_BYTES: Final = {1: 2, 2: 4, 3: 4}
_KEYS: Final = ("descr", "fortran_order", "shape")

_ELEMENTS: Final = {item.code: item for item in ELEMENTS if item.name != "bfloat16"}
_KNOWN_BUT_REFUSED: Final = {
    "i2": "int16",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f16": "longdouble",
    "c8": "complex64",
    "c16": "complex128",
    "V2": "bytes without a meaning; bfloat16 is kept by .safetensors",
}

# One pass over the header, each character once: a string, a bracket, a separator, or other text.
_TOKEN: Final = re.compile(
    r"""'[^'\\\n]*'|"[^"\\\n]*"|[{}()\[\],:]|[ \t\n]+|[^{}()\[\],:'" \t\n]+"""
)
_DESCR: Final = re.compile(r"""(['"])([<>=|]?)([A-Za-z]\d*)(\[[^\]'"\\]*\])?\1""", re.ASCII)
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,18}")


def read_npy(path: AnyPath) -> np.ndarray:
    """The array in the .npy file at `path`: read-only, native, C-ordered, mapped where possible.

    Raises `DataError` for anything but a whole .npy file of one of the supported types: an object
    or structured array, a pickle or archive under another name, a header that lies, a file that is
    too short or too long.
    """
    return npy_array(open_content(path))


def npy_array(content: Content) -> np.ndarray:
    """`read_npy` of a file that is already open."""
    header, begin = _header(content)
    fields = _fields(content, header)
    byte_order, element = _element(content, fields["descr"])
    layout = Layout(
        content=content,
        what="",
        begin=begin,
        end=len(content.data),
        element=element,
        shape=_shape(content, fields["shape"]),
        byte_order=byte_order,
        order=_order(content, fields["fortran_order"]),
    )
    layout.check()
    return layout.array()


def _header(content: Content) -> tuple[str, int]:
    """The header's text, and where the array's bytes begin."""
    data = content.data
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise content.error(
            f"it is no .npy file: it starts with {bytes(data[:8])!r}; archives, pickles and "
            "object arrays are not supported"
        )
    if len(data) < len(_MAGIC) + 2:
        raise content.error("the .npy file ends within its version")
    major, minor = data[len(_MAGIC)], data[len(_MAGIC) + 1]
    if major not in _LENGTH_BYTES or minor:
        raise content.error(f".npy version {major}.{minor} is unknown; known: 1.0, 2.0, 3.0")
    start = len(_MAGIC) + 2 + _LENGTH_BYTES[major]
    if len(data) < start:
        raise content.error("the .npy file ends within its header's length")
    length = int.from_bytes(data[len(_MAGIC) + 2 : start], "little")
    if length > min(len(data) - start, HEADER_LIMIT_BYTES):
        raise content.error(
            f"the .npy header says it has {length} bytes; {len(data) - start} follow, and at most "
            f"{HEADER_LIMIT_BYTES} are read"
        )
    # Latin-1 takes any byte. A supported header is ASCII in all versions; what is not is refused.
    return str(data[start : start + length], "latin-1"), start + length


def _fields(content: Content, header: str) -> dict[str, str]:
    """The header's values by key, each as the text that stands there."""
    tokens = _tokens(content, header)
    if len(tokens) < 2 or tokens[0] != "{" or tokens[-1] != "}":
        raise content.error(f"the .npy header is no dict: {_brief(header)}")
    fields: dict[str, str] = {}
    for entry in _entries(content, tokens[1:-1]):
        if len(entry) < 3 or entry[1] != ":":
            raise content.error(f"the .npy header is malformed at {_brief(' '.join(entry))}")
        key = entry[0][1:-1]
        if entry[0][0] not in "'\"" or key not in _KEYS:
            raise content.error(f"the .npy header has the key {_brief(entry[0])}; {_expected()}")
        if key in fields:
            raise content.error(f"the .npy header has the duplicate key {key!r}")
        fields[key] = " ".join(entry[2:])
    missing = [key for key in _KEYS if key not in fields]
    if missing:
        raise content.error(f"the .npy header lacks {', '.join(missing)}; {_expected()}")
    return fields


def _tokens(content: Content, header: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(header):
        token = _TOKEN.match(header, position)
        if token is None:
            raise content.error(f"the .npy header is malformed at {_brief(header[position:])}")
        if not tokens or token[0][0] not in " \t\n":  # str.isspace() takes \x1e for a space too
            tokens.append(token[0])
        position = token.end()
    return tokens


def _entries(content: Content, tokens: list[str]) -> list[list[str]]:
    """The entries of a dict: what stands between the commas that no bracket encloses."""
    entries: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in "([{") - (token in ")]}")
        if depth < 0:
            raise content.error("the brackets of the .npy header do not match")
        if token == "," and not depth:
            entries.append([])
        else:
            entries[-1].append(token)
    if not entries[-1]:  # a comma may follow the last entry
        entries.pop()
    return entries


def _element(content: Content, descr: str) -> tuple[str, Element]:
    """The byte order ("<" or ">") and type that `descr` names."""
    if descr[0] in "[(":
        raise content.error("structured arrays are not supported; save each field by itself")
    parsed = _DESCR.fullmatch(descr)
    if parsed is None:
        raise content.error(f"the .npy header has the unknown type {_brief(descr)}; {_types()}")
    byte_order, code, unit = parsed[2], parsed[3], parsed[4]
    if code[0] == "O":
        raise content.error("object arrays are not supported")
    element = _ELEMENTS.get(code)
    if element is None or unit:
        known = f" ({_KNOWN_BUT_REFUSED[code]})" if code in _KNOWN_BUT_REFUSED else ""
        raise content.error(f"the type {_brief(descr)}{known} is not supported; {_types()}")
    if element.itemsize == 1:
        return "<", element
    if byte_order not in ("<", ">"):
        raise content.error(f"the type {descr} does not say its byte order; expected < or >")
    return byte_order, element


def _order(content: Content, text: str) -> str:
    if text not in ("True", "False"):
        raise content.error(f"fortran_order is {_brief(text)}; expected True or False")
    return "F" if text == "True" else "C"


def _shape(content: Content, text: str) -> tuple[int, ...]:
    *sizes, last = (size.strip(" ") for size in text[1:-1].split(","))
    if last:
        # (3) is a number in Python; the tuple of one is (3,).
        sizes = [*sizes, last] if sizes else ["no tuple"]
    a_tuple = text[0] == "(" and text[-1] == ")"
    if not a_tuple or not all(_SIZE.fullmatch(size) for size in sizes):
        shown = _brief(text.replace(" ", ""))
        raise content.error(f"shape is {shown}; expected a tuple of integers from 0 to 2**63")
    return tuple(int(size) for size in sizes)


def _expected() -> str:
    return f"expected {', '.join(_KEYS)} and nothing else"


def _types() -> str:
    return supported([item.name for item in _ELEMENTS.values()])


def _brief(text: str) -> str:
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    return shown if shown.isascii() and shown.isprintable() else ascii(shown)
