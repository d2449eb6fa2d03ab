"""Addresses as they are given: host and port, never looked up in reverse. Opens no connection."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, TypeAlias

from rlx.errors import ConnectError

Address: TypeAlias = tuple[Any, ...]
"""(host, port, ...), as `socket.getsockname()` gives it for IPv4 and IPv6."""


def show_address(address: Address) -> str:
    """host:port, as one would type it; [host]:port for IPv6."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether an address is one that only this machine can reach. A name is not an address."""
    address = _parse(host)
    if address is None:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether binding to `host` means every interface of the machine."""
    address = _parse(host)
    return host == "" or (address is not None and address.is_unspecified)


def is_literal(host: str) -> bool:
    """Whether `host` is an IP address rather than a name."""
    return _parse(host) is not None


def resolve(address: Address) -> tuple[socket.AddressFamily, Address]:
    """The family and socket address to connect or bind to. A literal address stays as it is."""
    host, port = address[0], address[1]
    flags = socket.AI_NUMERICHOST if is_literal(host) else 0
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, ValueError) as error:  # ValueError: it cannot be encoded, or holds a NUL.
        raise ConnectError(
            f"the host of {show_address(address)} cannot be resolved ({error}); give its IP address"
        ) from error
    family, _, _, _, where = found[0]
    return family, where


def _parse(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
