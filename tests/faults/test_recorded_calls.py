"""The system calls of the real disk, recorded below Python, and the order of syncs that they must keep.

The lab replaces the real disk, so it cannot see whether that syncs.  Here `fault_shim.c` stands between Python and the kernel
and records each call that changes a file or a folder.  Writes through a memory map make no call and are not seen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.test_fault_shim import COMMANDS, rabbit_folder

pytestmark = pytest.mark.default

ROCKETMQ = """
import os, signal, sys
from brokerstore import Message, MessageStore
from indexfile.filters import KeyFilters
from messagestore import FlushMode
from tests.stores import small_config
KeyFilters.step = lambda self: None  # once a second: filters promise nothing, and mapping a full file allocates what it has
folder, end, mode = sys.argv[1:]
config = small_config(max_index_num=200, flush_disk_type=FlushMode[mode])
store = MessageStore.open(folder + "/above/further/store", "a", config)
store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
store.put_many([Message("T%d" % (n % 3), b"body" * 15, keys=["k%d" % n], queue_id=n % 2) for n in range(700)])
store.put_batch("B", 0, [Message("B", b"x"), Message("B", b"y")])
store.flush()
store.get("T0", 0, 0)
store.delete_before(65536)
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
store.close()
"""
RABBITMQ = """
import os, signal, sys
from rabbitstore import RabbitStore
folder, end = sys.argv[1:]
store = RabbitStore.open(folder + "/above/further/vhost")
store.declare_queue("q")
store.declare_queue("gone")
for n in range(300):
    store.publish("q", b"%d" % n * (1 if n % 2 else 3000))
    store.publish("gone", b"x")
store.sync()
for n in range(200):
    store.get("q", auto_ack=True)
store.delete_queue("gone")
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
store.close()
"""
TOOL = """
import sys
from brokerstore.tool import main
code = main(sys.argv[3:])
sys.exit(code if code not in (6, 7) else 0)
"""
ENDS = ("stop", "stop", "kill", "stop")
NAMED = ("create", "mkdir", "rmdir", "unlink", "rename", "to")  # calls that change a name in a folder
WRITTEN = ("create", "write", "pwrite", "pwritev", "pwritev2", "ftruncate", "posix_fallocate")
PROMISES_NOTHING = ("/lock", "/msg_store_transient/0.rdq")  # without content; with messages that a restart drops


class Call(NamedTuple):
    """One line of the shim's log."""

    thread: str
    name: str
    path: str


class Sessions:
    """A program run several times on one folder, with the calls of each run."""

    def __init__(self, shim: Path, above: Path) -> None:
        self.shim = shim
        self.folder = above / "base"
        self.folder.mkdir()
        self.log = above / "calls"

    def run(self, program: str, end: str, *more: str) -> list[Call]:
        """Run the program in a process of its own; return its calls in order."""
        environment = os.environ | {"LD_PRELOAD": str(self.shim), "FAULT_BELOW": str(self.folder), "FAULT_LOG": str(self.log)}
        command = [sys.executable, "-c", program, str(self.folder), end, *more]
        made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert made.returncode == (-signal.SIGKILL if end == "kill" else 0), made.stderr[-2000:]
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return [Call(*line.split("\t")) for line in lines]


def early_names(calls: list[Call]) -> list[str]:
    """Return new folders whose parent was not synced by the same thread's next call."""
    found = []
    for position, call in enumerate(calls):
        if call.name == "mkdir":
            following = next((other for other in calls[position + 1 :] if other.thread == call.thread), None)
            if following is None or following[1:] != ("fsync", os.path.dirname(call.path)):
                found.append(call.path)
    return found


def dirty_renames(calls: list[Call]) -> list[str]:
    """Return files that were renamed before what was written to them was synced."""
    dirty: set[str] = set()
    found = []
    for _thread, name, path in calls:
        if name in WRITTEN:
            dirty.add(path)
        elif name in ("fdatasync", "fsync", "unlink"):
            dirty.discard(path)
        elif name == "rename" and path in dirty:
            found.append(path)
    return found


