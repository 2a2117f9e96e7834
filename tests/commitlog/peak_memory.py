"""Print as JSON the peak of memory beyond maps, in bytes, while a log of 192 MiB is read in several ways."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from commitlog import CommitLog, LogPaths
from commitlog.arrow_columns import read_columns
from commitlog.columns import read_fixed
from storageio import REAL_DISK


def resident_bytes() -> int:
    """Return the anonymous resident memory, which excludes maps of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise SystemExit("no RssAnon here")


def peak_of(steps: Callable[[], Any], every: int = 1) -> int:
    """Return the maximum growth, sampled every few steps."""
    before = peak = resident_bytes()
    for number, _ in enumerate(steps()):
        if number % every == 0:
            peak = max(peak, resident_bytes())
    return peak - before


folder = str(Path(sys.argv[1]) / "log")
log = CommitLog(LogPaths(REAL_DISK, [folder]), file_size_bytes=64 << 20, writable=True)
row = b"x" * 4000
for _ in range(47):
    offsets = list(range(0, 1001 * len(row), len(row)))
    log.appender.append_columns("Topic", 0, np.array(offsets, np.int64), row * 1000)
for _ in read_columns(log, stop=1 << 20):
    pass
print(
    json.dumps(
        {
            "walk": peak_of(lambda: (log.walk_file(file) for file in log.queue.files)),
            "objects": peak_of(log.messages, 256),
            "fixed": peak_of(lambda: read_fixed(log)),
            "arrow": peak_of(lambda: read_columns(log)),
        }
    )
)
