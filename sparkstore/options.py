"""Parse the options of reading.

    path                 one folder, several (`load([a, b])` or with commas), or a glob; `protocol://...` is read through fsspec
    columns              columns to build, separated by commas, instead of all
    topic, subscribe     a topic, or several separated by commas
    subscribePattern     a regular expression that the whole name of a topic matches
    assign               queues as JSON {"topic": [0, 1]}
    queueId              a number, or several separated by commas
    startingOffsets      earliest (default), a physical offset, or JSON {"topic": {"0": queue offset}}; -2 is the first and -1
                         the next message of a queue.  A queue that is not named begins with its first
    endingOffsets        latest (default), the same; exclusive.  A queue that is not named ends with its last
    startingGroup        a consumer group: each queue begins where it has committed, or with its first message
    startingTimestamp    store time in milliseconds or ISO 8601 with a zone, inclusive
    endingTimestamp      the same, exclusive
    startingOffsetsByTimestamp    store times of single queues, JSON {"topic": {"0": milliseconds}}
    key                  messages with this key or this UNIQ_KEY
    bodyDecoding         stored (default): the bytes in the log; plain: decompressed if a client compressed them
    checkCrc             auto (default): where bodies are read; true; false
    badRecords           fail (default), skip, report: as a row of the column `problem`
    failOnDataLoss       true (default): deletion by retention of requested messages is an error; false: they are skipped
    splitBytes           maximum bytes of one task (default 256m); 0: one task per file
    batchRows            rows of one Arrow batch (default 8192)
    fileBytes            size of the log's files, if it cannot be detected
    pushFilters          true: evaluate `where(...)` on numbers, times and topic; needs
                         spark.sql.python.filterPushdown.enabled.  Load anew for each query: Spark 4.3 keeps the reader of a
                         DataFrame, so a later query without conditions would return only the rows of the one before
    trace                true: errors come with Python's stack (default false: one line)
    vhost, queue         for RabbitMQ folders, which otherwise take path, columns, badRecords and batchRows

Names are those of Spark's Kafka source where it has one.  An unknown option is an error; that of one of
Kafka's which has no meaning here says what to use instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from .errors import BadOption

SPLIT_BYTES = 256 << 20  # a smaller task takes longer to start than to read
BATCH_ROWS = 8192
BATCH_ROWS_MAX = 1 << 20
TASKS_MAX = 10_000
QUEUES_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAIL, SKIP, REPORT = "fail", "skip", "report"
STORED, PLAIN = "stored", "plain"
_WORDS = {"true": True, "false": False}
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LATEST = -1  # Kafka's numbers for the two ends of a queue
_EARLIEST = -2
NAMES = (
    "path", "paths", "columns", "topic", "subscribePattern", "assign", "queueId", "startingOffsets", "endingOffsets",
    "startingGroup", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "key", "bodyDecoding", "checkCrc", "badRecords", "failOnDataLoss", "splitBytes", "batchRows", "fileBytes", "pushFilters",
    "vhost", "queue", "trace",
)  # fmt: skip

ONLY_ROCKETMQ = (
    "topic", "subscribePattern", "assign", "queueId", "startingOffsets", "endingOffsets", "startingGroup",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "key", "bodyDecoding",
    "checkCrc", "failOnDataLoss", "splitBytes", "fileBytes", "pushFilters",
)  # fmt: skip
ALIASES = {"subscribe": "topic", "maxOffsetsPerTrigger": "maxMessagesPerTrigger"}  # Kafka's name -> ours
_INSTEAD = {  # what to use instead of an option of Kafka's source
    "kafka.bootstrap.servers": "load(path) names the folder",
    "kafka.group.id": "startingGroup begins where a group has committed; a read commits nothing",
    "groupidprefix": "a read is no member of a group",
    "includeheaders": "the column properties has them",
    "minpartitions": "splitBytes sets the size of a task",
    "maxrecordsperpartition": "splitBytes sets the size of a task",
    "endingoffsetsbytimestamp": "endingTimestamp ends all queues at one time",
    "startingoffsetsbytimestampstrategy": "a queue without a message at or after the time gives none",
    "kafkaconsumer.polltimeoutms": "a folder is read without a broker",
    "fetchoffset.numretries": "a folder is read without a broker",
    "fetchoffset.retryintervalms": "a folder is read without a broker",
}
ONLY_RABBITMQ = ("vhost", "queue")

QueueKey = tuple[str, int]


class OffsetBounds(NamedTuple):
    """A start or an end: one physical offset, and queue offsets of single queues."""

    physical_offset: int
    queues: Mapping[QueueKey, int]
    is_physical: bool = False  # a physical offset was given, not a word


EARLIEST, LATEST = OffsetBounds(0, {}), OffsetBounds(OFFSET_MAX, {})


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a read.  Ranges are half-open; times are in milliseconds."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    assigned: frozenset[QueueKey] | None = None
    queue_ids: frozenset[int] | None = None
    start: OffsetBounds = EARLIEST
    stop: OffsetBounds = LATEST
    group: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    queue_times: Mapping[QueueKey, int] = field(default_factory=dict)
    key: str | None = None
    is_plain: bool = False
    check_crc: bool | None = None
    bad_records: str = FAIL
    fail_on_data_loss: bool = True
    split_bytes: int = SPLIT_BYTES
    batch_rows: int = BATCH_ROWS
    file_bytes: int | None = None
    push_filters: bool = False
    vhost: str | None = None
    queue: str | None = None
    shows_trace: bool = False
    given: frozenset[str] = field(default_factory=frozenset)

    def accepts_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a read with these options takes messages of a queue."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None)
            and (self.queue_ids is None or queue_id in self.queue_ids)
            and (self.assigned is None or (topic, queue_id) in self.assigned)
        )

    @property
    def has_store_column(self) -> bool:
        """Return whether rows have the column `store` by default: for several folders or a pattern."""
        return is_several(self.paths)


def parse_read_options(options: Mapping[str, str], also: Iterable[str] = ()) -> ReadOptions:
    """Parse options; `also` names further allowed ones.  Raises `BadOption`."""
    given = GivenOptions(by_our_names(options))
    given.check({name.lower() for name in (*NAMES, *also)})
    made = ReadOptions(
        paths=_paths(given),
        columns=given.names("columns"),
        topics=given.words("topic"),
        topic_pattern=_pattern(given),
        assigned=_assigned(given),
        queue_ids=_queue_ids(given),
        start=_bounds(given, "startingOffsets", "earliest", 0),
        stop=_bounds(given, "endingOffsets", "latest", OFFSET_MAX),
        group=given.name("startingGroup"),
        begin_ms=given.time_ms("startingTimestamp"),
        end_ms=given.time_ms("endingTimestamp"),
        queue_times=_queue_times(given),
        key=given.name("key"),
        is_plain=given.one_of("bodyDecoding", (STORED, PLAIN)) == PLAIN,
        check_crc=given.flag("checkCrc") if given.text("checkCrc") != "auto" else None,
        bad_records=given.one_of("badRecords", (FAIL, SKIP, REPORT)),
        fail_on_data_loss=given.flag("failOnDataLoss") is not False,
        split_bytes=given.size("splitBytes", SPLIT_BYTES),
        batch_rows=given.size("batchRows", BATCH_ROWS),
        file_bytes=given.size("fileBytes", 0) or None,
        push_filters=bool(given.flag("pushFilters")),
        vhost=given.name("vhost"),
        queue=given.name("queue"),
        shows_trace=bool(given.flag("trace")),
        given=frozenset(given.options),
    )
    if not 1 <= made.batch_rows <= BATCH_ROWS_MAX:
        raise BadOption(f"option batchRows: expected 1 to {BATCH_ROWS_MAX}, found {made.batch_rows}")
    _check_one_of(given, "topic", "subscribePattern", "assign")
    _check_one_of(given, "startingOffsets", "startingGroup", "startingOffsetsByTimestamp")
    return made


def by_our_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that are given, by lower-case names, with ours instead of their aliases.  Raises `BadOption`."""
    found = {name.lower(): value for name, value in options.items() if value is not None}
    for alias, name in ALIASES.items():
        value = found.pop(alias.lower(), None)
        if value is not None and found.setdefault(name.lower(), value) != value:
            raise BadOption(f"options {alias} and {name}: two names of one option with different values")
    return found


