"""A segment: memory of one process that others of its host map, and that no file name leads to.

It is an anonymous file (Linux: memfd_create), which a peer opens through /proc while its owner
holds the descriptor. So nothing is left behind by any death, and /dev/shm, which containers make
small, is not used. The size is address space alone: a page takes memory when it is first written.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlx.errors import Malformed

COOKIE_BYTES: Final = 32
PAGE_BYTES: Final = mmap.PAGESIZE

_NAME: Final = "rlx"
_LINK: Final = f"/memfd:{_NAME} (deleted)"
# Nobody can make the file shorter, which would end with SIGBUS whoever reads what is gone.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_OFFER: Final = struct.Struct("<16sQQQ32s")  # host, process, descriptor, bytes, cookie

OFFER_BYTES: Final = _OFFER.size


@dataclass(frozen=True, slots=True)
class Offer:
    """Where a segment is found: by a process of the same host, which knows it by its cookie."""

    host: bytes
    process: int
    descriptor: int
    size_bytes: int
    cookie: bytes

    def pack(self) -> bytes:
        """The offer as OFFER_BYTES bytes."""
        return _OFFER.pack(self.host, self.process, self.descriptor, self.size_bytes, self.cookie)

    @classmethod
    def unpack(cls, data: bytes) -> Offer:
        """What `pack` packed."""
        return cls(*_OFFER.unpack(data))


def host_id() -> bytes:
    """Sixteen bytes that processes of one running kernel share (Linux: the boot id)."""
    text = Path("/proc/sys/kernel/random/boot_id").read_text()
    return bytes.fromhex(text.strip().replace("-", ""))


NO_OFFER: Final = Offer(bytes(16), 0, 0, 0, bytes(COOKIE_BYTES))


class Segment:
    """A mapped segment; its first COOKIE_BYTES are its cookie. `close` unmaps it."""

    def __init__(self, mapping: mmap.mmap, descriptor: int | None, cookie: bytes) -> None:
        self._mapping = mapping
        self._descriptor = descriptor
        self._cookie = cookie
        self.memory = memoryview(mapping)

    @classmethod
    def create(cls, size_bytes: int) -> Segment:
        """A new segment of zeros. OSError where the system cannot have one."""
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            mapping = mmap.mmap(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        cookie = secrets.token_bytes(COOKIE_BYTES)
        mapping[:COOKIE_BYTES] = cookie
        return cls(mapping, descriptor, cookie)

    @property
    def offer(self) -> Offer:
        """What a peer needs to attach, until `withdraw`."""
        assert self._descriptor is not None
        return Offer(host_id(), os.getpid(), self._descriptor, len(self.memory), self._cookie)

    def withdraw(self) -> None:
        """Let nobody attach any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @classmethod
    def attach(cls, offer: Offer) -> Segment | None:
        """Map a peer's segment; None where it is not to be had: another host, user or container."""
        if offer.size_bytes < PAGE_BYTES or offer.host != host_id():
            return None
        # The peer may live in another process namespace, where its numbers mean other things.
        path = f"/proc/{offer.process}/fd/{offer.descriptor}"
        try:
            if os.readlink(path) != _LINK:
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return cls._mapped(descriptor, offer)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    @classmethod
    def _mapped(cls, descriptor: int, offer: Offer) -> Segment | None:
        status = os.fstat(descriptor)
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if not stat.S_ISREG(status.st_mode) or status.st_size != offer.size_bytes or not sealed:
            return None
        mapping = mmap.mmap(descriptor, offer.size_bytes)
        if not secrets.compare_digest(mapping[:COOKIE_BYTES], offer.cookie):
            mapping.close()
            return None
        return cls(mapping, None, offer.cookie)

    def close(self) -> None:
        """Unmap it. Where arrays still lie in it, that is done when the last one is gone."""
        self.withdraw()
        self.memory.release()
        with contextlib.suppress(BufferError):  # "cannot close exported pointers exist"
            self._mapping.close()

    def view(self, start: int, size_bytes: int) -> memoryview:
        """Part of the memory; one outside of it is Malformed."""
        if start < 0 or size_bytes < 0 or start + size_bytes > len(self.memory):
            raise Malformed(
                f"{size_bytes} bytes at {start} are outside of a segment of {len(self.memory)}"
            )
        return self.memory[start : start + size_bytes]

    def discard(self, start: int, stop: int) -> None:
        """Give the memory of the whole pages between `start` and `stop` back to the system."""
        first, last = -(-start // PAGE_BYTES) * PAGE_BYTES, stop // PAGE_BYTES * PAGE_BYTES
        if first < last:
            self._mapping.madvise(mmap.MADV_REMOVE, first, last - first)
