"""`Disk.is_locked`, which asks without taking the lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from storageio import REAL_DISK
from tests.processes import running
from tests.storageio.test_real_disk import _from_another_process

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_nobody_holds_is_free_and_no_file_is_made(tmp_path: Path) -> None:
    """This covers a missing file, a missing folder, a file without a lock, and a folder or a link at its path."""
    path = tmp_path / "lock"
    assert not REAL_DISK.is_locked(str(path)) and not REAL_DISK.is_locked(str(path / "below"))
    assert os.listdir(tmp_path) == []
    path.write_bytes(b"lock")
    assert not REAL_DISK.is_locked(str(path)) and not REAL_DISK.is_locked(str(path / "below"))
    (tmp_path / "link").symlink_to("lock")
    assert not REAL_DISK.is_locked(str(tmp_path)) and not REAL_DISK.is_locked(str(tmp_path / "link"))


def test_a_probe_in_the_writing_process_frees_no_lock(tmp_path: Path) -> None:
    """Closing any descriptor of the file would release it: another process still cannot take it after the probe."""
    path = str(tmp_path / "lock")
    held = REAL_DISK.lock(path)
    assert REAL_DISK.is_locked(path)
    assert _from_another_process(path) == "StoreLocked"
    held.release()
    assert not REAL_DISK.is_locked(path)


def test_a_lock_of_another_program_is_seen(tmp_path: Path) -> None:
    """The other program holds a POSIX record lock on byte 0, as a broker does, and can release it after the probe."""
    path = tmp_path / "lock"
    path.write_bytes(b"lock")
    with running([sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdin is not None and broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        assert REAL_DISK.is_locked(str(path)) and REAL_DISK.is_locked(str(path))
        broker.stdin.close()
    assert not REAL_DISK.is_locked(str(path))
    assert path.read_bytes() == b"lock"