def paths_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of a read.  Raises `BadOption` without any."""
    return _paths(GivenOptions(by_our_names(options)))


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Convert Python values to the strings that Spark passes on; None means not given.

    A time with a zone becomes its milliseconds.  Raises `BadOption` for a value that is not a string, an integer, a boolean or
    such a time, since its text would be ambiguous.
    """
    found = {}
    for name, value in options.items():
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = _ms_of(value)
        if value is not None and not isinstance(value, str | int):
            raise BadOption(f"option {name}: expected a string, an integer or a boolean, found {value!r}")
        if value is not None:
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _ms_of(time: datetime) -> int:
    """Return milliseconds, rounded up: a range begins at a time, or ends before it."""
    return -((EPOCH - time) // timedelta(milliseconds=1))


def refuse_foreign_options(options: ReadOptions, *, is_rabbit: bool) -> None:
    """Raise `BadOption` for an option that does not apply to this kind of store."""
    for name in ONLY_ROCKETMQ if is_rabbit else ONLY_RABBITMQ:
        if name.lower() in options.given:
            kinds = ("RocketMQ", "RabbitMQ") if is_rabbit else ("RabbitMQ", "RocketMQ")
            raise BadOption(f"option {name}: applies to {kinds[0]} stores only, and this is a {kinds[1]} store")


def is_several(path: str | Sequence[str]) -> bool:
    """Return whether a path may name several stores: a list, a comma-separated string, or a pattern.

    >>> is_several("/data/store"), is_several("/data/*"), is_several("/a,/b")
    (False, True, True)
    """
    paths = [part for part in path.split(",") if part.strip()] if isinstance(path, str) else path
    return len(paths) > 1 or any(is_pattern(one) for one in paths)


def is_pattern(path: str) -> bool:
    """Return whether a path is a glob pattern."""
    return any(letter in path for letter in "*?[")


def size_of(text: str) -> int:
    """Parse a number of bytes with an optional suffix k, m or g.

    >>> size_of("64m")
    67108864
    """
    number, unit = (text[:-1], _UNITS[text[-1:].lower()]) if text[-1:].lower() in _UNITS else (text, 1)
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise ValueError(text)
    return int(number) * unit


def check_tasks(text: str | int) -> int:
    """How many tasks a job merges with, from its option or parameter.  Raises `BadOption`."""
    number = int(text) if str(text).isascii() and str(text).isdigit() and len(str(text)) < 10 else 0
    if not 1 <= number <= TASKS_MAX:
        raise BadOption(f"option tasks: 1 to {TASKS_MAX} wanted, found {text!r}")
    return number


class GivenOptions:
    """The options that are given; each method raises `BadOption` for a value of another form."""

    def __init__(self, options: dict[str, str]) -> None:
        """`options` are by lower-case names."""
        self.options = options

    def check(self, known: set[str]) -> None:
        """Raise `BadOption` for an option that is not known."""
        unknown = sorted(set(self.options) - known)
        for name in unknown:
            instead = _INSTEAD.get(name) or (_INSTEAD["kafka.bootstrap.servers"] if name.startswith("kafka.") else None)
            if instead:
                raise BadOption(f"option {name} of Spark's Kafka source: {instead}")
        if unknown:
            raise BadOption(f"unknown option {unknown[0]!r}; the options are {', '.join(NAMES)}")

    def text(self, name: str) -> str | None:
        """Return the value as it is; None if the option is not given, as all but the last two do."""
        return self.options.get(name.lower())

    def name(self, name: str) -> str | None:
        """Return a string that is not blank."""
        text = self.text(name)
        if text is not None and not text.strip():
            raise BadOption(f"option {name}: expected a name, found {text!r}")
        return text

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return the different words between commas, in their order."""
        text = self.text(name)
        found = None if text is None else tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))
        if found is not None and not found:
            raise BadOption(f"option {name}: expected a name, found {text!r}")
        return found

    def words(self, name: str) -> frozenset[str] | None:
        """Return the same without an order."""
        found = self.names(name)
        return None if found is None else frozenset(found)

    def number(self, name: str) -> int | None:
        """Return a whole number that fits 64 bits."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text[:20]) <= OFFSET_MAX):
            raise BadOption(f"option {name}: expected a whole number, found {text!r}")
        return int(text)

    def time_ms(self, name: str) -> int | None:
        """Return a time in milliseconds, given so or in ISO 8601 with a zone."""
        text = self.text(name)
        if text is None or text.isdigit():
            return self.number(name)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise BadOption(f"option {name}: expected milliseconds or a time such as 2026-01-31T12:00:00Z, found {text!r}")
        return _ms_of(time)

    def flag(self, name: str) -> bool | None:
        """Return whether the value is true."""
        text = self.text(name)
        if text is not None and text.lower() not in _WORDS:
            raise BadOption(f"option {name}: expected true or false, found {text!r}")
        return None if text is None else _WORDS[text.lower()]

    def one_of(self, name: str, values: tuple[str, ...]) -> str:
        """Return the value, or the first allowed one if the option is not given."""
        text = self.text(name)
        if text is not None and text.lower() not in values:
            raise BadOption(f"option {name}: expected one of {', '.join(values)}, found {text!r}")
        return values[0] if text is None else text.lower()

    def size(self, name: str, default: int) -> int:
        """Return a number of bytes."""
        text = self.text(name)
        try:
            return default if text is None else size_of(text)
        except ValueError:
            raise BadOption(f"option {name}: expected a number of bytes (k, m or g may follow), found {text!r}") from None


def _paths(given: GivenOptions) -> tuple[str, ...]:
    """Return the paths; Spark passes several as a JSON list."""
    text = given.text("paths")
    try:
        listed = json.loads(text) if text else []
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        raise BadOption(f"option paths: expected a JSON list of paths, found {text!r}")
    single = given.text("path")
    if single:
        listed = [*listed, *(part.strip() for part in single.split(","))]
    found = tuple(dict.fromkeys(path for path in listed if path))
    if not found:
        raise BadOption("no path: use load(path), load([path, ...]) or the option path")
    return found


def _queue_ids(given: GivenOptions) -> frozenset[int] | None:
    words = given.words("queueId")
    if words is not None and not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise BadOption(f"option queueId: expected numbers, found {given.text('queueId')!r}")
    return None if words is None else frozenset(int(word) for word in words)


def _pattern(given: GivenOptions) -> str | None:
    text = given.name("subscribePattern")
    try:
        re.compile(text or "")
    except re.error as error:
        raise BadOption(f"option subscribePattern: expected a regular expression, found {text!r}: {error}") from None
    return text


def _assigned(given: GivenOptions) -> frozenset[QueueKey] | None:
    text = given.text("assign")
    if text is None:
        return None
    try:
        listed = {topic: [(topic, queue_id) for queue_id in queue_ids] for topic, queue_ids in json.loads(text).items()}
        found = frozenset(key for keys in listed.values() for key in keys)
        if not found or not all(topic and type(queue_id) is int and 0 <= queue_id <= QUEUES_MAX for topic, queue_id in found):
            raise ValueError(text)
    except (ValueError, AttributeError, TypeError):
        raise BadOption(f'option assign: expected JSON such as {{"topic": [0, 1]}}, found {text!r}') from None
    return found


def _queue_times(given: GivenOptions) -> dict[QueueKey, int]:
    text = given.text("startingOffsetsByTimestamp")
    try:
        found = dict(_queue_bounds(json.loads(text))) if text is not None else {}
        if any(time < 0 or time == OFFSET_MAX for time in found.values()):
            raise ValueError(text)
    except (ValueError, AttributeError, TypeError):
        expected = 'JSON such as {"topic": {"0": 1700000000000}}'
        raise BadOption(f"option startingOffsetsByTimestamp: expected {expected}, found {text!r}") from None
    return found


def _check_one_of(given: GivenOptions, *names: str) -> None:
    """Raise `BadOption` if more than one of some options is given: Kafka's source takes one of them, too."""
    found = [name for name in names if given.text(name) is not None]
    if len(found) > 1:
        raise BadOption(f"options {' and '.join(found)}: give one of them")


def _bounds(given: GivenOptions, name: str, word: str, end: int) -> OffsetBounds:
    """Parse `word`, a physical offset, or queue offsets as JSON."""
    text = given.text(name)
    if text is None or text.lower() == word:
        return OffsetBounds(end, {})
    if not text.lstrip().startswith("{"):
        try:
            number = given.number(name)
        except BadOption:
            raise BadOption(f"option {name}: expected {word}, a physical offset or JSON, found {text!r}") from None
        assert number is not None, "the text was checked"
        return OffsetBounds(number, {}, is_physical=True)
    try:
        return OffsetBounds(end, dict(_queue_bounds(json.loads(text))))
    except (ValueError, AttributeError, TypeError):
        raise BadOption(f'option {name}: expected JSON such as {{"topic": {{"0": 17}}}}, found {text!r}') from None


def _queue_bounds(found: dict[str, dict[str, int]]) -> Iterable[tuple[QueueKey, int]]:
    for topic, queues in found.items():
        for queue_id, offset in queues.items():
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and _EARLIEST <= offset <= OFFSET_MAX
            if not (topic and is_offset and queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
                raise ValueError(offset)
            yield (topic, int(queue_id)), OFFSET_MAX if offset == _LATEST else offset
