"""Every fact about a RabbitMQ folder, a node's or a virtual host's, found once: `RabbitmqFacts`.

A node's data folder has classic queues, which `rabbitstore.read` reads, and everything else:

msg_stores/vhosts/<V>/         classic queues: read
quorum/<node>/<UId>/config     a quorum queue: listed here, read by `rabbitstore.quorum`
stream/<name>/                 a stream: listed here, read by `rabbitstore.stream`
schema.DAT LATEST.LOG          metadata in Mnesia: read by `definitions`
coordination/                  metadata in Khepri, if there are no tables of Mnesia: read by `definitions`
<node>-feature_flags           beside the folder: shows the lowest possible version of the server
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, Writer, read_head
from storebytes.folder_kind import FolderKind

from .folder_lock import running_server
from .format.config_text import parse_config, queue_name
from .read.mnesia import has_tables
from .read.unsupported import read_flags
from .read.vhost_folder import find_vhost

_CONFIG_MAX = 1 << 20
_RELEASE = re.compile(r"rabbitmq_(\d+)\.(\d+)\.(\d+)\Z")
UNKNOWN = "unknown"


@dataclass
class Node:
    """The contents of a node's folder.  `server_version` is the lowest that fits, `version_from` names the evidence."""

    quorum_queues: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    server_version: str = UNKNOWN
    version_from: str = "no file in the folder shows it"

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints."""
        return asdict(self)

    def not_read(self) -> str:
        """Count the queues that are not classic, as text; return an empty text without any."""
        counts = (len(self.quorum_queues), "quorum queue"), (len(self.streams), "stream")
        return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts if count)


class RabbitmqFacts:
    """What one folder holds and who has it."""

    kind: ClassVar[FolderKind] = FolderKind.RABBITMQ
    log_folders: ClassVar[list[str]] = []

    def __init__(self, path: str, disk: Disk = REAL_DISK) -> None:
        """Nothing is read yet."""
        self.path = path
        self.disk = disk

    @cached_property
    def node(self) -> Node | None:
        """The contents of a node's folder; None for any other folder, such as a virtual host's."""
        return _survey(self.path, self.disk)

    @property
    def server(self) -> Writer | None:
        """The process of a server that runs on the folder, None if none is visible."""
        return running_server(self.disk, self.path)

    @property
    def is_in_use(self) -> bool:
        """Whether a server runs on the folder."""
        return self.server is not None

    def vhost(self, name: str | None) -> str:
        """Return the folder of the only virtual host, or of the one of this name; raise `UnknownStore` otherwise."""
        return find_vhost(self.path, name, self.disk)

    def refuse_unread(self) -> None:
        """Do nothing: each queue of a format that cannot be read is reported on its own."""


def _survey(path: str, disk: Disk) -> Node | None:
    if disk.stat(f"{path}/msg_stores") is None:
        return None
    found = Node(_quorum_queues(disk, path), _folders(disk, f"{path}/stream"))
    names = {entry.name for entry in disk.list(path)}
    if has_tables(names):
        found.metadata.append("mnesia")
    elif names & {"rabbitmq_metadata", "coordination"}:
        found.metadata.append("khepri")
    flags = f"{os.path.abspath(path)}-feature_flags"
    if disk.stat(flags) is not None:
        _set_version(found, read_flags(disk, flags), os.path.basename(flags))
    return found


def _folders(disk: Disk, path: str) -> list[str]:
    return sorted(entry.name for entry in disk.list(path) if entry.kind is Kind.FOLDER) if disk.stat(path) is not None else []


def _quorum_queues(disk: Disk, path: str) -> list[str]:
    """Return the name in each queue's `config`, or the folder's name when it has none."""
    found = []
    for node in _folders(disk, f"{path}/quorum"):
        for uid in _folders(disk, f"{path}/quorum/{node}"):
            text = read_head(disk, f"{path}/quorum/{node}/{uid}/config", _CONFIG_MAX)
            if text is not None:
                found.append(_queue_name(text, uid))
    return sorted(found)


def _queue_name(text: bytes, uid: str) -> str:
    try:
        found = queue_name(parse_config(text, f"{uid}/config"))
    except StoreCorrupt:  # reported when the queue is read
        found = None
    return uid if found is None else found[1]


def _set_version(found: Node, flags: list[str], file: str) -> None:
    releases = [(tuple(map(int, match.groups())), flag) for flag in flags if (match := _RELEASE.match(flag))]
    if releases:
        numbers, flag = max(releases)
        found.server_version = ".".join(map(str, numbers)) + " or later"
        found.version_from = f"feature flag {flag} in {file}"
    elif "message_containers" in flags:
        found.server_version, found.version_from = "3.13 or later", f"feature flag message_containers in {file}"
