"""The commands on a RocketMQ folder, answered from its commit log."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import join
from typing import Any, NamedTuple

from brokerstore.identify import FolderKind, StoreFolder, identify
from brokerstore.opening import log_folders
from commitlog import StoredMessage, decode_message_id
from commitlog.findings import Finding
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.walk import LogFiles
from storageio import REAL_DISK, StoreCorrupt

from .codes import CLEAN, PROBLEM
from .message_json import message_json
from .output import body_text, emit, emit_json, fields, progress, say, size_text, table, time_text

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024


class Wanted(NamedTuple):
    """Which messages to show."""

    topic: str | None = None
    queue_id: int | None = None

    def takes(self, message: StoredMessage) -> bool:
        """Whether the message is one of them."""
        is_topic = self.topic is None or message.topic == self.topic
        return is_topic and (self.queue_id is None or message.queue_id == self.queue_id)


def open_files(folder: str) -> LogFiles:
    """The log of a store's folder."""
    return LogFiles(REAL_DISK, log_folders(folder))


def show_info(folder: str, as_json: bool) -> int:
    """From names, sizes and the headers of one file: quick on a store of any size."""
    store = identify(folder)
    files = LogFiles(REAL_DISK, log_folders(folder))
    end, first = files.end(), files.first()
    problems = [finding for finding in files.check() if finding.is_problem]
    problems += [end.problem] if end.problem is not None else []
    facts: dict[str, Any] = {
        "kind": store.kind.value,
        "path": store.path,
        "log_folders": store.log_folders,
        "files": len(files.files),
        "file_size_bytes": files.file_size_bytes,
        "size_bytes": sum(file.size_bytes for file in files.files),
        "min_offset": files.files[0].start_offset if files.files else 0,
        "max_offset": end.offset,
        "first_store_timestamp_ms": first.store_timestamp_ms if first else None,
        "last_store_timestamp_ms": end.last.store_timestamp_ms if end.last else None,
        "abort_file": _has_abort_file(store),
        "problems": [problem.as_dict() for problem in problems],
    }
    if as_json:
        emit_json(facts)
    else:
        _show_facts(facts)
    for problem in problems:
        say(f"brokerstore: {_finding_text(problem)}")
    return PROBLEM if problems else CLEAN


def _has_abort_file(store: StoreFolder) -> bool | None:
    """Present while a broker runs and after it crashed; a bare log has none to tell."""
    return None if store.kind is FolderKind.LOG else REAL_DISK.stat(join(store.path, "abort")) is not None


def _show_facts(facts: dict[str, Any]) -> None:
    times = {name: facts[name] for name in ("first_store_timestamp_ms", "last_store_timestamp_ms")}
    texts = {name: "none" if time is None else time_text(time) for name, time in times.items()}
    abort_words = {None: "unknown", True: "no: running, or crashed", False: "yes"}
    fields(
        {
            "Kind": facts["kind"],
            "Log": ", ".join(facts["log_folders"]),
            "Files": f"{facts['files']} of {size_text(facts['file_size_bytes'])}, {size_text(facts['size_bytes'])} in all",
            "Offsets": f"{facts['min_offset']} to {facts['max_offset']}",
            "First message": texts["first_store_timestamp_ms"],
            "Last message": texts["last_store_timestamp_ms"],
            "Stopped cleanly": abort_words[facts["abort_file"]],
            "Problems": len(facts["problems"]),
        }
    )


def good_messages(files: LogFiles, told: list[Finding]) -> Iterator[StoredMessage]:
    """Every message; what is wrong is said on stderr and kept in `told`."""
    for finding in files.check():
        _tell(finding, told)
    for step in files.messages():
        if isinstance(step, Finding):
            _tell(step, told)
        else:
            yield step


def _tell(finding: Finding, told: list[Finding]) -> None:
    if finding.is_problem:
        told.append(finding)
        say(f"brokerstore: {_finding_text(finding)}")


def list_queues(folder: str, as_json: bool) -> int:
    """What the log dispatches: prepared and rolled-back messages are in no queue."""
    told: list[Finding] = []
    queues: dict[tuple[str, int], list[int]] = {}
    for message in good_messages(open_files(folder), told):
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            row = queues.setdefault((message.topic, message.queue_id), [message.queue_offset, 0, 0])
            row[1] = message.queue_offset + 1
            row[2] += 1
    keys = ("min_offset", "max_offset", "messages")
    found = [
        {"topic": topic, "queue_id": queue_id, **dict(zip(keys, row, strict=True))}
        for (topic, queue_id), row in sorted(queues.items())
    ]
    if as_json:
        emit_json({"queues": found})
    else:
        table(["topic", "queue_id", *keys], [list(row.values()) for row in found])
    return PROBLEM if told else CLEAN


