"""The fast path of a single append, which writes properties without an object: the result is the same."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from random import Random
from typing import Any

import pytest

from storageio import InvalidMessage
from tests.builds import World
from tests.commitlog.logs import MemoryLog

WORDS = ("a", "paid", "two words", "", "é", "\x01", "b\x02", "x" * 40, "__CRC32#", "a__CRC32#", "INNER_NUM", "\ud800", "0", "7")
NAMES = (*WORDS, "DELAY", "INNER_BASE", "KEYS", "UNIQ_KEY", "INNER_MULTI_QUEUE_OFFSET")


@pytest.fixture
def quick(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Enable the fast path in the plain build, whose lock is then not safe from interrupts; none occur here."""
    if world.build == "plain":
        kernel = world.module("commitlog._append_cy")
        monkeypatch.setattr(kernel, "take_now", lambda lock: lock.acquire(False))
        monkeypatch.setattr(kernel, "give", lambda lock: lock.release())
    return world


def any_message(world: World, random: Random) -> Any:
    """Generate messages, most of which can be written."""
    words = WORDS[:4] if random.random() < 0.7 else WORDS
    names = [name for name in random.sample(NAMES, random.randrange(4)) if random.random() < 0.5 or name not in WORDS]
    properties = {name: random.choice(words) for name in names}
    keys = random.choice((None, random.choice(words), random.choices(words, k=random.randrange(4))))
    tags = random.choice((None, random.choice(words)))
    return world.commitlog.Message("t", b"body", queue_id=0, tags=tags, keys=keys, properties=properties)


def outcome(log: MemoryLog, *messages: Any) -> Iterator[object]:
    """Return the result of each append, the content of the log, and whether the lock is free."""
    for message in messages:
        try:
            result = log.appender.append(message)
            yield result.status.name, result.physical_offset, result.queue_offset, result.size_bytes
        except InvalidMessage as error:
            yield str(error)
        yield log.bytes
        yield log.appender.lock.locked()


@pytest.mark.parametrize("seed", range(3))
def test_quick_append_equals_an_append_of_encoded_properties(quick: World, seed: int) -> None:
    """Bytes and reasons are equal; a rejected message leaves log, queue offsets and lock unchanged."""
    random = Random(seed)
    encode = quick.module("commitlog._message_cy").encode_properties
    short, long = MemoryLog(quick, 8192, with_crc=bool(seed)), MemoryLog(quick, 8192, with_crc=bool(seed))
    refused = 0
    for _ in range(150):
        message = any_message(quick, random)
        found = list(outcome(short, message))
        try:
            encoded = quick.commitlog.Message("t", b"body", queue_id=0, properties_raw=encode(message))
        except InvalidMessage as error:
            refused += 1
            assert found == [str(error), long.bytes, False]
            continue
        assert found == list(outcome(long, encoded))
    assert 10 < refused < 100


@pytest.mark.parametrize("with_crc", [True, False])
@pytest.mark.parametrize("size", [32_700, 32_739, 32_740, 32_760, 32_761, 32_768, 40_000])
def test_properties_as_long_as_16_bits_are_written_whole_or_not_at_all(quick: World, size: int, with_crc: bool) -> None:
    """With the checksum they may have 20 bytes less; the buffer for them has no more room."""
    log = MemoryLog(quick, with_crc=with_crc)
    message = quick.commitlog.Message("t", b"x", queue_id=0, tags="T" * (size - 6))
    result = log.appender.append(message)
    fits = size + (20 if with_crc else 0) <= 32_767
    assert result.status.name == ("PUT_OK" if fits else "PROPERTIES_SIZE_EXCEEDED")
    assert (b"TAGS\x01" + b"T" * (size - 6) + b"\x02" in log.bytes) == fits and not log.appender.lock.locked()


def test_append_with_an_invalid_queue_id_releases_the_lock(quick: World) -> None:
    """The log stays unchanged, and the next message is appended."""
    log = MemoryLog(quick)
    with pytest.raises(InvalidMessage, match="queue id -1"):
        log.appender.append(quick.commitlog.Message("t", b"x"))
    assert not log.appender.lock.locked()
    assert log.appender.append(quick.commitlog.Message("t", b"x"), 0).physical_offset == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": {"a": None}}, {"properties": {"a": 5}}, {"properties": {5: "a"}}, {"keys": ["a", None]},
        {"keys": ["a", 5]}, {"tags": "\x01"},
    ],
)  # fmt: skip
def test_append_of_a_value_that_is_not_text_releases_the_lock(quick: World, wrong: dict[str, Any]) -> None:
    """Other text was already in the buffer; log and queue offset stay unchanged.  The fields change after their check."""
    log = MemoryLog(quick)
    message = quick.commitlog.Message("t", b"x", queue_id=0, keys=["k"])
    if "keys" in wrong:
        message.keys[:] = wrong["keys"]
    else:
        setattr(message, *next(iter(wrong.items())))
    with pytest.raises(InvalidMessage):
        log.appender.append(message)
    assert (log.files, log.offsets.next_offset("t", 0), log.appender.lock.locked()) == ([], 0, False)


class Tag(StrEnum):
    """A subclass of str."""

    PAID = "paid"


def test_text_of_a_str_subclass_is_written_as_its_text(quick: World) -> None:
    """As a value, a name or a key it keeps the other keys, tags and properties of the message."""
    given, plain = MemoryLog(quick), MemoryLog(quick)
    for log, text in ((given, Tag.PAID), (plain, "paid")):
        for more in ({"properties": {"a": text}}, {"properties": {text: "a"}}, {"keys": ["k", text]}):
            message = quick.commitlog.Message("t", b"x", queue_id=0, tags="t", **{"keys": ["k"], **more})
            log.appender.append(message)
            log.appender.append_many([message])
    assert given.bytes == plain.bytes and given.bytes.count(b"paid") == 6


@pytest.mark.parametrize("many", [False, True], ids=["keys", "keys-and-tags"])
def test_append_many_with_a_full_property_buffer_equals_single_appends(quick: World, many: bool) -> None:
    """This covers every number of bytes left for the last message's keys and tags."""
    for size in range(95, 130):
        messages = [
            quick.commitlog.Message("t", b"x", queue_id=0, keys="k" * size, born_timestamp_ms=1),
            quick.commitlog.Message("t", b"y", queue_id=0, keys="l", tags="m" if many else None, born_timestamp_ms=1),
        ]
        together, apart = MemoryLog(quick), MemoryLog(quick)
        assert together.appender.append_many(messages).message_count == 2
        for message in messages:
            apart.appender.append(message)
        assert together.bytes == apart.bytes


def test_repr_of_results_and_messages_has_offsets_and_no_body(quick: World) -> None:
    """A program's log file that prints them stays short."""
    log = MemoryLog(quick)
    result = log.appender.append(quick.commitlog.Message("t", b"secret", queue_id=3))
    stored = quick.module("commitlog._scan_cy").Reader(log.files[0]).decode(0)
    assert repr(result) == "PutResult(PUT_OK, physical_offset=0, queue_id=3, queue_offset=0, messages=1)"
    assert repr(stored) == "StoredMessage('t', queue_id=3, queue_offset=0, physical_offset=0, body=6 bytes)"
