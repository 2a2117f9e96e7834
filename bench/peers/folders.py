"""Whole folders, cold and warm: commands of the tool against a plain read of the same files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rabbitstore import RabbitSettings, RabbitStore

from .own_store import TAGS, OwnStore, body_of
from .turns import Row, take_turns

PEER = "plain read"
BODY = 1024
MESSAGES = 3_000_000
BATCH = 20_000
READ = 1 << 20
WHOLE, DUMPED = 1 / 1.15, 1 / 1.5  # of the rate of a plain cold read
ANONYMOUS_MIB = 300.0
TOOL = [sys.executable, "-m", "brokerstore"]


class Command(NamedTuple):
    """A command of the tool, with the folder last, and its target when the folder is cold."""

    words: tuple[str, ...]
    target: float


ROCKETMQ = (
    Command(("verify", "--log-only"), WHOLE), Command(("verify",), WHOLE), Command(("recover",), WHOLE),
    Command(("rebuild", "--apply"), WHOLE), Command(("stats",), WHOLE), Command(("report",), WHOLE),
    Command(("dump", "--json"), DUMPED),
)  # fmt: skip
RABBITMQ = (
    Command(("verify",), WHOLE), Command(("recover",), WHOLE), Command(("stats",), WHOLE), Command(("dump", "--json"), DUMPED),
)  # fmt: skip


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield a cold and a warm row for each command, and the memory of `verify`."""
    kinds = (("folders: RocketMQ", fill_rocketmq, ROCKETMQ), ("folders: RabbitMQ", fill_rabbitmq, RABBITMQ))
    for kind, fill, commands in kinds:
        if not is_selected(kind):
            continue
        root = folder / "folder"
        fill(root, max(BATCH, int(MESSAGES * scale)))
        for command in commands:
            for is_cold in (True, False):
                yield _against_a_read(kind, root, command, rounds, is_cold=is_cold)
        yield _parquet(kind, root, rounds)
        held = anonymous_mib([*TOOL, "verify", str(root)])
        yield Row(f"{kind}, verify, anonymous memory", "300 MiB", "MiB", 1, [held], [ANONYMOUS_MIB], less_is_better=True)
        shutil.rmtree(root)


def fill_rocketmq(root: Path, count: int) -> None:
    """Put messages with a key, a tag and different bodies: a Parquet file would hold equal ones once."""
    store, rest = OwnStore(root), body_of(BODY - 8)
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        bodies = [number.to_bytes(8, "big") + rest for number in numbers]
        store.store.put_many("T", bodies, tags=[TAGS[k & 3] for k in numbers], keys=[f"key-{k}" for k in numbers])
    store.close()


def fill_rabbitmq(root: Path, count: int) -> None:
    """Publish to one queue of version 2; bodies of this size go to the queue's own store."""
    body = os.urandom(BODY)
    with RabbitStore.open(root, settings=RabbitSettings(background=False)) as store:
        store.declare_queue("q")
        for number in range(1, count + 1):
            store.publish("q", body)
            if number % BATCH == 0:
                store.sync()


def _against_a_read(kind: str, root: Path, command: Command, rounds: int, *, is_cold: bool) -> Row:
    """Measure a command in turn with a plain read, each from the same state of the page cache."""

    def prepared(work: Callable[[], object]) -> float:
        read_all(root)
        if is_cold:
            drop_pages(root)
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    state = "cold" if is_cold else "warm"
    row = Row(f"{kind}, {command.words[0]}{' of the log' if '--log-only' in command.words else ''}, {state}", PEER, "s",
              command.target if is_cold else None, less_is_better=True)  # fmt: skip
    return take_turns(row, lambda: prepared(lambda: run(root, command)), lambda: prepared(lambda: read_all(root)), rounds)


def _parquet(kind: str, root: Path, rounds: int) -> Row:
    """Measure an export to Parquet in turn with pyarrow, which writes the same table out of memory with the same options."""
    import pyarrow.parquet as pq

    from brokerstore.tool.export_forms import parquet_options

    file, copy = root.parent / "export.parquet", root.parent / "copy.parquet"
    export = Command(("export", "--to", "parquet", "--out", str(file)), WHOLE)

    def ours() -> float:
        file.unlink(missing_ok=True)
        read_all(root)
        began = time.perf_counter()
        run(root, export)
        return time.perf_counter() - began

    ours()
    table = pq.read_table(file)
    options = {"row_group_size": pq.ParquetFile(file).metadata.row_group(0).num_rows, **parquet_options(table.column_names)}

    def theirs() -> float:
        began = time.perf_counter()
        pq.write_table(table, copy, **options)
        return time.perf_counter() - began

    row = Row(f"{kind}, export to Parquet, warm", "pyarrow", "s", 1, less_is_better=True)
    take_turns(row, ours, theirs, rounds)
    for left in (file, copy):
        left.unlink()
    return row


def run(root: Path, command: Command) -> None:
    """Run a command to its end; raise if it fails."""
    subprocess.run([*TOOL, *command.words, str(root)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def paths(root: Path) -> list[Path]:
    """Return the files of a folder, in the order of their names."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def read_all(root: Path) -> int:
    """Read every file from its beginning to its end; return the number of bytes."""
    buffer, size = bytearray(READ), 0
    for path in paths(root):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                size += count
    return size


def drop_pages(root: Path) -> None:
    """Drop the pages of every file from the page cache, which needs no rights and leaves other files alone."""
    for path in paths(root):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def anonymous_mib(words: list[str]) -> float:
    """Run a command and return the most anonymous memory that it had, seen every 10 ms."""
    highest = 0
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
            except OSError:  # it ended meanwhile
                break
            highest = max([highest, *(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))])
            time.sleep(0.01)
    return highest / 1024
