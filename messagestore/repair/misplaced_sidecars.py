"""Report symlinks, pipes and folders in place of our own files below `<store>/brokerstore`, and move them aside on request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from storageio import Disk, misplaced
from storebytes.finding import Finding
from storebytes.plan import Step

from ..sidecar import OWN_FILES
from ..write.sync_failure import NAME as SYNC_FAILURE_NAME
from ..write.sync_failure import mark_sync_failure


def strange_sidecars(disk: Disk, own_folder: str) -> list[Finding]:
    """Return one problem for each of them."""
    found = misplaced.find(disk, own_folder, OWN_FILES)
    return [Finding(one.path, 0, "strange_sidecar", one.expected_text, one.found_text) for one in found]


def sidecar_steps(disk: Disk, own_folder: str, found: list[Finding]) -> Iterator[Step]:
    """Yield a step that moves each of the found ones aside."""
    for one in found:
        file = os.path.relpath(one.file, os.path.dirname(own_folder))
        run = partial(_move_aside, disk, own_folder, one.file)
        yield Step("move_aside", file, f"{one.found} in place of {one.expected}", run)


def _move_aside(disk: Disk, own_folder: str, path: str) -> None:
    """Move one aside without reading it; the target of a symlink is not touched.

    If it replaced the marker of a failed sync, the marker is written again.
    """
    misplaced.move_aside(disk, path)
    if path == os.path.join(own_folder, SYNC_FAILURE_NAME):
        mark_sync_failure(disk, own_folder, 0)
