"""The installed tool, with failing system calls below the C library: EIO, ENOSPC, short writes.

Nothing of the library is replaced: `fault_shim.c` stands between Python and the kernel (LD_PRELOAD).  After a fault the tool
ends with an exit code and a message.  Run again without the fault, it reaches the same result as an undisturbed run.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from brokerstore import Message, MessageStore
from rabbitstore import RabbitStore
from tests.stores import small_config

POINTS = int(os.environ.get("BROKERSTORE_SHIM_POINTS", "2"))  # failing calls per command; 0 means every call
CONFIG = small_config(max_index_num=200)
KINDS = [("EIO", {}), ("ENOSPC", {"FAULT_FOREVER": "1"}), ("ENOSPC", {"FAULT_SHORT": "1"}), ("EIO", {"FAULT_FOREVER": "1"})]
FINE = (0, 6, 7)


class Ended(NamedTuple):
    code: int
    talk: str
    calls: int


def run_tool(shim: Path, folder: Path, command: list[str], fault: dict[str, str]) -> Ended:
    """Run the tool in a process of its own."""
    count = folder.parent / "calls"
    environment = os.environ | {"LD_PRELOAD": str(shim), "FAULT_BELOW": str(folder), "FAULT_COUNT": str(count)} | fault
    made = subprocess.run([sys.executable, "-m", "brokerstore", *command], env=environment, capture_output=True, text=True,
                          timeout=120, check=False)  # fmt: skip
    return Ended(made.returncode, made.stderr[-2000:], int(count.read_text()))


def damaged_store(folder: Path) -> None:
    """Make a store of thirty messages with one damaged, one queue missing, and an invalid checkpoint."""
    store = folder / "store"
    with MessageStore.open(store, "a", CONFIG) as made:
        for number in range(30):
            made.put(Message("T", b"body %d" % number, keys=["key"], queue_id=number % 2))
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(b"body 7")] ^= 1
    path.write_bytes(data)
    shutil.rmtree(store / "consumequeue" / "T" / "1")
    (store / "checkpoint").write_bytes(b"\xff" * 4096)


def whole_store(folder: Path) -> None:
    store = folder / "store"
    with MessageStore.open(store, "a", CONFIG) as made:
        for number in range(30):
            made.put(Message("T", b"body %d" % number, keys=["key"], queue_id=number % 2))


def rabbit_folder(folder: Path) -> None:
    with RabbitStore.open(str(folder / "vhost")) as made:
        made.declare_queue("q")
        for number in range(30):
            made.publish("q", b"body %d" % number)


COMMANDS = {
    "recover": (damaged_store, "recover --apply --skip-bad {}/store", "store", 29),
    "rebuild": (whole_store, "rebuild --apply {}/store all", "store", 30),
    "copy": (whole_store, "copy {}/store --to {}/new --topic T", "new", 30),
    "import": (rabbit_folder, "import {}/vhost --to {}/new", "new", 30),
    "rebuild of RabbitMQ's": (rabbit_folder, "rebuild --apply {}/vhost", "vhost", 30),
}


def bodies(store: Path) -> Counter[bytes]:
    if store.name == "vhost":
        return Counter(message.body for message in RabbitStore.open(store, "r").folder().messages())
    with MessageStore.open(store, "r") as opened:
        return Counter(
            bytes(message.body) for topic in opened.topics() for queue_id in opened.queue_ids(topic)
            for message in opened.read(topic, queue_id) if message.body.startswith(b"body")
        )  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_system_call_faults_under_the_tool_lose_no_message(name: str, shim: Path, tmp_path: Path) -> None:
    """A fault ends in a named error, and a second run completes the command."""
    make, _text, _result, count = COMMANDS[name]
    (tmp_path / "golden").mkdir()
    make(tmp_path / "golden")
    calls = _once(name, shim, tmp_path, {}, expected=count).calls
    assert calls > 20
    numbers = range(1, calls + 1, max(calls // POINTS, 1) if POINTS else 1)
    for position, number in enumerate(numbers):
        kind, more = KINDS[(position + len(name)) % len(KINDS)]
        fault = {"FAULT_AT": str(number), "FAULT_ERRNO": str(getattr(errno, kind)), **more}
        _once(name, shim, tmp_path, fault, expected=count)
    print(f"{name}: {len(numbers)} of {calls} calls failed")


def _once(name: str, shim: Path, above: Path, fault: dict[str, str], *, expected: int) -> Ended:
    _make, text, result, _count = COMMANDS[name]
    folder = above / "work"
    shutil.copytree(above / "golden", folder)
    command = [part.format(folder) for part in text.split()]
    first = run_tool(shim, folder, command, fault)
    where = f"{name} {fault}: code {first.code}\n{first.talk}"
    assert "Traceback" not in first.talk and "internal error" not in first.talk, where
    assert first.code in (*FINE, 1, 4, 5), where
    ended = first
    if first.code not in FINE:
        assert first.talk.strip(), where
        ended = run_tool(shim, folder, command, {})
        if ended.code == 3 and name == "copy":  # `copy` refuses to overwrite a partial copy
            shutil.rmtree(folder / "new")
            ended = run_tool(shim, folder, command, {})
    assert ended.code in FINE, f"{where}\nand again: code {ended.code}\n{ended.talk}"
    found = bodies(folder / result)
    assert len(found) == expected and set(found.values()) == {1}, f"{where}\n{len(found)} messages, {found.most_common(1)}"
    shutil.rmtree(folder)
    return first


WRITER = """
import sys
from brokerstore import Message, MessageStore
from storageio import PutRejected
from tests.faults.test_fault_shim import CONFIG

store = MessageStore.open(sys.argv[1], "a", CONFIG)
put = []
try:
    for number in range(1700):
        put.append(store.put(Message("T", b"body %d" % number, keys=[f"k{number}"], queue_id=number % 4)).physical_offset)
except PutRejected:
    pass
wrong = [number for number, at in enumerate(put) if [hit.physical_offset for hit in store.query("T", f"k{number}")] != [at]]
metrics = store.metrics()
print(len(put), len(wrong), store.undispatched_messages, store.unsearched_bytes, metrics.dispatch_failure)
store.close()
"""


@pytest.mark.parametrize("below", ["consumequeue", "index"])
def test_every_acknowledged_key_is_found_after_dispatch_stopped(shim: Path, tmp_path: Path, below: str) -> None:
    """One sync that fails with EIO ends dispatch: `query` searches the log, and messages that are in no queue are counted."""
    folder = tmp_path / "store"
    fault = {"LD_PRELOAD": str(shim), "FAULT_BELOW": str(folder / below), "FAULT_CALL": "sync", "FAULT_AT": "4"}
    made = subprocess.run([sys.executable, "-c", WRITER, str(folder)], env=os.environ | fault, capture_output=True, text=True,
                          timeout=120, check=False, cwd=Path(__file__).parents[2])  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    acknowledged, wrong, undispatched, unsearched, failure = made.stdout.split(maxsplit=4)
    assert "sync" in failure and "Input/output error" in failure
    assert (int(wrong), int(unsearched)) == (0, 0) and int(acknowledged) > 0 < int(undispatched)
    assert int(acknowledged) - len(bodies(folder)) == int(undispatched)
    MessageStore.open(folder, "a", CONFIG).close()
    assert len(bodies(folder)) == int(acknowledged), "the next opening dispatches the rest"
