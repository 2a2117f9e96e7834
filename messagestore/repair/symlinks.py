"""Links in a store that lead out of it: followed for reading, for writing only where the operator says so."""

from __future__ import annotations

import os

from storageio import Disk, Kind, StoreReadOnly

from ..paths import StorePaths


def refuse_links(disk: Disk, places: StorePaths) -> None:
    """Raise `StoreReadOnly` where what a recovery writes to is a link: it would change what lies outside of the folder.

    Brokers do have their log on another disk by a link; who knows that it is theirs says `--follow-links`.  A store's own
    folder may be a link.  Queues and index are made anew in their place, so that links there are never followed.
    """
    inside = [path for path in (places.commit_log, places.config, places.own) if os.path.dirname(path) == places.root]
    for path in inside:
        entry = disk.stat(path)
        if entry is not None and entry.kind is Kind.OTHER:
            raise StoreReadOnly(f"{path} is a link: what it leads to is changed only with --follow-links")
