"""Unpacks archives of golden folders."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(path: Path, folder: Path) -> None:
    """Unpack a whole archive.  Python before 3.11.4 has no filters and takes no argument for one."""
    with tarfile.open(path) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
