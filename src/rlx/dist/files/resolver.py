"""From a URI to the content of the file that it names, within allowed folders."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote, unquote_to_bytes

import numpy as np

from rlx.dist.files.npy import npy_array
from rlx.dist.files.raw import AnyPath, Content, open_content, open_real_path
from rlx.dist.files.safetensors_file import find, layouts, name_list
from rlx.errors import DataError, UsageError

Resolved: TypeAlias = "np.ndarray | memoryview"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_SUPPORTED: Final = "supported: file:///PATH with raw bytes, .npy or .safetensors#TENSOR"


@dataclass(frozen=True, slots=True)
class _Place:
    """What a URI names: an absolute path and, after a "#", a tensor."""

    uri: str
    path: str
    tensor: str | None


def uri_resolver(uri: str) -> Resolved:
    """The content of the file that `uri` names, wherever it lies; see `file_resolver`."""
    return _resolve(uri, None)


def file_resolver(roots: Sequence[AnyPath] | None) -> Callable[[str], Resolved]:
    """A function from a `file://` URI to its file's content, read-only.

    The path's ending decides: `.npy` and `.safetensors#TENSOR` give an array (the fragment may be
    left out where the file has one tensor), anything else a memoryview of its raw little-endian
    bytes. The path is absolute, and percent-escapes in it and in the fragment are decoded.

    With `roots`, the file must lie in or below one of these folders once every symbolic link is
    resolved; one that does not is not opened. The roots themselves are resolved now. None allows
    the whole file system.

    The function raises `DataError`, with the URI or path and the reason, for everything that it
    does not read: another scheme or host, a place outside the roots, what is no regular file, a
    malformed file. It never waits. Threads may share it.
    """
    if isinstance(roots, (str, os.PathLike)):
        raise UsageError(f"roots is a list of folders; got the single path {os.fspath(roots)!r}")
    allowed = None if roots is None else tuple(os.path.realpath(root) for root in roots)

    def resolve(uri: str) -> Resolved:
        return _resolve(uri, allowed)

    return resolve


def _resolve(uri: str, roots: tuple[str, ...] | None) -> Resolved:
    place = _place(uri)
    _, ending = os.path.splitext(place.path.lower())
    if ending == ".npz":
        raise DataError(
            f"{uri!r}: .npz archives are not supported, and object arrays are not supported in any "
            "file; save one array as .npy, or several as .safetensors"
        )
    if place.tensor is not None and ending != ".safetensors":
        raise DataError(f"{uri!r}: only a .safetensors file has tensors to name after '#'")
    content = open_content(place.path) if roots is None else _open_within(place, roots)
    if ending == ".npy":
        return npy_array(content)
    if ending == ".safetensors":
        return _tensor(content, place)
    return content.data


def _place(uri: str) -> _Place:
    scheme = _SCHEME.match(uri)
    if scheme is None or scheme[1].lower() != "file" or not scheme[2]:
        raise DataError(f"{uri!r} is no file:// URI; {_SUPPORTED}")
    rest, _, fragment = uri[scheme.end() :].partition("#")
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost"):
        raise DataError(
            f"{uri!r} names a file of host {host!r}; only this host's files are read, and their "
            "paths are absolute: file:///PATH"
        )
    if not slash or "?" in path:
        raise DataError(f"{uri!r} has no absolute path, or a '?' (write %3F); {_SUPPORTED}")
    try:
        # Names of files are bytes, which need not be UTF-8; names of tensors are text.
        decoded = "/" + os.fsdecode(unquote_to_bytes(path)).lstrip("/")
        tensor = unquote(fragment, errors="strict") or None
    except UnicodeError as error:
        raise DataError(f"{uri!r} is malformed: {error}") from error
    if "\0" in decoded:
        raise DataError(f"{uri!r}: a path cannot hold a NUL byte")
    return _Place(uri, decoded, tensor)


def _open_within(place: _Place, roots: tuple[str, ...]) -> Content:
    real = os.path.realpath(place.path)
    if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots):
        allowed = ", ".join(repr(root) for root in roots) or "none"
        raise DataError(f"{place.uri!r} lies outside the allowed folders: {allowed}")
    return open_real_path(real)


def _tensor(content: Content, place: _Place) -> np.ndarray:
    tensors = layouts(content)
    if place.tensor is not None:
        return find(content, tensors, place.tensor).array()
    if len(tensors) == 1:
        return next(iter(tensors.values())).array()
    raise DataError(
        f"{place.uri!r} must say which of {len(tensors)} tensors, as {place.uri.rstrip('#')}#NAME: "
        f"{name_list(tensors)}"
    )
