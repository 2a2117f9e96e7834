"""The options of reading, from Spark's strings.

    path                 one folder, several (`load([a, b])` or with commas), or a glob; `protocol://...` is read through fsspec
    topic                one, or several with commas
    queueId              one number, or several with commas
    startingOffsets      earliest (default), a physical offset, or JSON {"topic": {"0": queue offset}}
    endingOffsets        latest (default), the same; exclusive
    startingTimestamp    store time in milliseconds, inclusive
    endingTimestamp      store time in milliseconds, exclusive
    key                  messages with this word among their keys, or with it as their UNIQ_KEY
    bodyDecoding         stored (default): the bytes of the log; plain: unpacked, where a client compressed them
    checkCrc             auto (default): where bodies are read; true; false
    badRecords           fail (default), skip, report: as a row of the column `problem`
    failOnDataLoss       true (default): what retention took away while it was wanted is an error; false: it is passed over
    splitBytes           most bytes of one task (default 256m); 0: a task a file
    batchRows            rows of one Arrow batch (default 8192)
    fileBytes            length of the log's files, where they do not say it
    pushFilters          true: take `where(...)` on numbers and topic; wants spark.sql.python.filterPushdown.enabled
    vhost, queue         of a RabbitMQ folder; of the others it takes path, badRecords and batchRows

Names are those of Spark's Kafka source where it has one.  An option that nobody knows is an error, not silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import BadOption

SPLIT_BYTES = 256 << 20  # a smaller task costs more before its first row than it reads
BATCH_ROWS = 8192
BATCH_ROWS_MAX = 1 << 20
TASKS_MAX = 10_000
OFFSET_MAX = (1 << 63) - 1
FAIL, SKIP, REPORT = "fail", "skip", "report"
STORED, PLAIN = "stored", "plain"
_WORDS = {"true": True, "false": False}
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LATEST = -1  # Kafka's numbers for the two ends of a queue
_EARLIEST = -2
NAMES = (
    "path", "paths", "topic", "queueId", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "key",
    "bodyDecoding", "checkCrc", "badRecords", "failOnDataLoss", "splitBytes", "batchRows", "fileBytes", "pushFilters",
    "vhost", "queue",
)  # fmt: skip

ONLY_ROCKETMQ = (
    "topic", "queueId", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "key", "bodyDecoding",
    "checkCrc", "failOnDataLoss", "splitBytes", "fileBytes", "pushFilters",
)  # fmt: skip
ONLY_RABBITMQ = ("vhost", "queue")

Lane = tuple[str, int]


class Bounds(NamedTuple):
    """Where to begin or to end: in the log, and of single queues (an offset each)."""

    physical_offset: int
    queues: Mapping[Lane, int]


EARLIEST, LATEST = Bounds(0, {}), Bounds(OFFSET_MAX, {})


@dataclass(frozen=True)
class ReadOptions:
    """What was asked for, parsed.  Offsets are half-open ranges, times milliseconds."""

    paths: tuple[str, ...]
    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    start: Bounds = EARLIEST
    stop: Bounds = LATEST
    begin_ms: int | None = None
    end_ms: int | None = None
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
    given: frozenset[str] = field(default_factory=frozenset)

    @property
    def has_store_column(self) -> bool:
        """Whether a row says which folder it is from without being asked: several folders, or a pattern."""
        return is_several(self.paths)


def parse_read_options(options: Mapping[str, str], also: Iterable[str] = ()) -> ReadOptions:
    """`also` names options that somebody else reads.  Raises `BadOption`."""
    given = _Given({name.lower(): value for name, value in options.items() if value is not None})
    given.check({name.lower() for name in (*NAMES, *also)})
    made = ReadOptions(
        paths=_paths(given),
        topics=given.words("topic"),
        queue_ids=_queue_ids(given),
        start=_bounds(given, "startingOffsets", "earliest", 0),
        stop=_bounds(given, "endingOffsets", "latest", OFFSET_MAX),
        begin_ms=given.number("startingTimestamp"),
        end_ms=given.number("endingTimestamp"),
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
        given=frozenset(given.options),
    )
    if not 1 <= made.batch_rows <= BATCH_ROWS_MAX:
        raise BadOption(f"option batchRows: 1 to {BATCH_ROWS_MAX} wanted, found {made.batch_rows}")
    return made


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options that Python gave as the texts that Spark hands on; None is an option that is not given.

    Raises `BadOption` for a value that is neither text nor a whole number nor a flag: its text would mean something else.
    """
    found = {}
    for name, value in options.items():
        if value is not None and not isinstance(value, str | int):
            raise BadOption(f"option {name}: text, a whole number or a flag wanted, found {value!r}")
        if value is not None:
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def refuse_foreign_options(options: ReadOptions, *, is_rabbit: bool) -> None:
    """Raise `BadOption` for one that a store of this kind has nothing for."""
    for name in ONLY_ROCKETMQ if is_rabbit else ONLY_RABBITMQ:
        if name.lower() in options.given:
            kinds = ("RocketMQ", "RabbitMQ") if is_rabbit else ("RabbitMQ", "RocketMQ")
            raise BadOption(f"option {name}: for {kinds[0]} stores, and this is one of {kinds[1]}'s")


