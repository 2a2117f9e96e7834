"""`info` of a RocketMQ folder, from names, sizes and headers alone.

It is fast for a store of any size, because the engine is not imported: the first answer comes within 150 ms.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from brokerstore.identify import FolderKind
from consumequeue import queue_folders
from indexfile import PAUSES_S, IndexFile, index_paths
from messagestore.folder import FolderFacts
from storageio import REAL_DISK, MissingExtra, StoreCorrupt, StoreError, UnsupportedFormat
from storebytes.finding import Finding

from ..codes import CLEAN, PROBLEM
from ..output import (
    UNSUPPORTED,
    Answer,
    count_text,
    in_use_keys,
    print_line,
    problem_json,
    problem_text,
    report_in_use,
    size_text,
    time_text,
)
from .rocketmq_dledger import peer_facts
from .rocketmq_folder import RocketmqFolder
from .rocketmq_timers import in_rocksdb, in_wheel, in_wheel_text


def info(folder: RocketmqFolder) -> Answer:
    """Describe what the folder holds, and what is wrong with it at first sight."""
    target, problems = folder.target, folder.problems
    facts = _log_facts(folder)
    if folder.facts.is_store:
        for name, read in _PARTS.items():
            facts[name] = _try(name, read, folder.facts, problems)
        if facts["transactions"] is None:  # they are not in RocksDB
            del facts["transactions"]
        if folder.facts.contents.has_dledger_log:
            facts["dledger"] = _try("dledger", peer_facts, folder.facts, problems)
    elif target.kind is FolderKind.ROCKSDB:
        facts["timers"] = _try("timers", in_wheel, folder.facts, problems)
        facts["parts"] = _try("parts", _parts, folder.facts, problems)
    if target.broker_file is not None:
        facts["differences"] = _differences(folder)
    facts["problems"] = [problem_json(problem) for problem in problems]
    for problem in problems:
        print_line(f"brokerstore: {problem_text(problem)}")
    report_in_use(facts.get("checked_to_offset"))
    for difference in facts.get("differences", []):
        print_line("brokerstore: {name} is {configured} in the broker's file; {where} has {found}".format(**difference))
    step = folder.with_all_logs()
    return Answer(facts, [_fields(facts)], PROBLEM if problems or facts.get("differences") else CLEAN, [step] if step else ())


def _differences(folder: RocketmqFolder) -> list[dict[str, Any]]:
    """Return the settings of the broker's own file that contradict the folder."""
    from messagestore.differences import config_differences

    return [one._asdict() for one in config_differences(folder.facts.path, folder.target.broker_file or {}, REAL_DISK)]


def _try(name: str, read: Callable[[FolderFacts], Any], folder: FolderFacts, problems: list[Finding]) -> Any:
    """Return a part, or None with a problem if it cannot be read; a missing package is no problem of the folder."""
    try:
        return read(folder)
    except StoreCorrupt as error:
        problems.append(Finding(error.file, error.offset, "unreadable", str(error.expected), f"{error.reason}: {error.found}"))
    except UnsupportedFormat as error:
        problems.append(Finding(error.file, error.offset or 0, UNSUPPORTED, error.supported, f"{error.what} {error.found}"))
    except MissingExtra as error:
        print_line(f"brokerstore: no {name}: {error}")
    except StoreError as error:
        problems.append(Finding(folder.path, 0, "unreadable", "a readable file", str(error)))
    return None


def _log_facts(folder: RocketmqFolder) -> dict[str, Any]:
    target, files = folder.target, folder.files()
    end, first = files.end(), files.first()
    folder.problems += [finding for finding in files.check() if finding.is_problem]
    folder.problems += [end.problem] if end.problem is not None else []
    return {
        "kind": target.kind.value,
        "path": target.path,
        "log_folders": folder.facts.log_folders,
        "files": len(files.files),
        "file_size_bytes": files.file_size_bytes,
        "size_bytes": sum(file.size_bytes for file in files.files),
        "min_offset": files.files[0].start_offset if files.files else 0,
        "max_offset": end.offset,
        "first_store_timestamp_ms": first.store_timestamp_ms if first else None,
        "last_store_timestamp_ms": end.last.store_timestamp_ms if end.last else None,
        "abort_file": None if target.kind is FolderKind.LOG else folder.facts.has("abort"),
        **in_use_keys(files.end_offset),
    }


def _queues(facts: FolderFacts) -> dict[str, Any]:
    """Count the queues' folders; no queue file is opened."""
    folder = facts.paths.queues
    found = list(queue_folders(REAL_DISK, folder))
    names = {topic for topic, _queue_id in found}
    size = _queue_file_size(folder, found)
    return {"topics": len(names), "queues": len(found), "file_size_bytes": size}


