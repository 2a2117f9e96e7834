"""Processes that tests start."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process, and kill it if it still runs at the end of the block.

    A block that fails, skips or times out ends too: `Popen` alone would wait for a process that waits for the test, and one
    without a block would be left to the garbage collector, in the middle of another test.
    """
    with subprocess.Popen([str(word) for word in command], **options) as process:
        try:
            yield process
        finally:
            process.kill()  # does nothing to a process that was waited for
