"""A small node of RabbitMQ 4 in memory: a classic queue of version 2, quorum queues with all kinds of files, streams.

The files are those of real servers (tests/data), of which only some queues are taken, so that a run is short.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from fuzz.folders import SmallFolder
from rabbitstore import RabbitStore, apply_recovery, plan_recovery, verify
from rabbitstore.node_folder import NodeFolder
from rabbitstore.read.vhost_folder import find_vhost
from storageio import Disk
from storageio.testing.forgetting_images import Image

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
ROOT = "/node"
TIME_MS = 1_795_434_100_000
PARTS = {
    "rabbitmq4-quorum-snapshot": r"quorum/[^/]*/(?:[^/]*$|2F_Q(?:ROBOVGW|CO778X1|ONSZ7A2))",
    "rabbitmq4-streams": r"msg_stores/|coordination/|cluster_nodes|stream/__s_(?:batched|filtered|protocol|amqp10)_",
}
DERIVED = re.compile(r"(?:coordination|quorum)/[^/]*/(?:names|meta)\.dets$|.*\.index$|.*/checkpoints/|.*/recovery\.dets$")
STAY = {"write_name"}  # steps that a second recovery may repeat: a lost name may be unknown


class SmallNode(SmallFolder):
    """The folder of a node, damaged anew in each run."""

    def __init__(self) -> None:
        """Read the files from the archives."""
        files: dict[str, bytes] = {}
        for archive, pattern in PARTS.items():
            requested = re.compile(r"(?:\./)?node/((?:" + pattern + r").*)")
            with tarfile.open(DATA / f"{archive}.tar.xz") as tar:
                for member in tar:
                    match, file = requested.match(member.name), tar.extractfile(member) if member.isfile() else None
                    if match and file is not None:
                        files[f"{ROOT}/{match[1]}"] = file.read()
        folders = {str(above) for name in files for above in Path(name).parents if str(above) != "/"}
        super().__init__(Image(files, tuple(sorted(folders)), dict.fromkeys(files, TIME_MS)), TIME_MS, ROOT)

    def examine(self, disk: Disk) -> int:
        """Verify everything and return the number of messages that a reader gets; a named error may be raised."""
        verify(find_vhost(ROOT, None, disk), disk)
        with closing(NodeFolder(ROOT, "/", disk)) as node:
            node.check()
        return _contents(disk).total()

    def repair(self, disk: Disk, messages: int | None) -> None:
        """Recover, and assert that every message is there that was readable before, and that nothing is left to do."""
        before = _contents(disk)
        for _ in range(2):
            plan = plan_recovery(ROOT, disk)
            left = {step.kind for step in plan.steps}
            apply_recovery(ROOT, disk)
        after = _contents(disk)
        assert before <= after, f"{(before - after).total()} readable messages are gone"
        assert left <= STAY, f"a second recovery has something to do: {left}"
        if messages is not None:
            assert after.total() == messages, f"{after.total()} messages after a recovery, and {messages} before the damage"
        with closing(NodeFolder(ROOT, "/", disk)) as folder:
            problems = {one.kind for one in folder.check().problems}
        assert not problems or plan.unrepaired, problems

    def is_derived(self, name: str) -> bool:
        """Return whether no message is lost with a file."""
        return bool(DERIVED.match(name))


def _contents(disk: Disk) -> Counter[bytes]:
    """Count the bodies, except those that a start drops; a queue without its name is listed by its folder's."""
    with closing(RabbitStore.open(ROOT, "r", disk=disk).folder()) as folder:
        found = Counter(one.body for one in folder.messages())
    with closing(NodeFolder(ROOT, "/", disk)) as node:
        found.update(one.body for one in node.messages() if not getattr(one, "reason", ""))
    return found
