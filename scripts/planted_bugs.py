"""Plant each bug in a copy of the source; the tests named beside it must fail there on the plain build.

Before that, these tests must pass on an unchanged copy.

    python scripts/planted_bugs.py              all of them
    python scripts/planted_bugs.py --quick      the four that run in every change
    python scripts/planted_bugs.py --only NAME  one
    python scripts/planted_bugs.py --tier       which of them the tests of `make test` catch alone: docs/evidence/tiers.md

Ends with 1 if a bug is not caught, if the source does not contain its text exactly once, or if the tests fail on an unchanged
copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KEPT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv*",
    "build",
    "*.so",
    "__pycache__",
    ".hypothesis",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "interop",
)
TIMEOUT_S = 900
NONE_SELECTED = 5  # pytest's exit code
DEFAULT_TIER = "not deep and not spark and not interop"


class Bug(NamedTuple):
    """`before`, which `file` contains once, becomes `after`; `tests` are pytest's arguments."""

    name: str
    file: str
    before: str
    after: str
    tests: str
    is_quick: bool = False


CHECK = "commitlog/_record_cy.py"
FLIPS = "tests/faults/test_log_flips.py"
CUTS = "tests/faults/test_store_damage.py -k border"
STORE = "messagestore/recovery/log_end.py"
RECOVER = "tests/messagestore/test_lifecycle.py tests/messagestore/test_recover.py tests/lab/test_rocketmq_crashes.py"
LAB = "tests/lab/test_rocketmq_crashes.py"
RABBIT_LAB = "tests/lab/test_rabbitmq_crashes.py -k survives"
CALLS = "tests/faults/test_recorded_calls.py"
ORDERS = "tests/lab/test_sync_orders.py"
RABBIT_ORDERS = "tests/rabbitstore/test_sync_order.py"
REPLACE = "tests/storageio/test_replace_and_test_disks.py"

