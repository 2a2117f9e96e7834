"""Decoders of streams: compression, AMQP 1.0, limits."""

from __future__ import annotations

import contextlib
import gzip
import random
import subprocess
import sys
import zlib

import crcmod
import crcmod.predefined
import pytest

from rabbitstore.format.amqp10 import Amqp10Reader, Described, Special, Symbol
from rabbitstore.format.amqp10_message import read_sections, to_content
from rabbitstore.stream import layout
from rabbitstore.stream.chunk import check_crc, read_head, read_records
from rabbitstore.stream.compression import unpack
from rabbitstore.stream.tracking import read_tracking
from storageio import MissingExtra, StoreCorrupt, UnsupportedFormat

TEXTS = [b"", b"a", b"abcabcabcabc" * 500, bytes(70_000), random.Random(7).randbytes(3000), b"x" * 65_537 + b"tail"]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_unpack_what_another_library_packed(name, text):
    """Blocks and frames of pyarrow and zlib come out again."""
    other = gzip if name == "gzip" else pytest.importorskip("pyarrow").Codec(name)
    packed = bytes(other.compress(text))
    if name != "gzip":
        pytest.importorskip("cramjam")
    number = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[name]
    assert unpack(number, packed, len(text), file="f", base=0) == text
    for cut in range(0, len(packed), max(len(packed) // 20, 1)):
        if text:
            with pytest.raises(StoreCorrupt):
                unpack(number, packed[:cut], len(text), file="f", base=0)


def test_framed_snappy():
    """The form of the Java client: a stream identifier, compressed and plain frames, padding."""
    pytest.importorskip("cramjam")
    block = b"\x08\x0cabcd" + b"\x01\x04"  # "abcd", then four bytes from four back
    frames = b"\xff\x06\x00\x00sNaPpY" + b"\x00" + (len(block) + 4).to_bytes(3, "little") + masked_crc(b"abcdabcd") + block
    frames += b"\x01\x07\x00\x00" + masked_crc(b"end") + b"end" + b"\xfe\x02\x00\x00\x00\x00"
    assert unpack(2, frames, 11, file="f", base=0) == b"abcdabcdend"
    with pytest.raises(StoreCorrupt):
        unpack(2, frames.replace(masked_crc(b"end"), b"crc_"), 11, file="f", base=0)


def masked_crc(text: bytes) -> bytes:
    """Return the checksum of a frame by snappy's framing_format.txt."""
    crc = crcmod.predefined.mkPredefinedCrcFun("crc-32c")(text)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


@pytest.mark.parametrize("number", [2, 3, 4])
def test_missing_library_is_named_with_its_extra(monkeypatch, number):
    """The error says what to install, and is no finding about the file."""
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingExtra, match=r"cramjam is not installed: pip install 'brokerstore\[compression\]'"):
        unpack(number, b"body", 4, file="f", base=9)


@pytest.mark.parametrize("number", [5, 6, 7])
def test_unknown_compression_is_refused_by_number(number):
    """The field has three bits, and the format has five values."""
    with pytest.raises(UnsupportedFormat, match=f"compression {number}"):
        unpack(number, b"body", 4, file="f", base=9)


def test_a_bomb_is_refused():
    """A claimed size above the limit, and more bytes than claimed, are damage."""
    packed = gzip.compress(bytes(1 << 20))
    for size in (1 << 31, 1000):
        with pytest.raises(StoreCorrupt):
            unpack(1, packed, size, file="f", base=0)
    pytest.importorskip("cramjam")
    for name, number in (("snappy", 2), ("lz4", 3), ("zstd", 4)):
        bomb = bytes(pytest.importorskip("pyarrow").Codec(name).compress(bytes(1 << 20)))
        for size in (1 << 31, 1000):
            with pytest.raises(StoreCorrupt):
                unpack(number, bomb, size, file="f", base=0)


PEAK = """
import resource, sys
from pathlib import Path
from rabbitstore.stream.compression import unpack
from storageio import StoreCorrupt
packed = Path(sys.argv[2]).read_bytes()
import cramjam
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    unpack(int(sys.argv[1]), packed, 1000, file="f", base=0)
except StoreCorrupt:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(("name", "number"), [("snappy", 2), ("lz4", 3), ("zstd", 4)])
def test_bomb_takes_no_more_memory_than_it_claims(tmp_path, name, number):
    """A body of 256 MiB that claims 1,000 bytes stops after those."""
    module = getattr(pytest.importorskip("cramjam"), name)
    (tmp_path / "packed").write_bytes(bytes(module.compress(bytes(256 << 20))))
    ran = subprocess.run([sys.executable, "-c", PEAK, str(number), tmp_path / "packed"], capture_output=True, check=True)
    assert int(ran.stdout) < 64 << 10  # KiB


def chunk(data, *, entries=1, records=1, trailer=b"", chunk_id=5):
    """Return a user chunk by the table of the format page."""
    crc = zlib.crc32(data)
    head = layout.CHUNK_HEAD.pack(0x50, 0, entries, records, 1000, 1, chunk_id, crc, len(data), len(trailer), 0, bytes(3))
    return head + data + trailer


def test_a_sub_batch_among_entries():
    """Offsets count the messages of a sub-batch."""
    inner = b"\x00\x00\x00\x01a\x00\x00\x00\x02bc"
    packed = gzip.compress(inner)
    batch = bytes((0x80 | 1 << 4,)) + b"\x00\x02" + len(inner).to_bytes(4, "big") + len(packed).to_bytes(4, "big") + packed
    data = chunk(b"\x00\x00\x00\x01x" + batch + b"\x00\x00\x00\x00", entries=3, records=4)
    found = read_head(data, 0, "f")
    check_crc(data, found, "f")
    assert [(record.offset, record.data) for record in read_records(data, found, "f")] == [
        (5, b"x"),
        (6, b"a"),
        (7, b"bc"),
        (8, b""),
    ]


@pytest.mark.parametrize("records", [1, 3, 5, 65_535])
def test_counts_that_do_not_fit(records):
    """The head's number of records must be that of the entries."""
    data = chunk(b"\x00\x00\x00\x01x" * 2, entries=2 if records > 1 else 1, records=records)
    with pytest.raises(StoreCorrupt):
        read_records(data, read_head(data, 0, "f"), "f")


@pytest.mark.parametrize("chunk_id", [1 << 62, (1 << 64) - 1])
def test_an_offset_that_no_stream_reaches(chunk_id):
    """No checksum covers the head, and the name of a file can have any twenty digits."""
    assert read_head(chunk(b"\0\0\0\0", chunk_id=(1 << 62) - 1), 0, "f").chunk_id == (1 << 62) - 1
    with pytest.raises(StoreCorrupt, match="chunk id"):
        read_head(chunk(b"\0\0\0\0", chunk_id=chunk_id), 0, "f")


def test_tracking_entries():
    """The three types; a sequence in a snapshot has its chunk id before the value."""
    number = (7).to_bytes(8, "big")
    plain = b"\x00\x01p" + number + b"\x01\x02c1" + number + b"\x02\x01t" + number
    found = read_tracking(plain, 0, len(plain), "f")
    assert (found.sequences, found.offsets, found.timestamps) == ({"p": 7}, {"c1": 7}, {"t": 7})
    kept = b"\x00\x01p" + (3).to_bytes(8, "big") + number
    assert read_tracking(kept, 0, len(kept), "f", is_snapshot=True).sequences == {"p": 7}
    with pytest.raises(UnsupportedFormat, match="tracking type 3"):
        read_tracking(b"\x03\x00" + number, 0, 10, "f")
    with pytest.raises(StoreCorrupt):
        read_tracking(plain, 0, len(plain) - 1, "f")


AMQP = [
    ("40", None),
    ("41", True),
    ("5600", False),
    ("43", 0),
    ("5405", 5),
    ("55ff", -1),
    ("80000000000000000a", 10),
    ("a103616263", "abc"),
    ("b30000000161", Symbol("a")),
    ("a0020001", b"\0\1"),
    ("8300000000000003e8", Special("timestamp", 1000)),
    ("723fc00000", Special("float", 1.5)),
    ("823ff8000000000000", 1.5),
    ("45", []),
    ("c0050350014142", [1, True, False]),
    ("c1050254015402", {1: 2}),
    ("e00402540102", [1, 2]),
    ("0053754101"[:6] + "a00161", Described(0x75, b"a")),
]


@pytest.mark.parametrize(("text", "value"), AMQP)
def test_values_of_amqp_1_0(text, value):
    """Encodings are those of the AMQP 1.0 specification (part 1, 1.6)."""
    data = bytes.fromhex(text)
    reader = Amqp10Reader(data)
    assert reader.value() == value and reader.at == len(data)
    for cut in range(len(data)):
        with pytest.raises(StoreCorrupt):
            Amqp10Reader(data[:cut]).value()


def test_a_deep_value_is_refused():
    """The depth of nesting is limited."""
    for prefix in (b"\x00", b"\xd0\x00\x00\xff\xff\x00\x00\x00\x01", b"\xf0\x00\x00\xff\xff\x00\x00\x00\x01"):
        with pytest.raises(StoreCorrupt):
            Amqp10Reader(prefix * 5000).value()


@pytest.mark.deep
def test_random_bytes_never_crash():
    """A decoder returns or raises one of the two named errors."""
    chance = random.Random(11)
    good = bytes.fromhex("005370c003024140") + bytes.fromhex("005372c10aa303782d61a103616263") + bytes.fromhex("005375a00161")
    for number in range(60_000):
        data = bytearray(good if number % 2 else chance.randbytes(40))
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for decoder in (
            lambda data: to_content(read_sections(data), "/"),
            lambda data: unpack(2, data, 100, file="f", base=0),
            lambda data: unpack(3, b"\x04\x22\x4d\x18\x40\x40\x00" + data, 100, file="f", base=0),
            lambda data: read_records(chunk(data), read_head(chunk(data), 0, "f"), "f"),
            lambda data: read_tracking(data, 0, len(data), "f"),
        ):
            with contextlib.suppress(StoreCorrupt, UnsupportedFormat):
                decoder(bytes(data))
