"""The real store's judgement of a folder: does it start, and deliver what our `dump` lists?"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from commitlog import Message
from tests.faults.damaged_stores import Template
from tests.faults.file_damage import copied
from tests.faults.file_judge import listed
from tests.faults.golden import unpacked
from tests.faults.witnesses import Witnesses, read_witnesses

from .answers import for_java
from .folders import START_MS
from .jvm import Refused
from .real_broker import RealBroker
from .real_store import RealStore, RealStores

JAVA = ("java-clean", "java-killed")
STREAMED, STREAM_QUEUES = 450, 3
HOST = "127.0.0.1:10911"
PATIENCE_S = 30
CLOSED_TOGETHER = 12  # each shutdown sleeps for seconds, whatever their number
READ = 4  # a bit of a topic's permissions
HIDDEN = ("SCHEDULE_TOPIC", "RMQ_SYS_", "rmq_sys_", "%LMQ%", "%RETRY%", "%DLQ%")  # read by the broker itself
Queue = tuple[str, int]


class RealStoreJudge:
    """One JVM that opens folders; it is started again when a folder has hung it."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        self.jvm = RealStores(errors)
        self.open: list[RealStore] = []
        self.judged = 0

    def __call__(self, folder: Path, settings: dict[str, Any]) -> str:
        """Return what is wrong with a folder that nobody needs any more, or an empty text."""
        if "storeType" in settings:
            return ""  # a broker's
        self.judged += 1
        expected = _expected(folder)
        dumped = listed(folder)
        try:
            real = self.jvm.open(folder, **settings | _sizes(folder))
        except Refused as error:
            self._again_if_dead()
            return f"does not start: {str(error).splitlines()[0][:150]}"
        self.open.append(real)
        try:
            return _compared(real, expected, dumped.messages)
        except Refused as error:
            self._again_if_dead()
            return f"starts and cannot be read: {str(error).splitlines()[0][:150]}"
        finally:
            if len(self.open) >= CLOSED_TOGETHER:
                self.close()

    def close(self) -> None:
        """Close the open stores."""
        stores, self.open = self.open, []
        if stores:
            self.jvm.close(stores)

    def end(self) -> None:
        """End the JVM with every store in it."""
        self.jvm.end()

    def _again_if_dead(self) -> None:
        if self.jvm.process.poll() is None and _answers(self.jvm):
            return
        self.jvm.end()
        self.open = []
        self.jvm = RealStores(self.errors)


def _answers(jvm: RealStores) -> bool:
    try:
        jvm.tell("close", ids=[])
        jvm.answer(PATIENCE_S)
    except (Refused, OSError):
        return False
    return True


def _sizes(folder: Path) -> dict[str, int]:
    """Return the sizes that a broker of this folder must be configured with, where they are not the template's."""
    names = {
        "mappedFileSizeConsumeQueue": "consumequeue/*/*/0*", "mappedFileSizeTimerLog": "timerlog/0*",
        "mapperFileSizeBatchConsumeQueue": "batchconsumequeue/*/*/0*",
    }  # fmt: skip
    found = {name: next(folder.glob(pattern), None) for name, pattern in names.items()}
    sizes = {name: path.stat().st_size for name, path in found.items() if path is not None}
    log_size = max((path.stat().st_size for path in folder.glob("commitlog/0*")), default=0)
    return sizes | ({"mappedFileSizeCommitLog": log_size} if log_size else {})


def _expected(folder: Path) -> tuple[Witnesses, dict[Queue, list[int]]]:
    """Return the plain model of a folder, and the physical offsets that each queue must deliver."""
    witnesses = read_witnesses(folder, 0)
    queues: dict[Queue, list[int]] = defaultdict(list)
    for at, record in witnesses.records.items():
        if not record.is_visible or not witnesses.has_topic(record.topic):
            continue
        queues[record.topic, record.queue_id].append(at)
        for lmq in filter(None, record.properties.get("INNER_MULTI_DISPATCH", "").split(",")):
            if record.topic.startswith("%RETRY%"):
                break  # a retry topic's messages go to no LMQ
            if "/" in lmq:
                continue  # no name of a folder
            queues[lmq, 0 if lmq.startswith("%LMQ%") else record.queue_id].append(at)
    return witnesses, queues


