"""Forks, spawned readers, second writers, exits without a close, interrupts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from storageio import StoreError
from tests.messagestore.kit import message, number_of, open_small, put_numbers, read_all
from tests.processes import running

ROOT = Path(__file__).parents[2]
PRELUDE = """
import sys, os, signal, threading, time
from commitlog import Message
from messagestore import MessageStore
from tests.stores import small_config
from storageio import StoreClosed, StoreError, StoreLocked
CONFIG = small_config(max_index_num=2000)
folder = sys.argv[1]
def body(number): return b"%08d" % number
def put(store, number, size=0): return store.put(Message("T", body(number).ljust(size, b"."), queue_id=0))
"""


HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def script(
    world: Any, folder: Path, text: str, timeout_s: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program on the folder in a process of its own, with the same build."""
    plain = "from storebytes.builds import PlainFinder\nPlainFinder.install()\n" if world.build == "plain" else ""
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", plain + PRELUDE + textwrap.dedent(text), str(folder)],
        capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def in_child(call: Any) -> int:
    """Fork, call, and return the child's exit code: 0 unless an error was raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_childs_store_is_closed_and_the_parents_is_not(world: Any, tmp_path: Path) -> None:
    """Every call of the child raises StoreClosed; its close touches nothing; the parent continues."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(3))

        def use() -> None:
            calls = (lambda: store.put(message(world, 9)), lambda: store.get("T", 0, 0), lambda: store.flush())
            for call in calls:
                try:
                    call()
                except StoreError:
                    continue
                raise AssertionError("the child could use the store")
            store.close()

        for _ in range(3):
            assert in_child(use) == 0
            put_numbers(world, store, range(1))
        assert (tmp_path / "s" / "abort").exists()
        assert store.max_offset("T", 0, committed=False) == 6
        assert len(read_all(store, "T")) == 6
    with open_small(world, tmp_path / "s") as store:
        assert store.engine.was_clean


def test_exit_of_a_forked_child_does_not_change_the_parent_store(world: Any, tmp_path: Path) -> None:
    """Finalizers run in the child; the lock stays the parent's, the abort file stays, no record is touched."""
    done = script(
        world, tmp_path / "s",
        """
        store = MessageStore.open(folder, config=CONFIG)
        put(store, 0)
        child = os.fork()
        if child == 0:
            try:
                put(store, 1)
            except StoreClosed:
                sys.exit(7)  # with all of Python's clean-up
            sys.exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 7, code
        assert os.path.exists(folder + "/abort")
        assert put(store, 1).queue_offset == 1
        import subprocess
        code = "import sys; from messagestore import MessageStore; MessageStore.open(sys.argv[1])"
        other = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
        assert "StoreLocked" in other.stderr, other.stderr
        store.close()
        print("fine")
        """,
    )  # fmt: skip
    assert done.stdout == "fine\n", done.stderr
    with open_small(world, tmp_path / "s") as store:
        assert store.engine.was_clean
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1]


def test_exit_without_close_leaves_a_clean_store(world: Any, tmp_path: Path) -> None:
    """The store is closed at exit: there is nothing to recover, and everything exists."""
    done = script(world, tmp_path / "s", "store = MessageStore.open(folder, config=CONFIG)\nfor n in range(50): put(store, n)")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "s" / "abort").exists()
    with open_small(world, tmp_path / "s") as store:
        assert store.engine.was_clean
        assert [number_of(found) for found in store.read("T", 0)] == list(range(50))