def is_several(path: str | Sequence[str]) -> bool:
    """Whether a path may stand for several stores: a list, commas in it, or a pattern.

    >>> is_several("/data/store"), is_several("/data/*"), is_several("/a,/b")
    (False, True, True)
    """
    paths = [part for part in path.split(",") if part.strip()] if isinstance(path, str) else path
    return len(paths) > 1 or any(is_pattern(one) for one in paths)


def is_pattern(path: str) -> bool:
    """Whether a path is a glob."""
    return any(letter in path for letter in "*?[")


def size_of(text: str) -> int:
    """Bytes, from a number with k, m or g behind it.

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


class _Given:
    """The options by their lower-case names."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def check(self, known: set[str]) -> None:
        unknown = sorted(set(self.options) - known)
        if unknown:
            raise BadOption(f"no option {unknown[0]!r}; there are {', '.join(NAMES)}")

    def text(self, name: str) -> str | None:
        return self.options.get(name.lower())

    def name(self, name: str) -> str | None:
        """Text that is not blank."""
        text = self.text(name)
        if text is not None and not text.strip():
            raise BadOption(f"option {name}: a name wanted, found {text!r}")
        return text

    def words(self, name: str) -> frozenset[str] | None:
        text = self.text(name)
        found = None if text is None else frozenset(word for part in text.split(",") if (word := part.strip()))
        if found is not None and not found:
            raise BadOption(f"option {name}: a name wanted, found {text!r}")
        return found

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text[:20]) <= OFFSET_MAX):
            raise BadOption(f"option {name}: a whole number wanted, found {text!r}")
        return int(text)

    def flag(self, name: str) -> bool | None:
        text = self.text(name)
        if text is not None and text.lower() not in _WORDS:
            raise BadOption(f"option {name}: true or false wanted, found {text!r}")
        return None if text is None else _WORDS[text.lower()]

    def one_of(self, name: str, values: tuple[str, ...]) -> str:
        """The first where the option is not given."""
        text = self.text(name)
        if text is not None and text.lower() not in values:
            raise BadOption(f"option {name}: one of {', '.join(values)} wanted, found {text!r}")
        return values[0] if text is None else text.lower()

    def size(self, name: str, default: int) -> int:
        text = self.text(name)
        try:
            return default if text is None else size_of(text)
        except ValueError:
            raise BadOption(f"option {name}: a number of bytes (k, m, g behind it) wanted, found {text!r}") from None


def _paths(given: _Given) -> tuple[str, ...]:
    """Spark hands over one path as it is and several as a JSON list."""
    text = given.text("paths")
    try:
        listed = json.loads(text) if text else []
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        raise BadOption(f"option paths: a JSON list of paths wanted, found {text!r}")
    single = given.text("path")
    if single:
        listed = [*listed, *(part.strip() for part in single.split(","))]
    found = tuple(dict.fromkeys(path for path in listed if path))
    if not found:
        raise BadOption("no path: load(path), load([path, ...]) or option path")
    return found


def _queue_ids(given: _Given) -> frozenset[int] | None:
    words = given.words("queueId")
    if words is not None and not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise BadOption(f"option queueId: numbers wanted, found {given.text('queueId')!r}")
    return None if words is None else frozenset(int(word) for word in words)


def _bounds(given: _Given, name: str, word: str, end: int) -> Bounds:
    """`word`, a physical offset, or queue offsets as JSON."""
    text = given.text(name)
    if text is None or text.lower() == word:
        return Bounds(end, {})
    if not text.lstrip().startswith("{"):
        try:
            number = given.number(name)
        except BadOption:
            raise BadOption(f"option {name}: {word}, a physical offset or JSON wanted, found {text!r}") from None
        return Bounds(end if number is None else number, {})
    try:
        return Bounds(end, dict(_lanes(json.loads(text))))
    except (ValueError, AttributeError, TypeError):
        raise BadOption(f'option {name}: JSON as {{"topic": {{"0": 17}}}} wanted, found {text!r}') from None


def _lanes(found: dict[str, dict[str, int]]) -> Iterable[tuple[Lane, int]]:
    for topic, queues in found.items():
        for queue_id, offset in queues.items():
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and _EARLIEST <= offset <= OFFSET_MAX
            if not (topic and is_offset and queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
                raise ValueError(offset)
            ends = {_EARLIEST: 0, _LATEST: OFFSET_MAX}
            yield (topic, int(queue_id)), ends.get(offset, offset)
