"""Writing tensors to a .safetensors file that is, at every moment, the old one or the new one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from rlx.dist.files.elements import ELEMENTS, Element, supported
from rlx.dist.files.raw import AnyPath
from rlx.dist.files.safetensors_file import HEADER_LIMIT_BYTES, LENGTH_BYTES, METADATA
from rlx.errors import DataError, UsageError

_ELEMENTS: Final = {item.name: item for item in ELEMENTS}
_PIECE_BYTES: Final = 16 * 1024 * 1024
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def save_safetensors(
    path: AnyPath,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write `tensors`, and `metadata` beside them, to the .safetensors file at `path`.

    The header lists the tensors in the mapping's order; their bytes are little-endian and
    C-ordered, larger element types first so that each is aligned. The same input gives the same
    bytes.

    The file is replaced in one step once all of it is on disk: whatever fails, the old file is
    whole and no other is left. (Only a process that is killed outright leaves a `.rlx-*.tmp` beside
    it.) If `path` is a symbolic link, the file that it points to is replaced.

    Raises `UsageError` for names, types or metadata that the format or its reader does not have,
    and `DataError`, with the path and the reason, for what the file system refuses.
    """
    placed = _in_file_order(tensors)
    header = _header(tensors, placed, metadata)
    name = os.fspath(path)
    if "\0" in name:
        raise DataError(f"cannot save {name!r}: a path cannot hold a NUL byte")
    target = os.path.realpath(name)
    try:
        _check_target(target)
        _replace(target, header, placed)
    except OSError as error:
        raise DataError(f"cannot save {target!r}: {error.strerror}") from error


def _in_file_order(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name, array in tensors.items():
        if not isinstance(name, str) or name == METADATA or not _is_text(name):
            raise UsageError(f"{name!r} cannot be the name of a tensor")
        if not isinstance(array, np.ndarray):
            raise UsageError(f"tensor {name!r} is a {type(array).__name__}, not a numpy array")
        if array.dtype.name not in _ELEMENTS:
            known = supported(list(_ELEMENTS))
            raise UsageError(f"tensor {name!r} has the dtype {array.dtype}; {known}")
    by_size = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    return dict(by_size)


def _header(
    tensors: Mapping[str, np.ndarray],
    placed: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None,
) -> bytes:
    offsets = {}
    end = 0
    for name, array in placed.items():
        offsets[name] = [end, end + array.nbytes]
        end += array.nbytes
    entries: dict[str, Any] = {}
    if metadata is not None:
        entries[METADATA] = _checked_metadata(metadata)
    for name, array in tensors.items():
        entries[name] = {
            "dtype": _ELEMENTS[array.dtype.name].tag,
            "shape": list(array.shape),
            "data_offsets": offsets[name],
        }
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT_BYTES:
        raise UsageError(f"the header takes {len(text)} bytes; at most {HEADER_LIMIT_BYTES} fit")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    for pair in metadata.items():
        if not all(isinstance(item, str) and _is_text(item) for item in pair):
            raise UsageError(f"metadata maps strings to strings; got {pair!r}")
    return dict(metadata)


def _is_text(value: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _check_target(target: str) -> None:
    """A device or pipe is not replaced by a file: whoever says /dev/null does not mean that."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(target).st_mode):
            raise DataError(f"cannot save {target!r}: it is there and is no regular file")


def _replace(target: str, header: bytes, placed: Mapping[str, np.ndarray]) -> None:
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".rlx-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, _NEW_FILE, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(header)
            for array in placed.values():
                for piece in _pieces(array):
                    file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        # The first error is the one to report, also where the removal fails too.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    """The little-endian bytes of `array` in C order. At most one piece is copied at a time, unless
    the array has several dimensions and lies in memory in another order."""
    element = _ELEMENTS[array.dtype.name]
    flat = _stored(array, element).reshape(-1)
    little = np.dtype(f"<{element.code}")
    count = max(1, _PIECE_BYTES // flat.itemsize)
    for start in range(0, flat.size, count):
        piece = np.ascontiguousarray(flat[start : start + count], little)
        yield piece.view(np.uint8).data


def _stored(array: np.ndarray, element: Element) -> np.ndarray:
    plain = np.asarray(array)
    if element.name != "bfloat16":
        return plain
    return plain.view(np.dtype(element.code).newbyteorder(plain.dtype.byteorder))


def _sync_folder(folder: str) -> None:
    """Make the new name itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems without the notion, as fsync(2) has it
            raise
    finally:
        os.close(descriptor)