def test_an_uncaught_error_leaves_a_clean_store_too(world: Any, tmp_path: Path) -> None:
    """This is the same after a traceback, while another thread still puts."""
    done = script(
        world, tmp_path / "s",
        """
        store = MessageStore.open(folder, config=CONFIG)
        has_put = threading.Event()
        def run():
            try:
                for n in range(1 << 30): put(store, n); has_put.set()
            except StoreClosed:
                pass
        threading.Thread(target=run, daemon=True).start()
        has_put.wait()
        time.sleep(0.05)
        raise ValueError("a program's own")
        """,
    )  # fmt: skip
    assert done.returncode == 1
    assert "a program's own" in done.stderr
    assert not (tmp_path / "s" / "abort").exists()
    with open_small(world, tmp_path / "s") as store:
        assert store.engine.was_clean
        total = store.max_offset("T", 0)
        assert total > 0
        assert [number_of(found) for found in store.read("T", 0)] == list(range(total))


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_killed_writer_loses_nothing_that_was_acknowledged(world: Any, tmp_path: Path, is_sync: bool) -> None:
    """After SIGKILL during puts everything that was acknowledged exists, under both flush modes."""
    mode = "SYNC" if is_sync else "ASYNC"
    done = script(
        world, tmp_path / "s",
        f"""
        from messagestore import FlushMode
        store = MessageStore.open(folder, config=CONFIG.but(flush_disk_type=FlushMode.{mode}))
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        for n in range(1 << 30):
            put(store, n)
            os.write(1, b"%d\\n" % n)
        """,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    acknowledged = [int(line) for line in done.stdout.split()]
    with open_small(world, tmp_path / "s") as store:
        assert not store.engine.was_clean
        found = [number_of(one) for one in store.read("T", 0)]
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1
        assert store.put(message(world, 0)).queue_offset == len(found)


def test_a_second_writer_in_another_process_is_refused(world: Any, tmp_path: Path) -> None:
    """It raises StoreLocked, and the attempt does not release our lock; a reader is accepted."""
    attempt = """
        try:
            MessageStore.open(folder, config=CONFIG)
        except StoreLocked:
            print("locked", end=" ")
        with MessageStore.open(folder, "r", config=CONFIG) as store:
            print(len(list(store.read("T", 0))))
        """
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(5))
        store.get("T", 0, 0)
        for _ in range(2):
            done = script(world, tmp_path / "s", attempt)
            assert done.stdout == "locked 5\n", done.stderr


def test_open_fails_while_another_process_holds_a_posix_record_lock(world: Any, tmp_path: Path) -> None:
    """Another process holds byte 0 of `lock` with a POSIX record lock, as a broker does."""
    open_small(world, tmp_path / "s").close()
    command = [sys.executable, "-c", HOLD_LOCK, tmp_path / "s" / "lock"]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Exception, match="has the store open for writing"):
            open_small(world, tmp_path / "s")
    open_small(world, tmp_path / "s").close()


def _count(folder: str, results: Any) -> None:
    """Return, from a spawned process, how many messages a reader finds."""
    from messagestore import MessageStore

    with MessageStore.open(folder, "r") as store:
        results.put([int(found.body[:8]) for found in store.read("T", 0)])


def test_a_spawned_reader_beside_the_writer(tmp_path: Path) -> None:
    """With multiprocessing's spawn, a fresh interpreter reads what is dispatched while this process holds the store."""
    from tests.builds import is_compiled_here, load

    world = load("compiled" if is_compiled_here() else "plain")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(40))
        store.get("T", 0, 0)
        reader = context.Process(target=_count, args=(str(tmp_path / "s"), results))
        reader.start()
        assert results.get(timeout=60) == list(range(40))
        reader.join(30)
        assert reader.exitcode == 0
        put_numbers(world, store, range(40, 41))
    results.close()


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.deep
def test_repeated_interrupts_leave_no_offset_gap(world: Any, tmp_path: Path, is_sync: bool) -> None:
    """With SIGINT every millisecond for a while, offsets have no gap, acknowledged messages exist, and the store still works.

    A compiled put that waits for nothing runs no Python code, so an interrupt comes before or after it.
    """
    mode = "SYNC" if is_sync else "ASYNC"
    is_whole = str(world) == "compiled" and not is_sync
    done = script(
        world, tmp_path / "s",
        f"""
        from messagestore import FlushMode
        store = MessageStore.open(folder, config=CONFIG.but(flush_disk_type=FlushMode.{mode}))
        put(store, 0)
        acknowledged, number, hits = [0], 1, 0
        def interrupt(_, frame):
            while frame is not None:
                if frame.f_code.co_filename.endswith(("_put_cy.py", "flusher.py")):
                    raise KeyboardInterrupt
                frame = frame.f_back
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            try:
                number += 1
                put(store, number, 2000)
            except KeyboardInterrupt:
                hits += 1
            else:
                acknowledged.append(number)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        put(store, number + 1)
        found = [(m.queue_offset, int(m.body[:8])) for m in store.read("T", 0)]
        assert [offset for offset, _ in found] == list(range(len(found)))
        numbers = [n for _, n in found]
        assert numbers == sorted(set(numbers))
        assert set(acknowledged) <= set(numbers)
        store.close()
        print("fine", hits > 20 or {is_whole})
        """,
    )  # fmt: skip
    assert done.stdout == "fine True\n", done.stderr[-2000:] + done.stdout