BUGS = [
    Bug("body checksum skipped", CHECK, "if checks & CHECK_BODY and body_size > 0 and", "if False and body_size > 0 and", FLIPS, True),
    Bug("record checksum skipped", CHECK, "if crc32(source, at, size - CRC_SIZE) != _trailer_value", "if 0 > _trailer_value", FLIPS),
    Bug("position not checked", CHECK, "if checks & CHECK_POSITION and get_i64", "if False and get_i64", FLIPS),
    Bug("torn properties believed", CHECK, "elif properties_size > 0 and source[at + size - 1] == 0:", "elif False:", CUTS, True),
    Bug("body size not bounded", CHECK, "if body_size < 0 or body_size > space:", "if body_size < 0:", "tests/fuzz tests/commitlog/test_damage.py"),
    Bug("magic not checked", CHECK, "if magic != MAGIC_V1 and magic != MAGIC_V2:", "if magic == 0:", FLIPS),
    Bug("replaced file not synced", "storageio/swap.py", "        file.write(0, data)\n        file.sync()\n", "        file.write(0, data)\n", REPLACE, True),
    Bug("rename not synced", "storageio/swap.py", "    disk.sync_folder(os.path.dirname(path) or \".\")\n", "    pass\n", REPLACE),
    Bug("backup taken by copy order", "storageio/swap.py", "        file.truncate(0)\n        file.write(0, data)\n", "        file.write(0, data)\n", REPLACE),
    Bug("abort file not durable", "messagestore/abort_file.py", "            file.sync()\n        self._disk.sync_folder(self._folder)\n",
        "            pass\n", "tests/messagestore/test_abort_file.py", True),
    Bug("abort file removed before the flush", "messagestore/engine.py", "            self.flusher.flush_now()\n            self.dispatcher.wait_for(self.log.written",
        "            self.abort_file.remove()\n            self.flusher.flush_now()\n            self.dispatcher.wait_for(self.log.written", "tests/messagestore/test_lifecycle.py " + LAB),
    Bug("crash tail not zeroed", STORE, "file.write(at, bytes(min(CUT_PIECE, end - at)))", "pass", RECOVER),
    Bug("crash tail not kept", STORE, "            keep_cut(disk, root, file.start_offset + start, file.view[start:end])\n", "            pass\n", RECOVER),
    Bug("damage taken for a torn tail", STORE, "    _refuse_damage(log, stop, last_ms,", "    (lambda *_: None)(log, stop, last_ms,", RECOVER),
    Bug("clean stop believed unseen", STORE, " and still_holds(log, clean_stop):", ":", "tests/messagestore/test_clean_note.py tests/messagestore/test_clean_stop_damage.py"),
    Bug("older records come back", "commitlog/cursor.py", "while at >= 0 and reader.store_time(at) < last_ms:", "while False:", "tests/faults/test_store_damage.py -k stale"),
    Bug("units not compared", "messagestore/derive/kinds/ordinary.py", "if bytes(rest[: count * UNIT_SIZE]) != expected[: count * UNIT_SIZE]:", "if False:", "tests/faults/test_store_damage.py -k beside"),
    Bug("checkpoint not synced", "messagestore/checkpoint.py", "                self._file.write(0, VALUES.pack(*values) + self._rest)\n                self._file.sync()\n",
        "                self._file.write(0, VALUES.pack(*values) + self._rest)\n", "tests/messagestore/test_checkpoint.py"),
    Bug("checkpoint claims too much", "messagestore/checkpoint.py", "if (time_ms := getattr(values, name)) > last_ms > 0", "if False and (time_ms := 0)", "tests/messagestore/test_checkpoint.py tests/messagestore/test_rebuild_store.py"),
    Bug("no lock", "messagestore/engine.py", "            self._lock = disk.lock(self.paths.lock)\n", "", "tests/messagestore/test_processes.py tests/messagestore/test_lifecycle.py"),
    Bug("readable before it is durable", "messagestore/parts.py", "return self.flusher.flushed_offset if self.config.is_sync_flush else self.log.committed_offset",
        "return self.log.committed_offset", "tests/messagestore/test_threads.py tests/messagestore/test_follower.py " + LAB),
    Bug("new log file's name not synced", "commitlog/mapped_file_queue.py", "            self._disk.sync_folder(folder)\n", "", "tests/commitlog/test_mapped_files.py " + LAB),
    Bug("RabbitMQ record without end mark believed", "rabbitstore/format/rdq_scan_cy.py", "        if source[at + total - 1] == END_MARK:\n", "        if True:\n", "tests/rabbitstore/test_damage.py"),
    Bug("RabbitMQ journal not synced", "rabbitstore/engine/queue_index_cy.py", "                self._open_journal().sync()\n", "                pass\n", RABBIT_LAB),
    Bug("RabbitMQ segment not synced", "rabbitstore/engine/queue_index_base_cy.py", "            file.write(offset, data)\n            file.sync()\n", "            file.write(offset, data)\n", RABBIT_LAB),
    Bug("RabbitMQ messages not synced", "rabbitstore/engine/msg_store_cy.py", "                        file.sync()\n", "                        pass\n", RABBIT_LAB),
    Bug("RabbitMQ entry before its message", "rabbitstore/engine/queue_index_cy.py", "            self.before_flush()\n", "            pass\n", "tests/lab/test_regressions.py -k before_its_message"),
    Bug("RabbitMQ torn number believed", "rabbitstore/format/journal.py", " or is_torn_head(data, at, JOURNAL_HEAD.size)", "", "tests/rabbitstore/test_torn.py"),
    Bug("index items behind the log's end kept", "indexfile/_index_cy.py", "and _item_offset(index, count - 1) >= log_end", "and _item_offset(index, count - 1) >= 1 << 62", "tests/indexfile"),
    Bug("LMQs not compared", "messagestore/derive/cross_check.py", "            self._run(topic, queue_id, position, unit)\n", "            pass\n", "tests/faults/test_store_damage.py -k lmq"),
    Bug("digits of any length read", "messagestore/derive/kinds/lmq.py", "0 < len(text) <= _DIGITS_MAX and ", "", "tests/faults/test_hostile_folders.py -k lmq"),
    Bug("files mapped without blocks", "storageio/real_disk.py", "os.posix_fallocate(self._descriptor, start, size_bytes - start)", "os.ftruncate(self._descriptor, max(size_bytes, os.fstat(self._descriptor).st_size))", "tests/faults/test_full_disk.py"),
    Bug("emptied index file believed", "indexfile/index_files.py", " or last.header.end_physical_offset > end_before", "", "tests/lab/test_regressions.py -k emptied"),
    Bug("torn copy of the collector believed", "rabbitstore/repair/compaction.py", "there.get(record.msg_id, _NONE) < _quality(data, record)", "True", "tests/lab/test_regressions.py -k unsynced_copy"),
    Bug("failed sync of a log file tried again", "commitlog/mapped_file.py", "            self._failure = error\n", "            pass\n", "tests/lab/test_regressions.py -k never_reported"),
    Bug("pool opened again at a wrong lap", "messagestore/write/pool.py", "        self._log.appender.set_reserved(self._lap - file.start_offset, file.written)", "        # ", "tests/messagestore/test_pool.py -k again_and_again"),
    Bug("retention before batch queues are synced", "messagestore/write/housekeeper.py", "        self._final(self._flush_queues)\n", "        self._final(lambda: self._parts.queues.flush(0))\n", "tests/lab/test_regressions.py -k batch_queues"),
    Bug("folder not synced by the real disk", "storageio/real_disk.py", "                os.fsync(descriptor)\n", "                pass\n", CALLS),
    Bug("new folder's parent not synced by the real disk", "storageio/real_disk.py", "            self.sync_folder(os.path.dirname(path))\n", "            pass\n", CALLS),
    Bug("file not synced by the real disk", "storageio/real_disk.py", "                os.fdatasync(self._descriptor)\n", "                pass\n", CALLS),
    Bug("index files deleted without a sync between", "indexfile/index_files.py", "            self.disk.sync_folder(self.folder)\n\n    def _must_write", "\n    def _must_write", ORDERS + " -k index_file_deletion"),
    Bug("index note of what came during the sync", "messagestore/write/housekeeper.py", "hint_of(self._log, index, *reached)", "hint_of(self._log, index, *dispatcher.reached)", ORDERS + " -k index_sidecar"),
    Bug("batch queues believed after a kill", "messagestore/recovery/opening.py", "        parts.derived.batch.mark_unsynced()\n", "", ORDERS + " -k batch_queue"),
    Bug("many puts wait for the first of them", "messagestore/write/put_rules.py", "self._appender.end_offset if message is None else result.physical_offset + result.size_bytes", "result.physical_offset + 1", ORDERS + " -k batch_put_returns"),
    Bug("RabbitMQ file deleted by a repair, its folder not synced", "rabbitstore/repair/classic.py", "        disk.sync_folder(f\"{path}/{file}\".rpartition(\"/\")[0])\n", "", CALLS + " -k tool"),
    Bug("failed sync of a full log file not told to the next opening", "messagestore/parts.py", ", on_failed=self.mark_sync_failure", "", ORDERS + " -k recorded_for_the_next"),
    Bug("cut tail of later files not kept", "messagestore/recovery/log_end.py", "start = max(0, offset - file.start_offset)", "start = max(0, offset + file.start_offset)", "tests/messagestore/test_cut_tail.py"),
    Bug("store time read after the sync", "messagestore/write/flusher.py", "max(self.flushed_timestamp_ms, stamp)", "max(self.flushed_timestamp_ms, self._log.appender.last_store_timestamp_ms)", ORDERS + " -k checkpoint"),
    Bug("ring deleted before the log is synced", "messagestore/write/ring.py", "            file.flush()\n        return count\n", "        return count\n", ORDERS + " -k ring"),
    Bug("retention of what is not flushed", "messagestore/write/retention.py", "return min(self._parts.dispatcher.position, self._parts.flusher.flushed_offset)", "return self._parts.dispatcher.position", ORDERS + " -k retention"),
    Bug("abort file removed before the last note", "messagestore/engine.py", "            self._write_hints()\n", "            self.abort_file.remove()\n            self._write_hints()\n", CALLS),
    Bug("deep JSON in our own note", "messagestore/sidecar.py", ", OverflowError, RecursionError)", ")", "tests/faults/test_hostile_folders.py -k json"),
    Bug("RabbitMQ messages confirmed beside a failed sync", "rabbitstore/engine/msg_store_cy.py", "            self._check_usable()  # a concurrent roll", "            # a concurrent roll", f"{RABBIT_ORDERS} -k concurrent_failure"),
    Bug("RabbitMQ salvaged tail not synced", "rabbitstore/repair/compaction.py", "        file.sync()\n", "", f"{RABBIT_ORDERS} -k salvaged"),
    Bug("RabbitMQ merged file's name not synced", "rabbitstore/engine/collector.py", "            store.disk.sync_folder(store.folder)\n", "            pass\n", f"{RABBIT_ORDERS} -k merged_file"),
    Bug("RabbitMQ clean mark's deletion not synced", "rabbitstore/engine/clean_stop.py", "            disk.sync_folder(folder)\n", "            pass\n", f"{RABBIT_ORDERS} -k clean_mark"),
    Bug("RabbitMQ segment of a killed server not synced", "rabbitstore/engine/queue_index_cy.py", "        with contextlib.closing(self.disk.open(path, Mode.WRITE)) as file:\n            file.sync()\n", "        pass\n", f"{RABBIT_ORDERS} -k killed_server"),
    Bug("RabbitMQ collector does not wait for readers", "rabbitstore/engine/collector.py", "        while any(store.files[number].readers for number in numbers):\n", "        while False:\n", f"{RABBIT_ORDERS} -k reader"),
    Bug("RabbitMQ journal's copy believed without its message", "rabbitstore/read/entry_copies.py", "    return logged.msg_id == entry.msg_id and _has_message(logged, has_message)\n", "    return True\n", "tests/rabbitstore/test_two_copies.py"),
    Bug("RabbitMQ lone publish waits", "rabbitstore/engine/housekeeper.py", "        if left > 0 and not is_busy:\n", "        if not is_busy:\n", "tests/rabbitstore/test_housekeeper.py -k lone"),
]  # fmt: skip
NOTHING = Bug(
    "nothing at all",
    "storageio/swap.py",
    "commit(disk, path)\n\n\ndef free_path",
    "commit(disk, path)\n\n\ndef free_path",
    f"{REPLACE} tests/messagestore/test_abort_file.py {FLIPS}",
)


