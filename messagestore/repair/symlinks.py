"""Check symlinks that lead out of a store: reading follows them, writing does so only if the operator allows it."""

from __future__ import annotations

import os

from storageio import Disk, Kind, StoreReadOnly

from ..paths import StorePaths


def refuse_links(disk: Disk, paths: StorePaths) -> None:
    """Raise `StoreReadOnly` if recovery would write through a symlink and so change something outside the folder.

    Brokers may have their log on another disk behind a symlink; operators confirm this with `--follow-links`. The store's own
    folder may be a symlink. Queues and index are rebuilt in place, so symlinks there are never followed.
    """
    inside = [path for path in (paths.commit_log, paths.config, paths.own) if os.path.dirname(path) == paths.root]
    for path in inside:
        entry = disk.stat(path)
        if entry is not None and entry.kind is Kind.OTHER:
            raise StoreReadOnly(f"{path} is a link: what it leads to is changed only with --follow-links")
