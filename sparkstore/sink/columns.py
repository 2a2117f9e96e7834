"""Convert the columns of a data frame to messages that every store of this configuration accepts.

    topic              string; not needed with the option `topic`
    body               binary, or string (UTF-8)
    queue_id           a whole number; null, -1 or no column: chosen by the first key, else round robin
    keys               array<string>, or string with the keys separated by spaces
    tags               string
    properties         map<string,string>
    flag, sys_flag, reconsume_times, born_timestamp_ms     whole numbers
    born_host          string, `ip:port`

The source uses the same names and types, so rows that were read can be written.  A task detects here everything that a store
would reject, before anything is appended; the error names the row.

KEYS and TAGS in `properties` apply where the columns are null or missing.  A message's own UNIQ_KEY becomes its
ORIGIN_MESSAGE_ID, since the sink sets a new UNIQ_KEY (`commit.py`).  Checksums are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from commitlog import Message, check_number_properties, encode_host, encode_properties
from commitlog.layout import CRC_SIZE, PROPERTIES_SIZE_MAX, QUEUES_MAX, TRANSACTION_MASK
from messagestore.write.admission import topic_problem
from storageio import InvalidMessage
from storebytes.java_hash import java_hash_code

from ..errors import MissingColumn, UnknownColumn
from .options import SINK_ID_SIZE_MAX

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = ("int", "bigint", "smallint", "tinyint")
COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "queue_id": _WHOLE,
    "keys": ("array<string>", "string"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "flag": _WHOLE,
    "sys_flag": _WHOLE,
    "reconsume_times": _WHOLE,
    "born_timestamp_ms": _WHOLE,
    "born_host": ("string",),
}
OF_KAFKA = {"value": "body", "key": "keys", "partition": "queue_id", "headers": "properties", "timestamp": "born_timestamp_ms"}
UNIQUE_KEY = "UNIQ_KEY"  # RocketMQ's own: a client's id of a message, which the index holds beside its keys
ORIGIN = "ORIGIN_MESSAGE_ID"  # RocketMQ's own: the id that a message had before it was put again
ROWS = "SINK_ROWS"  # how many messages a batch has; on its last one
CHECKSUM = "__CRC32#"
# A broker would hold such a message back and store it under another topic.
DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
_REPORTED = DELAYS | {"KEYS", "TAGS", ROWS, CHECKSUM, UNIQUE_KEY}
_NUMBER_SIZE = 20  # digits of the largest
OWN_SIZE_MAX = len(UNIQUE_KEY) + 1 + SINK_ID_SIZE_MAX + 2 * (1 + _NUMBER_SIZE) + 1 + len(ROWS) + 1 + _NUMBER_SIZE + 1
PROPERTIES_CAPACITY = PROPERTIES_SIZE_MAX - OWN_SIZE_MAX - CRC_SIZE
NO_QUEUE = -1
Pairs = list[tuple[str, str]]
_SMALL = (("flag", 31), ("sys_flag", 31), ("reconsume_times", 31), ("born_timestamp_ms", 63))


def check_columns(kinds: Mapping[str, str], topic: str | None) -> None:
    """Check column names and types (Spark's simple type names).  Raises `MissingColumn` or `UnknownColumn`."""
    for name, kind in kinds.items():
        if name not in COLUMNS:
            ours = f"; {name!r} of Kafka's sink is {OF_KAFKA[name]!r} here" if name in OF_KAFKA else ""
            raise UnknownColumn(f"unknown column {name!r} for the sink; the columns are {', '.join(COLUMNS)}{ours}")
        if kind not in COLUMNS[name]:
            raise UnknownColumn(f"column {name!r}: expected {' or '.join(COLUMNS[name])}, found {kind}")
    if "body" not in kinds:
        raise MissingColumn("the sink needs a column 'body'")
    if "topic" not in kinds and topic is None:
        raise MissingColumn("the sink needs a column 'topic', or the option topic")


def staged_schema() -> pa.Schema:
    """Return the schema of a staged part: whole messages except UNIQ_KEY, which depends on their position in the batch."""
    import pyarrow as pa  # 150 ms

    return pa.schema([
        ("topic", pa.string()), ("queue_id", pa.int32()), ("key_hash", pa.int32()), ("body", pa.binary()),
        ("properties", pa.binary()), ("flag", pa.int32()), ("sys_flag", pa.int32()), ("reconsume_times", pa.int32()),
        ("born_timestamp_ms", pa.int64()), ("born_host", pa.string()),
    ])  # fmt: skip


class Encoder:
    """Encodes the batches of one task in order."""

    def __init__(self, topic: str | None, body_size_max: int, where: str) -> None:
        """Encode for one topic or, if None, by the column; `where` names the task in errors."""
        self._topic = topic
        self._body_size_max = body_size_max
        self._where = where
        self._done = 0  # rows of earlier batches
        self._good_topics: set[str] = set()
        self._good_hosts: set[str | None] = {None}

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the staged schema.  Raises `InvalidMessage` for the first invalid row."""
        import pyarrow as pa  # 150 ms

        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        topics = self._topics(given, batch.num_rows)
        queue_ids = self._queue_ids(given, batch.num_rows)
        properties, key_hashes = self._properties(given, topics, queue_ids)
        columns: dict[str, Any] = {
            "topic": pa.array(topics, pa.string()),
            "queue_id": pa.array(queue_ids, pa.int32()),
            "key_hash": pa.array(key_hashes, pa.int32()),
            "body": self._bodies(given["body"]),
            "properties": pa.array(properties, pa.binary()),
            "born_host": self._hosts(given, batch.num_rows),
        }
        columns |= {name: self._numbers(given, name, bits, batch.num_rows) for name, bits in _SMALL}
        self._done += batch.num_rows
        schema = staged_schema()
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _refuse(self, row: int, why: object) -> InvalidMessage:
        return InvalidMessage(f"row {self._done + row} of {self._where}: {why}")

    def _topics(self, given: dict[str, Any], rows: int) -> list[str]:
        topics = [self._topic] * rows if self._topic is not None else given["topic"].to_pylist()
        for row, topic in enumerate(topics):
            if topic in self._good_topics:
                continue
            problem = "topic is null" if topic is None else topic_problem(topic)
            if problem:
                raise self._refuse(row, problem)
            self._good_topics.add(topic)
        return topics

    def _bodies(self, bodies: Any) -> Any:
        """Return the bodies as bytes.  Raises `InvalidMessage` for one that is null or too long."""
        import pyarrow as pa  # 150 ms
        import pyarrow.compute as pc

        if bodies.null_count:
            raise self._refuse(pc.index(bodies.is_null(), True).as_py(), "body is null")
        found = bodies.cast(pa.binary())
        longest = pc.max(pc.binary_length(found)).as_py() if len(found) else 0
        if longest > self._body_size_max:
            row = pc.index(pc.binary_length(found), longest).as_py()
            raise self._refuse(row, f"body of {longest} bytes; at most {self._body_size_max} (option maxMessageSize)")
        return found

    def _queue_ids(self, given: dict[str, Any], rows: int) -> list[int]:
        if "queue_id" not in given:
            return [NO_QUEUE] * rows
        found: list[int] = given["queue_id"].fill_null(NO_QUEUE).to_pylist()
        for row, queue_id in enumerate(found):
            if not NO_QUEUE <= queue_id < QUEUES_MAX:
                raise self._refuse(row, f"queue_id {queue_id}: 0 to {QUEUES_MAX - 1}, or -1 for any")
        return found

    def _numbers(self, given: dict[str, Any], name: str, bits: int, rows: int) -> Any:
        """Return an integer field; null is 0.  Flags of a transaction are rejected: only a broker may write them."""
        import pyarrow as pa  # 150 ms

        kind = pa.int32() if bits == 31 else pa.int64()
        if name not in given:
            return pa.array([0] * rows, kind)
        found = given[name].fill_null(0).to_pylist()
        for row, number in enumerate(found):
            if not -(1 << bits) <= number < 1 << bits:
                raise self._refuse(row, f"{name} {number} does not fit {bits + 1} bits")
            if name == "sys_flag" and number & TRANSACTION_MASK:
                raise self._refuse(row, f"sys_flag {number}: part of a transaction")
        return pa.array(found, kind)

    def _hosts(self, given: dict[str, Any], rows: int) -> Any:
        import pyarrow as pa  # 150 ms

        found = given["born_host"].to_pylist() if "born_host" in given else [None] * rows
        for row, host in enumerate(found):
            if host not in self._good_hosts:
                try:
                    encode_host(host)
                except InvalidMessage as error:
                    raise self._refuse(row, error) from error
                self._good_hosts.add(host)
        return pa.array(found, pa.string())

    # Properties

    def _properties(
        self, given: dict[str, Any], topics: list[str], queue_ids: list[int]
    ) -> tuple[list[bytes], list[int | None]]:
        """Return each row's encoded properties, and its first key's hash where that chooses the queue."""
        encoded: list[bytes] = []
        hashes: list[int | None] = []
        for row, (topic, keys, tags, brought) in enumerate(_rows(given, topics)):
            try:
                pairs = _without_own(dict(brought), bool(keys), bool(tags)) if brought else None
                text = encode_properties(Message(topic, b"", tags, keys, pairs))
                check_number_properties(topic, text)
                if len(text) > PROPERTIES_CAPACITY:
                    raise InvalidMessage(f"properties of {len(text)} bytes; the sink has room for {PROPERTIES_CAPACITY}")
            except (InvalidMessage, TypeError) as error:
                raise self._refuse(row, error) from error
            encoded.append(text)
            first = None if queue_ids[row] != NO_QUEUE else keys[0] if keys else _first_word(pairs)
            hashes.append(None if first is None else java_hash_code(first) & 0x7FFFFFFF)
        return encoded, hashes


def _rows(given: dict[str, Any], topics: list[str]) -> Iterator[tuple[str, list[str] | None, str | None, Pairs | None]]:
    """Yield topic, keys, tags and other properties of each row."""
    rows = len(topics)
    keys, tags, pairs = (
        [None] * rows if name not in given else given[name].to_pylist() for name in ("keys", "tags", "properties")
    )
    for topic, words, tag, found in zip(topics, keys, tags, pairs, strict=True):
        listed = [word for word in words.split(" ") if word] if isinstance(words, str) else words
        yield topic, listed or None, tag, found


def _without_own(pairs: dict[str, str], has_keys: bool, has_tags: bool) -> dict[str, str]:
    """Remove the properties that the sink or a column sets."""
    if _REPORTED.isdisjoint(pairs):
        return pairs
    for name, is_reported in (("KEYS", has_keys), ("TAGS", has_tags), (ROWS, True), (CHECKSUM, True)):
        if is_reported:
            pairs.pop(name, None)
    held = DELAYS & pairs.keys()
    if held:
        raise InvalidMessage(
            f"property {min(held)}: the sink rejects delayed messages; remove the property or send it to a broker"
        )
    unique = pairs.pop(UNIQUE_KEY, None)
    if unique:
        pairs.setdefault(ORIGIN, unique)
    return pairs


def _first_word(pairs: dict[str, str] | None) -> str | None:
    words = pairs["KEYS"].split() if pairs and "KEYS" in pairs else None
    return words[0] if words else None