def _queue_file_size(folder: str, found: list[tuple[str, int]]) -> int | None:
    """Return the size of the first file that is not empty."""
    for topic, queue_id in found:
        for entry in REAL_DISK.list(os.path.join(folder, topic, str(queue_id))):
            if entry.size_bytes:
                return entry.size_bytes
    return None


def _index(facts: FolderFacts) -> dict[str, Any]:
    """Read the headers, and the kept settings if no item shows the layout."""
    folder = facts.paths.index
    paths = index_paths(REAL_DISK, folder)[0] if REAL_DISK.stat(folder) is not None else []
    shape = facts.index_shape(PAUSES_S)
    headers = [IndexFile(REAL_DISK, path, 1, 1, writable=False).header for path in paths]
    return {
        "files": len(paths),
        "slots": shape.slots if shape else None,
        "items": shape.items if shape else None,
        "items_used": sum(max(0, header.items_used) for header in headers),
    }


def _checkpoint(facts: FolderFacts) -> dict[str, Any] | None:
    """Return the checkpoint, or None without one."""
    if not facts.has("checkpoint"):
        return None
    found = facts.checkpoint
    return {**found.values._asdict(), "is_damaged": found.is_damaged}


def _config(facts: FolderFacts) -> dict[str, int]:
    """Return the size of each file but backups."""
    entries = REAL_DISK.list(facts.paths.config) if facts.has("config") else []
    return {entry.name: entry.size_bytes for entry in entries if not entry.name.endswith(".bak")}


def _parts(facts: FolderFacts) -> list[dict[str, str]]:
    """Return the parts of the folder, and whether each is read, only kept, or blocks every writer."""
    return [{**part._asdict(), "use": part.use.value} for part in facts.contents.parts]


_PARTS: dict[str, Callable[[FolderFacts], Any]] = {
    "consumequeue": _queues,
    "index": _index,
    "checkpoint": _checkpoint,
    "config": _config,
    "timers": in_wheel,
    "transactions": in_rocksdb,
    "parts": _parts,
}


def _fields(facts: dict[str, Any]) -> dict[str, object]:
    times = {name: facts[name] for name in ("first_store_timestamp_ms", "last_store_timestamp_ms")}
    texts = {name: "none" if time is None else time_text(time) for name, time in times.items()}
    abort_words = {None: "unknown", True: "no: running or crashed", False: "yes"}
    shown: dict[str, object] = {
        "Kind": facts["kind"],
        "Log": ", ".join(facts["log_folders"]),
        "Files": f"{facts['files']} of {size_text(facts['file_size_bytes'])}, {size_text(facts['size_bytes'])} in total",
        "Offsets": f"{facts['min_offset']} to {facts['max_offset']}",
        "First message": texts["first_store_timestamp_ms"],
        "Last message": texts["last_store_timestamp_ms"],
        "Stopped cleanly": abort_words[facts["abort_file"]],
    }
    is_checked = facts["files"] or facts["problems"]
    return shown | _part_texts(facts) | {"Problems": len(facts["problems"]) if is_checked else "not checked"}


def _part_texts(facts: dict[str, Any]) -> dict[str, object]:
    """Return the parts beside the log that could be read."""
    texts: dict[str, object] = {}
    if queues := facts.get("consumequeue"):
        size = size_text(queues["file_size_bytes"] or 0)
        texts["Queues"] = f"{queues['queues']} in {count_text(queues['topics'], 'topic')}, files of {size}"
    if index := facts.get("index"):
        slots = "unknown" if index["slots"] is None else index["slots"]
        texts["Index"] = f"{count_text(index['files'], 'file')} of {slots} slots, {count_text(index['items_used'], 'item')}"
    if checkpoint := facts.get("checkpoint"):
        texts["Checkpoint"] = "damaged" if checkpoint["is_damaged"] else time_text(checkpoint["physic_msg_timestamp_ms"])
    if config := facts.get("config"):
        texts["Config"] = ", ".join(sorted(config))
    if timers := facts.get("timers"):
        texts["Timers"] = in_wheel_text(timers)
    if transactions := facts.get("transactions"):
        texts["Transactions"] = f"{transactions['open']} open"
    if peer := facts.get("dledger"):
        role = "leader" if peer["was_leader"] else f"follower of {peer['leader']}" if peer["leader"] else "unknown role"
        behind = "" if not peer["uncommitted"] else f", {peer['uncommitted']} of them behind the committed index"
        texts["DLedger"] = f"peer {peer['name']}, {role} in term {peer['term']}; entries up to {peer['last_index']}{behind}"
    for use, title in (("kept", "Not changed"), ("unsupported", "Unsupported")):
        names = [f"{part['name']} ({part['what']})" for part in facts.get("parts") or () if part["use"] == use]
        if names:
            texts[title] = ", ".join(names)
    return texts
