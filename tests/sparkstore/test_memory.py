"""Memory of jobs that read whole files, measured in a process of its own by the kernel's count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import numpy as np

from commitlog import CommitLog, LogPaths
from indexfile.layout import HEADER, HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, file_size
from sparkstore.jobs.dispatching import stored_item
from storageio import REAL_DISK

from .conftest import ROOT

FILE_BYTES, GROWTH_MAX = 192 << 20, 100 << 20
PEAK = """
import sys
from pathlib import Path

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
"""
END = """
import numpy
from sparkstore.source.log_position import LogEnds
before = peak()
print(LogEnds(sys.argv[1], [sys.argv[1]]).end().physical_offset, peak() - before)
"""
ITEMS = """
import numpy
from indexfile.index_file import IndexFile
from sparkstore.jobs.audit_source import _pairs_between
from storageio import REAL_DISK
before = peak()
file = IndexFile(REAL_DISK, sys.argv[1], 4, 10_000_000, writable=False)
print(sum(len(part) for part in _pairs_between(file, 0, 1 << 40, {})), peak() - before)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says how much memory a process had")


def measured(script: str, path: Path) -> tuple[int, int]:
    """Return the number that a script printed, and by how much its peak memory grew."""
    command = [sys.executable, "-c", PEAK + script, str(path)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    count, growth = map(int, made.stdout.split())
    return count, growth


def test_memory_of_a_search_for_the_durable_end(tmp_path: Path) -> None:
    """The process beside the driver used to hold every page of the last file, a gigabyte, while the query ran."""
    log = CommitLog(LogPaths(REAL_DISK, [str(tmp_path)]), file_size_bytes=FILE_BYTES, writable=True)
    bodies = b"x" * 1000
    for _ in range(160):
        log.appender.append_columns("Topic", 0, np.arange(0, 1001 * len(bodies), len(bodies), dtype=np.int64), bodies * 1000)
    written = log.written_offset
    log.close()
    end, growth = measured(END, tmp_path)
    assert end == written > 160_000_000
    assert growth < GROWTH_MAX, growth


def test_memory_of_an_audit_of_an_index_file(tmp_path: Path) -> None:
    """Each index file used to take four hundred megabytes beyond a task's limit."""
    slots, count = 4, 10_000_000
    made = np.zeros(count, stored_item())
    made["offset"] = np.arange(count)
    with (tmp_path / "index").open("wb") as file:
        file.truncate(file_size(slots, count))
        file.write(HEADER.pack(1, 2, 0, count, slots, count))
        file.seek(HEADER_SIZE + SLOT_SIZE * slots)
        file.write(made.tobytes())
    assert made.nbytes == ITEM_SIZE * count
    found, growth = measured(ITEMS, tmp_path / "index")
    assert found == count - 1
    assert growth < GROWTH_MAX, growth