def _compared(real: RealStore, expected: tuple[Witnesses, dict[Queue, list[int]]], dumped: set[int]) -> str:
    """Compare the real log with `dump`, and the real queues with the model."""
    witnesses, queues = expected
    fillers = set(witnesses.records) - witnesses.messages
    found = {message["physical_offset"] for message in real.invoke("messages")["messages"]} - fillers
    if found != dumped:
        less, more = dumped - found, found - dumped
        return f"has {len(less)} messages less than dump, {len(more)} more: {sorted(less | more)[:3]}"
    reported = {(queue["topic"], queue["queue_id"]): queue["consumed"] for queue in real.invoke("queues")}
    for queue, offsets in queues.items():
        if reported.get(queue, []) != sorted(set(offsets)):  # a message may name an LMQ twice
            less = sorted(set(offsets) - set(reported.get(queue, [])))
            return f"delivers {len(reported.get(queue, []))} of {len(offsets)} messages of {queue}, not {less[:3]}"
    for queue in reported.keys() - queues.keys():
        if reported[queue] and witnesses.has_topic(queue[0]):
            return f"delivers {len(reported[queue])} messages of {queue}, of which the log has none"
    return ""


def java_template(name: str, judge: RealStoreJudge, above: Path) -> Template:
    """Let the real store write in two runs: the first one's end is the older snapshot, the second one is closed or killed."""
    folder = above / name / "store"
    made = Template(name, folder, above / name / "older", unpacked("plain", above / "other"))
    for number in range(2):
        real = judge.jvm.open(folder, clock_ms=START_MS + number * 10**6, **made.settings)
        for topic in ("first", "second")[: number + 1]:
            reported = Message(topic, b"body of a message" * 9, queue_id=0, born_host=HOST, store_host=HOST)
            message = for_java(reported, b"TAGS\x01t\x02", 0)
            real.invoke("stream", message=message, count=STREAMED, queues=STREAM_QUEUES, quiet=True)
        if number and name == "java-killed":
            return made._replace(folder=copied(folder, above / name / "killed"))
        real.close()
        if not number:
            copied(folder, above / name / "older")
    return made


class BrokerJudge:
    """A real broker for each folder, which also reads the tables of `config/`: some ten seconds each."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.judged = 0

    def __call__(self, folder: Path, settings: dict[str, Any]) -> str:
        """Return what is wrong with a folder that nobody needs any more, or an empty text."""
        self.judged += 1
        witnesses, queues = _expected(folder)
        dumped = listed(folder).messages
        try:
            with RealBroker(folder, self.scratch / str(self.judged), **settings | _sizes(folder)) as broker:
                return _served(broker, witnesses, queues, dumped)
        except (Refused, OSError) as error:
            return f"does not start: {str(error).splitlines()[0][:150]}"


def _served(broker: RealBroker, witnesses: Witnesses, queues: dict[Queue, list[int]], dumped: set[int]) -> str:
    """Compare what a broker's clients get with the model: messages, topics, committed offsets."""
    known = broker.invoke("topics")
    tables = witnesses.tables
    named = {topic for topic, _ in queues if not topic.startswith(HIDDEN)} if tables else set()  # nothing without any table
    missing = sorted((set((tables.get("topics") or {}).get("topicConfigTable", ())) | named) - set(known))
    if missing:
        return f"has no topic {missing[0]}"
    readable = {topic for topic, reported in known.items() if reported["perm"] & READ and not topic.startswith(HIDDEN)}
    for topic in sorted({topic for topic, _ in queues} & readable):
        reported = {message["physical_offset"] for message in broker.invoke("read", topic=topic)}
        less = {at for queue, offsets in queues.items() if queue[0] == topic for at in offsets if at in dumped} - reported
        if less:
            return f"does not deliver {len(less)} messages of {topic}, the first at {min(less)}"
    for name, offsets in (tables.get("consumerOffset") or {}).get("offsetTable", {}).items():
        topic, group, *more = name.split("@")
        if more:
            continue  # progress that a proxy keeps for clients of broadcasts
        found = broker.invoke("offsets", topic=topic, group=group) if topic in known else {}
        other = {queue: offset for queue, offset in offsets.items() if queue in found and found[queue] != offset}
        if other:
            return f"has other offsets of {name}: {found}, in the file {other}"
    return ""
