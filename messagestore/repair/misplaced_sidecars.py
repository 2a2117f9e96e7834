"""Report symlinks, pipes and folders in place of our own files below `<store>/brokerstore`, and move them aside on request."""

from __future__ import annotations

import os

from storageio import Disk, misplaced
from storebytes.finding import Finding

from ..sidecar import OWN_FILES
from ..write.sync_failure import NAME as DOUBT_NAME
from ..write.sync_failure import mark_sync_failure


def strange_sidecars(disk: Disk, own_folder: str) -> list[Finding]:
    """Return one problem for each of them."""
    found = misplaced.find(disk, own_folder, OWN_FILES)
    return [Finding(one.path, 0, "strange_sidecar", one.expected_text, one.found_text) for one in found]


def plan_sidecars(disk: Disk, own_folder: str, actions: list[str]) -> None:
    """Add what `move_sidecars` would do to the actions."""
    actions += [f"move {one.file} aside: {one.found} in place of {one.expected}" for one in strange_sidecars(disk, own_folder)]


def move_sidecars(disk: Disk, own_folder: str) -> None:
    """Move each aside without reading it; the target of a symlink is not touched.

    If one replaced the marker of a failed sync, the marker is written again.
    """
    for one in strange_sidecars(disk, own_folder):
        misplaced.move_aside(disk, one.file)
        if one.file == os.path.join(own_folder, DOUBT_NAME):
            mark_sync_failure(disk, own_folder, 0)
