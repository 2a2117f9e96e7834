"""Paths inside a store's folder."""

from __future__ import annotations

import os

OWN_FOLDER = "brokerstore"  # RocketMQ does not know this folder; losing it loses no acknowledged message


class StorePaths:
    """The paths inside a store's folder."""

    def __init__(self, root: str, commit_log: str | None = None) -> None:
        """Set the paths; `commit_log` is the folder of the log if it is not inside the store."""
        self.root = root
        self.commit_log = commit_log or os.path.join(root, "commitlog")
        self.queues = os.path.join(root, "consumequeue")
        self.ext = os.path.join(root, "consumequeue_ext")
        self.batch = os.path.join(root, "batchconsumequeue")
        self.index = os.path.join(root, "index")
        self.lock = os.path.join(root, "lock")
        self.config = os.path.join(root, "config")
        self.own = os.path.join(root, OWN_FOLDER)
        self.key_filters = os.path.join(self.own, "keys")


def replaced_folder(root: str, name: str) -> str:
    """Return the path of a folder while a new one replaces it.

    If the process is killed in between, the store has only this one.
    """
    return os.path.join(root, OWN_FOLDER, f"replaced-{name}")