def left_open(calls: list[Call]) -> list[str]:
    """Return unsynced changes of the run: files written, or folders in which names changed, without a later sync."""
    dirty: dict[str, str] = {}
    for _thread, name, path in calls:
        if name in NAMED:
            dirty[os.path.dirname(path)] = f"{name} {path}"
        if name in ("fsync", "fdatasync", "rmdir", "unlink", "rename"):
            dirty.pop(path, None)
        elif name in WRITTEN:
            dirty[path] = f"{name} {path}"
    return [what for what in dirty.values() if not what.endswith(PROMISES_NOTHING)]


@pytest.mark.parametrize(
    ("program", "more"), [(ROCKETMQ, ("ASYNC",)), (ROCKETMQ, ("SYNC",)), (RABBITMQ, ())], ids=["async", "sync", "rabbitmq"]
)
@pytest.mark.deep
def test_every_file_and_directory_entry_is_synced_before_it_is_needed(
    shim: Path, tmp_path: Path, program: str, more: tuple[str, ...]
) -> None:
    """A new folder's name is synced first, a file before it replaces another, and all of them before a clean stop."""
    sessions = Sessions(shim, tmp_path)
    for end in ENDS:
        calls = sessions.run(program, end, *more)
        assert sum(call.name in ("fsync", "fdatasync") for call in calls) > 15, "the recorder saw too little"
        assert early_names(calls) == []
        assert dirty_renames(calls) == []
        if end != "kill":
            assert left_open(calls) == []
            assert not any("abort" in os.path.basename(path) for path in sessions.folder.rglob("*"))


def test_a_clean_stop_is_recorded_after_every_other_file_is_synced(shim: Path, tmp_path: Path) -> None:
    """`abort` is removed, or `clean.dot` created, after every other file and name was synced."""
    sessions = Sessions(shim, tmp_path)
    for program, more, mark in ((ROCKETMQ, ("ASYNC",), ("unlink", "abort")), (RABBITMQ, (), ("to", "clean.dot"))):
        calls = sessions.run(program, "stop", *more)
        (position,) = [position for position, call in enumerate(calls) if (call.name, os.path.basename(call.path)) == mark]
        folder = os.path.dirname(calls[position].path)
        assert [call[1:] for call in calls[position + 1 :]] == [("fsync", folder)], "of the mark's own name"


def test_a_new_folder_and_each_of_its_parents_is_synced(shim: Path, tmp_path: Path) -> None:
    """`RealDisk.make_folder` syncs the parent of every folder that it makes; `sync_folder` calls fsync."""
    program = """
import sys
from storageio import REAL_DISK
REAL_DISK.make_folder(sys.argv[1] + "/a/b")
REAL_DISK.make_folder(sys.argv[1] + "/a/b")
REAL_DISK.sync_folder(sys.argv[1] + "/a")
"""
    sessions = Sessions(shim, tmp_path)
    base = str(sessions.folder)
    assert [call[1:] for call in sessions.run(program, "stop")] == [
        ("mkdir", f"{base}/a"), ("fsync", base), ("mkdir", f"{base}/a/b"), ("fsync", f"{base}/a"), ("fsync", f"{base}/a"),
    ]  # fmt: skip


def damaged_rabbit_folder(folder: Path) -> None:
    """Make a folder whose clean-stop mark is damaged: `recover` deletes the files that the mark confirms."""
    rabbit_folder(folder)
    (folder / "vhost" / "msg_store_persistent" / "clean.dot").write_bytes(b"junk")


TOOL_RUNS = {name: (make, text) for name, (make, text, _result, _count) in COMMANDS.items()} | {
    "recover of RabbitMQ's": (damaged_rabbit_folder, "recover --apply {}/vhost")
}


@pytest.mark.parametrize("name", TOOL_RUNS)
def test_the_tool_syncs_every_written_file_and_changed_name(name: str, shim: Path, tmp_path: Path) -> None:
    """When a repair, copy or import ends, every written file and every changed name is synced."""
    make, text = TOOL_RUNS[name]
    sessions = Sessions(shim, tmp_path)
    make(sessions.folder)
    calls = sessions.run(TOOL, "stop", *(part.format(sessions.folder) for part in text.split()))
    assert len(calls) > 20
    assert early_names(calls) == []
    assert dirty_renames(calls) == []
    assert left_open(calls) == []
