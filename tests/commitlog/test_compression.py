"""Bodies that real clients compressed, and invalid ones."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
import zlib
from typing import Any

import lz4.frame
import pytest
import zstandard

from commitlog import compression, open_log
from commitlog.compression import Compression, compression_of, decompress
from storageio import MissingExtra, StoreCorrupt
from tests.messagestore.support import BROKERS

TEXT = b"the same words again and again, " * 400
PACKED = {
    0x101: lz4.frame.compress(TEXT),
    0x201: zstandard.ZstdCompressor().compress(TEXT),
    0x301: zlib.compress(TEXT),
    0x001: zlib.compress(TEXT),
}
FLAGS = list(PACKED)


def bomb(sys_flag: int, size: int) -> bytes:
    """Return zeros, compressed as the flag says."""
    pack: Any = {0x101: lz4.frame.compress, 0x201: zstandard.ZstdCompressor().compress}.get(sys_flag, zlib.compress)
    packed: bytes = pack(bytes(size))
    return packed


@pytest.mark.parametrize("broker", BROKERS)
def test_bodies_of_real_clients(fixture_store: Any, broker: str) -> None:
    """Length and CRC of all three types are those that the producer noted before it compressed."""
    fixture = fixture_store(broker)
    acks = {ack["offsetMsgId"]: ack for ack in fixture.expected()["acks"] if ack.get("compression")}
    seen = set()
    with contextlib.closing(open_log(str(fixture.store / "commitlog"))) as log:
        for message in fixture.expected()["messages"]:
            if message["sysFlag"] & 1 and message["msgId"] in acks:
                record = log.message_at(message["physicalOffset"])
                ack = acks[message["msgId"]]
                body = decompress(record.body, record.sys_flag)
                assert (len(body), zlib.crc32(body)) == (ack["bodyLength"], ack["bodyCrc32"])
                kind = compression_of(record.sys_flag)
                assert isinstance(kind, Compression)
                assert kind.name == ack["compression"]
                seen.add(kind)
    assert seen == {Compression.LZ4, Compression.ZSTD, Compression.ZLIB}


def test_a_body_that_is_not_compressed_is_given_as_it_is() -> None:
    """The type bits are ignored, and the body is not copied."""
    for sys_flag in (0, 0x300, 0xFE):
        assert decompress(TEXT, sys_flag) is TEXT


@pytest.mark.parametrize("sys_flag", FLAGS)
def test_every_kind(sys_flag: int) -> None:
    """No type means ZLIB, as old clients sent it."""
    assert decompress(PACKED[sys_flag], sys_flag) == TEXT


@pytest.mark.parametrize("sys_flag", FLAGS)
def test_the_limit_is_exact(sys_flag: int) -> None:
    """A body of the limit is decompressed; one more byte is an error."""
    assert decompress(PACKED[sys_flag], sys_flag, limit=len(TEXT)) == TEXT
    with pytest.raises(StoreCorrupt, match="too long"):
        decompress(PACKED[sys_flag], sys_flag, limit=len(TEXT) - 1)


@pytest.mark.parametrize("sys_flag", FLAGS)
def test_a_bomb_is_named_and_not_unpacked(sys_flag: int) -> None:
    """60 MB come from a few hundred KB at most."""
    packed = bomb(sys_flag, 60_000_000)
    assert len(packed) < 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(StoreCorrupt, match="at most 1000 bytes") as caught:
            decompress(packed, sys_flag, limit=1000, file="commitlog/0", offset=77)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert (caught.value.file, caught.value.offset) == ("commitlog/0", 77)


@pytest.mark.parametrize("sys_flag", FLAGS)
def test_a_body_cut_anywhere_is_an_error(sys_flag: int) -> None:
    """An incomplete body is never returned."""
    packed = PACKED[sys_flag]
    for size in range(len(packed)):
        with pytest.raises(StoreCorrupt):
            decompress(packed[:size], sys_flag)


@pytest.mark.parametrize("sys_flag", FLAGS)
@pytest.mark.parametrize("body", [b"", b"\0" * 50, b"no frame at all", TEXT])
def test_a_body_that_is_no_frame_is_an_error(sys_flag: int, body: bytes) -> None:
    """The flag does not match the body."""
    with pytest.raises(StoreCorrupt, match="cannot be unpacked"):
        decompress(body, sys_flag)


def test_frame_that_needs_too_much_memory_raises() -> None:
    """A ZSTD frame requests its window, here 2 GiB."""
    with pytest.raises(StoreCorrupt):
        decompress(bytes.fromhex("28b52ffd00a8") + b"\x01\x00\x00", 0x201)


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_unknown_compression_type_raises(kind: int) -> None:
    """The error has the unknown number."""
    assert compression_of(kind << 8 | 1) == kind
    with pytest.raises(StoreCorrupt, match=f"found {kind}"):
        decompress(TEXT, kind << 8 | 1)


@pytest.mark.parametrize(("sys_flag", "package"), [(0x101, "lz4"), (0x201, "zstandard")])
def test_error_without_the_extra_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, sys_flag: int, package: str
) -> None:
    """ZLIB needs no extra."""
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=rf"{package}.* is not installed: pip install 'brokerstore\[compression\]'"):
        decompress(PACKED[sys_flag], sys_flag)
    assert decompress(PACKED[0x301], 0x301) == TEXT


def test_default_limit_allows_any_body() -> None:
    """It is sixteen times the greatest record."""
    assert compression.LIMIT_BYTES == 64 * 1024 * 1024
