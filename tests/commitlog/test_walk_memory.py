"""The memory of a walk that only looks for the log's end."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commitlog import CommitLog, LogPaths
from storageio import REAL_DISK

FILE_BYTES, GROWTH_MAX = 192 << 20, 100 << 20
POLL = """
import sys
from pathlib import Path
from commitlog.walk import LogFiles
from storageio import REAL_DISK

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10

before = peak()
print(LogFiles(REAL_DISK, [sys.argv[1]]).end().offset, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says how much memory a process had")
def test_search_for_the_end_does_not_keep_all_pages_of_a_file_mapped(tmp_path):
    """A worker of an audit used 1.2 GB for a file of 1 GiB: each page that it read stayed mapped."""
    log = CommitLog(LogPaths(REAL_DISK, [str(tmp_path)]), file_size_bytes=FILE_BYTES, writable=True)
    bodies = b"x" * 1000
    for _ in range(160):
        log.appender.append_columns("Topic", 0, np.arange(0, 1001 * len(bodies), len(bodies), dtype=np.int64), bodies * 1000)
    written = log.written_offset
    log.close()
    made = subprocess.run([sys.executable, "-c", POLL, str(tmp_path)], capture_output=True, text=True, check=True)
    end, growth = map(int, made.stdout.split())
    assert end == written > 160_000_000
    assert growth < GROWTH_MAX, growth