def problem_of(bug: Bug) -> str | None:
    """Return why the bug cannot be planted, or None."""
    count = (ROOT / bug.file).read_text().count(bug.before)
    return None if count == 1 else f"its text is {count} times in {bug.file}"


def is_caught(bug: Bug, tier: str = "") -> bool:
    """Plant the bug in a copy and run its tests there; `tier` is pytest's expression of markers."""
    with tempfile.TemporaryDirectory() as above:
        copy = Path(above) / "source"
        shutil.copytree(ROOT, copy, ignore=KEPT_OUT)
        path = copy / bug.file
        path.write_text(path.read_text().replace(bug.before, bug.after))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--benchmark-disable", "-m", tier, *bug.tests.split()]
        environment = os.environ | {"BROKERSTORE_PURE": "1", "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            made = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            print(f"{bug.name}: no end in {TIMEOUT_S} s, which proves nothing where others use the machine")
            return False
        if made.returncode not in (0, 1, NONE_SELECTED):
            print(made.stdout[-2000:].decode(errors="replace"))
        return made.returncode == 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--tier", action="store_true", help="run the tests of the default tier alone")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th, from the i-th on")
    arguments = parser.parse_args()
    start, step = (int(number) for number in arguments.part.split("/"))
    bugs = [bug for bug in BUGS if (not arguments.quick or bug.is_quick) and arguments.only in (None, bug.name)][start::step]
    missed = 0
    tier = DEFAULT_TIER if arguments.tier else ""
    named = {path for bug in bugs for path in bug.tests.partition(" -k ")[0].split()}
    if is_caught(NOTHING._replace(tests=" ".join(sorted(named))), tier):
        print("a copy in which nothing was changed fails its tests: that a bug is caught proves nothing")
        return 1
    for bug in bugs:
        began = time.monotonic()
        reason = problem_of(bug) or (None if is_caught(bug, tier) else "NOT CAUGHT")
        missed += reason is not None
        print(f"{'caught' if reason is None else reason:12} {bug.name} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
