"""A running server keeps every writer out of its folder, although RabbitMQ locks nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rabbitstore import RabbitStore, apply_recovery, plan_recovery
from storageio import REAL_DISK, StoreLocked
from tests.helpers import contents

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what other processes have open")
Hold = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Return `hold(file, redirection, name)`, which starts a process of that name with the file open."""
    started: list[subprocess.Popen[bytes]] = []

    def start(file: Path, redirection: str, name: str) -> subprocess.Popen[bytes]:
        program = tmp_path / name
        program.symlink_to("/bin/sh")
        script = f'exec 3{redirection}"$1"; echo open; read answer'
        process = subprocess.Popen([str(program), "-c", script, "sh", str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.communicate(b"\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a virtual host, with a message and a torn end."""
    path = tmp_path / "vhost"
    with RabbitStore.open(path) as store:
        store.declare_queue("q")
        store.publish("q", bytes(5000))
    file = path / "msg_store_persistent" / "0.rdq"
    file.write_bytes(file.read_bytes() + b"torn")
    return path


def test_a_running_servers_folder_is_not_written_to(hold: Hold, folder: Path) -> None:
    """Both would append to one message file, and each collector would delete the other's files."""
    server = hold(folder / "msg_store_persistent" / "0.rdq", "<>", "beam.smp")
    before = contents(folder)
    plan = plan_recovery(str(folder))
    assert plan.steps
    with pytest.raises(StoreLocked, match=rf"beam\.smp, process {server.pid}"):
        RabbitStore.open(folder, "r+")
    with pytest.raises(StoreLocked, match="a server runs"):
        apply_recovery(str(folder))
    assert contents(folder) == before
    assert len(list(RabbitStore.open(folder, "r").messages())) == 1
    server.communicate(b"\n")
    apply_recovery(str(folder))
    RabbitStore.open(folder, "r+").close()


def test_readers_and_other_processes_do_not_lock_the_folder(hold: Hold, folder: Path) -> None:
    """A backup process and a forked worker with its parent's descriptors are not a server."""
    hold(folder / "msg_store_persistent" / "0.rdq", "<", "beam.smp")
    hold(folder / "msg_store_transient" / "0.rdq", "<>", "worker")
    RabbitStore.open(folder, "r+").close()


def test_a_server_of_a_folder_with_a_similar_name_does_not_block_writes(hold: Hold, folder: Path, tmp_path: Path) -> None:
    """A folder whose name starts with the same characters is another folder."""
    other = tmp_path / "vhost-2"
    other.mkdir()
    (other / "0.rdq").write_bytes(b"")
    hold(other / "0.rdq", "<>", "beam.smp")
    RabbitStore.open(folder, "r+").close()


def test_a_folder_named_by_a_link(hold: Hold, folder: Path, tmp_path: Path) -> None:
    """The process has opened the file by its real path."""
    (tmp_path / "link").symlink_to(folder)
    hold(folder / "msg_store_persistent" / "0.rdq", "<>", "beam.smp")
    with pytest.raises(StoreLocked):
        RabbitStore.open(tmp_path / "link", "r+")


def test_a_missing_folder_has_no_writers() -> None:
    """A missing folder has no writers."""
    assert REAL_DISK.writers("/no/such/folder") == ()
