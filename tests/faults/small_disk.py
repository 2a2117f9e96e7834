"""Small file systems of their own, and a program that fills them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

can_mount = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None,
    reason="mounting a file system is root's on Linux",
)


@contextlib.contextmanager
def mounted(kind: str, size_kib: int) -> Iterator[Path]:
    """Mount an empty tmpfs or ext4 file system; skip the test if mounting is not permitted or mkfs is missing."""
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "disk"
        folder.mkdir()
        if kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(folder)]
        else:
            if shutil.which("mkfs.ext4") is None:
                pytest.skip("no mkfs.ext4")
            image = Path(above) / "image"
            with image.open("wb") as file:
                file.truncate(1024 * size_kib)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "1000", "-O", "^has_journal", str(image)], check=True)
            command = ["mount", "-o", "loop", str(image), str(folder)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"not permitted to mount: {made.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, leave_bytes: int) -> Path:
    """Write a file that leaves `leave_bytes` of the disk free."""
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    path = folder / "filler"
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):  # the filler's indirect blocks need space too
        for _ in range(max(free - leave_bytes, 0) // 1024):
            file.write(b"x" * 1024)
    return path


def fill_to(folder: Path, share: float) -> Path:
    """Write a file after which this share of the disk is used."""
    disk = os.statvfs(folder)
    return fill(folder, int((1 - share) * disk.f_blocks * disk.f_frsize))