def dump_messages(folder: str, as_json: bool, wanted: Wanted, limit: int | None) -> int:
    """One line a message."""
    told: list[Finding] = []
    left = -1 if limit is None else limit
    files = open_files(folder)
    if not as_json and left:
        emit(_row_text("offset", "stored", "topic/queue", "number", "body"))
    for message in good_messages(files, told) if left else ():
        if not wanted.takes(message):
            continue
        if as_json:
            emit_json(message_json(message))
        else:
            emit(_message_row(message))
        left -= 1
        if left == 0:
            break
    return PROBLEM if told else CLEAN


def _message_row(message: StoredMessage) -> str:
    words = [f"[{message.tags}]"] if message.tags else []
    words += [f"({' '.join(message.keys)})"] if message.keys else []
    body = " ".join([*words, body_text(message.body, BODY_SHOWN)])
    queue = f"{message.topic}/{message.queue_id}"
    return _row_text(message.physical_offset, time_text(message.store_timestamp_ms), queue, message.queue_offset, body)


def _row_text(offset: object, stored: object, queue: object, number: object, body: object) -> str:
    return f"{offset:>12}  {stored:<24}  {queue:<24}  {number:>8}  {body}"


def get_message(folder: str, as_json: bool, offset: int) -> int:
    """One message, or what lies there instead."""
    files = open_files(folder)
    found = files.message_at(offset)
    if found is None:
        end = files.end().offset
        first = files.files[0].start_offset if files.files else 0
        raise StoreCorrupt(
            "no file holds this offset", file=folder, offset=offset, expected=f"{first} to {end}", found="nothing"
        )
    if isinstance(found, Finding):
        raise StoreCorrupt(
            f"no message begins here ({found.kind})",
            file=found.file,
            offset=found.offset,
            expected=found.expected,
            found=found.found,
        )
    if as_json:
        emit_json(message_json(found))
        return CLEAN
    shown = message_json(found)
    del shown["body_base64"]
    for name in ("born_timestamp_ms", "store_timestamp_ms"):
        shown[name] = f"{shown[name]} ({time_text(shown[name])})"
    shown["keys"] = " ".join(found.keys)
    shown["body"] = f"{len(found.body)} bytes: {body_text(found.body, BODY_SHOWN_ALONE)}"
    fields(shown)
    return CLEAN


def verify_store(folder: str, as_json: bool, quiet: bool) -> int:
    """Every check there is."""
    from commitlog.verify import verify_log

    folders = log_folders(folder)
    total = sum(file.size_bytes for file in LogFiles(REAL_DISK, folders).files)
    with progress("verify", total, wanted=not quiet) as advance:
        report = verify_log(folders, progress=advance)
    if as_json:
        findings = {"problems": report.problems, "notes": report.notes}
        lists = {name: [finding.as_dict() for finding in found] for name, found in findings.items()}
        emit_json({"ok": report.is_ok, **lists, "counts": report.counts()})
        return CLEAN if report.is_ok else PROBLEM
    for problem in report.problems:
        emit(f"problem: {_finding_text(problem)}")
    for found in report.notes:
        emit(f"note: {_finding_text(found)}")
    verdict = "OK" if report.is_ok else f"{len(report.problems)} problems"
    emit(
        f"{verdict}: {report.records} messages ({report.protected_records} with a checksum over the whole record), "
        f"{report.files} files, {size_text(report.size_bytes)}"
    )
    return CLEAN if report.is_ok else PROBLEM


def _finding_text(finding: Finding) -> str:
    what = finding.kind.replace("_", " ")
    return f"{finding.file} at byte {finding.offset}: {what}: expected {finding.expected}, found {finding.found}"


def show_id(message_id: str, as_json: bool) -> int:
    """No store is looked at."""
    decoded = decode_message_id(message_id)
    facts = {"message_id": message_id, "store_host": decoded.store_host, "physical_offset": decoded.physical_offset}
    if as_json:
        emit_json(facts)
    else:
        fields({"Broker": decoded.store_host, "Physical offset": decoded.physical_offset})
    return CLEAN
