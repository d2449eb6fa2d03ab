"""Opening and mapping a file without being held up or led astray by what lies at its path."""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeAlias

from rlx.errors import DataError

AnyPath: TypeAlias = "str | os.PathLike[str]"

# O_NONBLOCK: should a pipe take the file's place after the check, opening it does not wait for a
# writer. It changes nothing for a regular file.
_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


@dataclass(frozen=True, slots=True)
class Content:
    """The read-only bytes of one file, and its path for messages.

    The bytes are mapped, not read: whoever shortens the file in place while they are in use makes
    the kernel end this process. Files that are replaced by a rename, as `save_safetensors` does
    it, are safe.
    """

    path: str
    data: memoryview

    def error(self, reason: str) -> DataError:
        """The error that says what is wrong with this file."""
        return DataError(f"{self.path!r}: {reason}")


def read_raw(path: AnyPath) -> memoryview:
    """The bytes of the regular file at `path`, read-only and mapped; an empty file is allowed.

    Raises `DataError`, with the path and the reason, for whatever cannot be opened and read. It
    never waits: a pipe or a device is refused and not opened.
    """
    return open_content(path).data


def open_content(path: AnyPath) -> Content:
    """The content of the regular file at `path`; symbolic links are followed."""
    name = os.fspath(path)
    if "\0" in name:
        raise DataError(f"{name!r}: a path cannot hold a NUL byte")
    return _open(name, name, None, 0)


def open_real_path(path: str) -> Content:
    """The content of the regular file at `path`, which is absolute and free of symbolic links.

    If a part of it is a link after all (put there since the path was resolved), nothing is opened.
    So a path that was found to lie within a folder is opened within that folder, or not at all.
    """
    *folders, name = path.split("/")[1:]
    with ExitStack() as opened:
        try:
            folder = _open_folder("/", None, opened)
            for part in folders:
                folder = _open_folder(part, folder, opened)
        except OSError as error:
            raise DataError(f"{path!r}: {error.strerror}") from error
        return _open(path, name or ".", folder, os.O_NOFOLLOW)


def _open_folder(name: str, within: int | None, opened: ExitStack) -> int:
    descriptor = os.open(name, _FOLDER, dir_fd=within)
    opened.callback(os.close, descriptor)
    return descriptor


def _open(path: str, name: str, folder: int | None, extra_flags: int) -> Content:
    follow = not extra_flags & os.O_NOFOLLOW
    try:
        # Looking before opening: to open a device may already do something.
        mode = os.stat(name, dir_fd=folder, follow_symlinks=follow).st_mode
        _check_regular(path, mode)
        descriptor = os.open(name, _FILE | extra_flags, dir_fd=folder)
    except OSError as error:
        raise DataError(f"{path!r}: {error.strerror}") from error
    try:
        return Content(path, _map(path, descriptor))
    finally:
        os.close(descriptor)


def _map(path: str, descriptor: int) -> memoryview:
    try:
        facts = os.fstat(descriptor)
        _check_regular(path, facts.st_mode)
        if not facts.st_size:  # the kernel maps no empty file
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, facts.st_size, access=mmap.ACCESS_READ))
    except OSError as error:
        raise DataError(f"{path!r}: {error.strerror}") from error
    except (ValueError, OverflowError) as error:  # shortened since, or too big to address
        raise DataError(f"{path!r}: it cannot be mapped: {error}") from error


def _check_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise DataError(f"{path!r}: it is {kind}, not a regular file")
