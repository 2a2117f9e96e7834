"""Survey a node's data folder: classic queues, which this package reads, and everything else.

msg_stores/vhosts/<V>/         classic queues: read
quorum/<node>/<UId>/config     a quorum queue: listed here, read by `rabbitstore.quorum`
stream/<name>/                 a stream: listed here, read by `rabbitstore.stream`
schema.DAT LATEST.LOG          metadata in Mnesia: not read
rabbitmq_metadata/             metadata in Khepri (4.x): not read
<node>-feature_flags           beside the folder: shows the lowest possible version of the server
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, read_head

from ..format.config_text import parse_config, queue_name
from .unsupported import read_flags

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


def survey(path: str, disk: Disk = REAL_DISK) -> Node | None:
    """Survey a node's folder; return None for any other folder, such as a virtual host's."""
    if disk.stat(f"{path}/msg_stores") is None:
        return None
    found = Node(_quorum_queues(disk, path), _folders(disk, f"{path}/stream"))
    names = {entry.name for entry in disk.list(path)}
    if names & {"schema.DAT", "LATEST.LOG"}:
        found.metadata.append("mnesia")
    if "rabbitmq_metadata" in names:
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
