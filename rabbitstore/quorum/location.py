"""Note the paths at which a server needs a node's folder (docs/formats/rabbitmq-quorum.md#path-of-the-folder).

Servers of 3.9 to 3.12 write the path of their folder into each `config`, and look for the log there.
"""

from __future__ import annotations

import os
from typing import Any

from storageio import REAL_DISK, Disk, real_path
from storebytes.finding import Finding, note
from storebytes.plan import count_text

from ..format.terms import Atom
from ..read.metadata import feature_flags
from .coordinator import current_name
from .folder import QuorumQueue, quorum_nodes

OTHER_PATH = "other_path"
_WITHOUT_PATHS = "rabbitmq_4.0.0"  # a feature flag of servers that do not use the path
_SYSTEM, _PATH = Atom("system_config"), Atom("data_dir")


def path_notes(node: str, disk: Disk = REAL_DISK) -> list[Finding]:
    """Return a note for each path in the `config` files that does not lead to the folder, also from within a chroot."""
    flags, _damage = feature_flags(node, disk)
    if flags is not None and _WITHOUT_PATHS in flags:
        return []
    here, own = real_path(node), current_name(node, disk)
    written: dict[str, list[QuorumQueue]] = {}
    for folder in ("quorum", "coordination"):
        for system in quorum_nodes(node, disk, folder=folder):
            name = system.path.rpartition("/")[2]
            with system:
                for log in system.queues() if own in ("", name) else ():
                    path = _written_path(log).removesuffix(f"/{folder}/{name}")
                    if path and not (os.path.abspath(node).endswith(path) or here.endswith(path)):
                        written.setdefault(path, []).append(log)
    return [_note(path, here, logs) for path, logs in written.items() if real_path(path) != here]


def _note(path: str, here: str, logs: list[QuorumQueue]) -> Finding:
    count = sum(log.node.has_queues for log in logs)
    served = count_text(count, "quorum queue") + (" and the streams" if count < len(logs) else "")
    found = f"{here}; elsewhere a server of 3.9 to 3.12 does not serve {served} whose config has this path"
    return note(f"{logs[0].relative}/config", 0, OTHER_PATH, f"the folder, or a symlink to it, at {path}", found)


def _written_path(queue: QuorumQueue) -> str:
    """Return the path of a log's node in its `config`, an empty text without any.

    One beyond ASCII may be a list of characters.
    """
    system: Any = queue.config.get(_SYSTEM)
    found = system.get(_PATH) if isinstance(system, dict) else None
    if isinstance(found, list) and all(isinstance(one, int) and 0 < one < 0x110000 for one in found):
        found = _decoded(found)
    return str(found) if isinstance(found, str) and found.startswith("/") else ""


def _decoded(characters: list[int]) -> str:
    """Return the text of a list of characters, or of the bytes of its UTF-8."""
    text = "".join(map(chr, characters))
    try:
        return text.encode("latin-1").decode()
    except (UnicodeEncodeError, UnicodeDecodeError):
        return text
