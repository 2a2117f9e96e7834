"""Opening after an abort file, full rebuild and clean opening, against the real rocketmq-store on the same folder.

    python -m bench.recovery_against_java [--messages 2000000] [--rounds 5] [--folder DIR] [--json FILE]

Needs Java 17, Maven and about 5 GB.  Both engines take turns, each in one warm process.  A time ends when queues and index have
caught up with the log.  In "abort" only the last log file must be read again.  In "abort-young" that file is within the
checkpoint's margin of three seconds, so both engines read earlier files too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from tests.interop.rocketmq.answers import for_java
from tests.interop.rocketmq.real_store import RealStores

QUEUES = 8
BODY = bytes(range(256)) * 4
JAVA_OPTIONS = ["-server", "-Xms3g", "-XX:+UseG1GC", "-XX:+AlwaysPreTouch"]
TARGETS = {"abort": 4.0, "abort-young": 4.0, "rebuild": 5.0}
FILES_TARGET_MS = 20.0
SMALL_FILE = 64 << 10
LATE, LATE_AFTER_S = 8, 5  # with a last file older than the checkpoint's margin of 3 s, only that is read
Times = dict[str, dict[str, list[float]]]


def fill(jvm: RealStores, folder: Path, count: int) -> None:
    """Put `count` messages through the real store with its defaults."""
    message = Message("T", BODY, born_timestamp_ms=1, queue_id=0)
    message.born_host = message.store_host = "127.0.0.1:10911"
    store = jvm.open(folder)
    store.invoke("stream", message=for_java(message, b"TAGS\x01TagA\x02", 0), count=count, queues=QUEUES, quiet=True)
    store.close()


def make_clean(folder: Path) -> None:
    """Leave the folder as the last clean stop left it."""


def make_aborted(folder: Path) -> None:
    """Make the folder look as after a crash."""
    (folder / "abort").touch()
    (folder / "brokerstore" / "clean.json").unlink(missing_ok=True)


def make_bare(folder: Path) -> None:
    """Delete queues and index."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(folder / name)
    (folder / "brokerstore" / "clean.json").unlink(missing_ok=True)


CASES: dict[str, Callable[[Path], None]] = {"clean": make_clean, "abort": make_aborted, "rebuild": make_bare}


def time_java(jvm: RealStores, folder: Path, count: int) -> float:
    """Return the milliseconds of load, start and dispatch."""
    store = jvm.open(folder)
    queues = store.invoke("counts")
    store.close()
    assert sum(queues) == count, f"the real store has {sum(queues)} of {count}"
    return float(store.opened["all_ms"])


def time_ours(folder: Path, count: int) -> float:
    """Return the milliseconds of an opening for writing, which ends when the dispatcher has caught up."""
    gc.collect()
    before = time.perf_counter()
    store = MessageStore.open(folder, "r+")
    took_ms = (time.perf_counter() - before) * 1e3
    assert store.engine.dispatcher.behind_bytes == 0
    found = sum(store.max_offset("T", queue_id) - store.min_offset("T", queue_id) for queue_id in range(QUEUES))
    store.close()
    assert found == count, f"ours has {found} of {count}"
    return took_ms


def compare(jvm: RealStores, folder: Path, count: int, rounds: int, cases: dict[str, Callable[[Path], None]]) -> Times:
    """Measure both engines in turn; the first round only warms up."""
    times: Times = {case: {"java": [], "ours": []} for case in cases}
    for case, prepare in cases.items():
        for number in range(rounds + 1):
            prepare(folder)
            java_ms = time_java(jvm, folder, count)
            prepare(folder)
            ours_ms = time_ours(folder, count)
            if number:
                times[case]["java"].append(java_ms)
                times[case]["ours"].append(ours_ms)
    return times


def many_files(base: Path, rounds: int) -> dict[str, list[float]]:
    """Measure clean openings of stores of 10 and 1,000 log files, in turn."""
    counts = {"10 files": 10, "1000 files": 1000}
    config = StoreConfig(
        mapped_file_size_commit_log=SMALL_FILE, mapped_file_size_consume_queue=20_000, max_hash_slot_num=500, max_index_num=2000
    )
    for name, count in counts.items():
        with MessageStore.open(base / name, config=config) as store:
            for _ in range(count):
                store.put(Message("T", bytes(SMALL_FILE - 1000), queue_id=0, keys=["k"]))
        assert len(list((base / name / "commitlog").iterdir())) == count
    times: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(rounds * 3):
        for name in counts:
            gc.collect()
            before = time.perf_counter()
            store = MessageStore.open(base / name, "r+")
            times[name].append((time.perf_counter() - before) * 1e3)
            store.close()
    return times


def spread(values: list[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measured(values: list[float]) -> str:
    return "{min:.1f}/{median:.1f}/{max:.1f}".format(**spread(values))


def report(times: Times, files: dict[str, list[float]], count: int) -> dict[str, Any]:
    """Print the figures and return them for the JSON file."""
    result: dict[str, Any] = {"messages": count, "cases": {}}
    print(f"{count} messages of 1 KiB; milliseconds min/median/max")
    for case, both in times.items():
        ratios = [java / ours for java, ours in zip(both["java"], both["ours"], strict=True)]
        result["cases"][case] = {name: spread(values) for name, values in both.items()} | {"ratio": spread(ratios)}
        target = f"target {TARGETS[case]}x" if case in TARGETS else "no target"
        print(f"{case:11} java {measured(both['java'])}  ours {measured(both['ours'])}  ratio {measured(ratios)}  ({target})")
    few, many = files["10 files"], files["1000 files"]
    apart = statistics.median(many) - statistics.median(few)
    result["files"] = {name: spread(values) for name, values in files.items()} | {"apart_ms": apart}
    print(f"10 files {measured(few)}  1000 files {measured(many)}  apart {apart:.1f} (target {FILES_TARGET_MS})")
    return result


def main() -> None:
    """Fill the store, compare, and delete it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path, default=Path("bench.json"))
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=chosen.folder)))
        jvm = RealStores(base / "stderr", heap="3g", options=JAVA_OPTIONS)
        stack.callback(jvm.end)
        fill(jvm, base / "store", chosen.messages - LATE)
        times = compare(jvm, base / "store", chosen.messages - LATE, chosen.rounds, {"abort-young": make_aborted})
        time.sleep(LATE_AFTER_S)
        fill(jvm, base / "store", LATE)
        times |= compare(jvm, base / "store", chosen.messages, chosen.rounds, CASES)
        result = report(times, many_files(base, chosen.rounds), chosen.messages)
    chosen.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
