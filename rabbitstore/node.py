"""A node's data folder as a whole: what lies in it besides classic queues, and which of it is read here.

msg_stores/vhosts/<V>/         classic queues: read
quorum/<node>/<UId>/config     a quorum queue: named, not read
stream/<name>/                 a stream: named, not read
schema.DAT LATEST.LOG          metadata in Mnesia: not read
rabbitmq_metadata/             metadata in Khepri (4.x): not read
<node>-feature_flags           beside the folder: from it a least version of the server is known
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from storageio import REAL_DISK, Disk, Kind

from .formats import read_flags
from .paths import read_head

_CONFIG_MAX = 1 << 20
_RESOURCE = re.compile(rb'queue_resource\s*=>\s*\{resource,\s*<<"([^"]*)"[^>]*>>,\s*queue,\s*<<"((?:[^"\\]|\\.)*)"')
_RELEASE = re.compile(r"rabbitmq_(\d+)\.(\d+)\.(\d+)\Z")
UNKNOWN = "unknown"


@dataclass
class Node:
    """What a node's folder holds.  `server_version` is the least one that fits, `version_from` says how it is known."""

    quorum_queues: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    server_version: str = UNKNOWN
    version_from: str = "nothing in the folder tells it"

    def to_json(self) -> dict[str, Any]:
        """The object that the tool prints."""
        return asdict(self)

    def not_read(self) -> str:
        """Return the queues that no command reads, in words; empty when there are none."""
        counts = (len(self.quorum_queues), "quorum queue"), (len(self.streams), "stream")
        return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts if count)


def survey(path: str, disk: Disk = REAL_DISK) -> Node | None:
    """Return what lies in a node's folder; None for another folder, such as a virtual host's."""
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
        _tell_version(found, read_flags(disk, flags), os.path.basename(flags))
    return found


def _folders(disk: Disk, path: str) -> list[str]:
    return sorted(entry.name for entry in disk.list(path) if entry.kind is Kind.FOLDER) if disk.stat(path) is not None else []


def _quorum_queues(disk: Disk, path: str) -> list[str]:
    """Names from each queue's `config`; the folder's name where it does not tell."""
    found = []
    for node in _folders(disk, f"{path}/quorum"):
        for uid in _folders(disk, f"{path}/quorum/{node}"):
            text = read_head(disk, f"{path}/quorum/{node}/{uid}/config", _CONFIG_MAX)
            if text is not None:
                named = _RESOURCE.search(text)
                found.append(named[2].decode("utf-8", "replace") if named else uid)
    return sorted(found)


def _tell_version(found: Node, flags: list[str], file: str) -> None:
    releases = [(tuple(map(int, match.groups())), flag) for flag in flags if (match := _RELEASE.match(flag))]
    if releases:
        numbers, flag = max(releases)
        found.server_version = ".".join(map(str, numbers)) + " or later"
        found.version_from = f"feature flag {flag} in {file}"
    elif "message_containers" in flags:
        found.server_version, found.version_from = "3.13 or later", f"feature flag message_containers in {file}"
