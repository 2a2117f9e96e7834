"""Host addresses in records: 4 or 16 bytes of IP, then the port in four (docs/formats/commitlog.md#hosts)."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from storageio import InvalidMessage

from .layout import HOST_SIZE, HOST_SIZE_V6

HOST_DEFAULT = "127.0.0.1:10911"
PORT_MAX = 65535


@lru_cache(maxsize=4096)
def encode_host(text: str) -> bytes:
    """Encode `ip:port`, IPv6 in brackets, as 8 or 20 bytes.

    >>> encode_host("127.0.0.1:124").hex()
    '7f0000010000007c'
    >>> len(encode_host("[::1]:10911"))
    20
    """
    address, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise InvalidMessage(f"host {text!r}: ip:port wanted, IPv6 in brackets")
    in_brackets = address.startswith("[") and address.endswith("]")
    try:
        parsed = ip_address(address[1:-1] if in_brackets else address)
    except ValueError as error:
        raise InvalidMessage(f"host {text!r}: {error}") from error
    if isinstance(parsed, IPv6Address) != in_brackets:
        raise InvalidMessage(f"host {text!r}: IPv6 stands in brackets, IPv4 does not")
    return parsed.packed + int(port).to_bytes(4, "big")


@lru_cache(maxsize=4096)
def decode_host(data: bytes) -> str:
    """Return the text of 8 or 20 bytes.

    >>> decode_host(bytes.fromhex("7f0000010000007c"))
    '127.0.0.1:124'
    """
    if len(data) not in (HOST_SIZE, HOST_SIZE_V6):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(data)}")
    address, port = ip_address(data[:-4]), int.from_bytes(data[-4:], "big", signed=True)
    return f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"
