"""`bench`: rates of this machine and of a folder's disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..filters import I32_MAX
from ..options import JSON, QUIET, plain_command
from ..output import Answer, Table, named_file, progress, show, size_text

if TYPE_CHECKING:
    from messagestore import MessageStore

PER_CALL = 1000
SYNCED = 200
TOPIC = "bench"
_MESSAGES = click.IntRange(1000, I32_MAX)
_BODY_SIZE = click.IntRange(0, 4 << 20)  # the default limit of a store


@plain_command("bench", "bench . --messages 1000 --size 100")
@click.argument("folder", metavar="DIR", type=click.Path())
@JSON
@QUIET
@click.option("--messages", type=_MESSAGES, default=200_000, show_default=True, help="Number of messages of each kind.")
@click.option("--size", "body_size", type=_BODY_SIZE, default=1024, show_default=True, help="Bytes of a body.")
def bench(folder: str, as_json: bool, quiet: bool, messages: int, body_size: int) -> int:
    """Measure put and read in a new folder below DIR.

    The folder is removed afterwards. Each is run once: a first look, not a comparison with other stores.
    """
    from messagestore import MessageStore
    from storebytes.builds import build_name

    with named_file(folder):
        os.makedirs(folder, exist_ok=True)
        work = tempfile.mkdtemp(prefix="brokerstore-bench-", dir=folder)
    rows: list[dict[str, Any]] = []
    try:
        with progress("bench", 4 * messages, quiet=quiet, is_bytes=False) as advance:
            body = os.urandom(body_size)
            with MessageStore.open(os.path.join(work, "asynchronous")) as store:
                for name, job in _jobs(store, messages, body).items():
                    rows.append(_timed(name, messages, body_size, job))
                    advance(messages)
            rows.append(_synced(os.path.join(work, "synchronous"), body))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    facts = {"build": build_name(), "body_size_bytes": body_size, "rows": rows}
    texts = [(row["what"], f"{row['messages_per_s']:,.0f}", f"{row['bytes_per_s'] / (1 << 20):,.0f}") for row in rows]
    table = Table(("what", "messages/s", "MiB/s"), texts)
    return show(Answer(facts, [f"Bodies of {size_text(body_size)}; {build_name()} kernels", table]), as_json)


def _jobs(store: MessageStore, messages: int, body: bytes) -> dict[str, Callable[[], object]]:
    """Return the jobs in order; the later ones read what the first ones put."""
    from commitlog import Message

    def put() -> None:
        for _ in range(messages):
            store.put(Message(TOPIC, body, queue_id=0))
        store.max_offset(TOPIC, 0)

    def put_many() -> None:
        for start in range(0, messages, PER_CALL):
            store.put_many([Message(TOPIC, body, queue_id=1) for _ in range(min(PER_CALL, messages - start))])

    def read() -> None:
        for _ in store.read(TOPIC, 0):
            pass

    def scan() -> None:
        for _ in store.read_columns(TOPIC, 1):
            pass

    return {"put one by one": put, "put in lists of 1,000": put_many, "read decoded": read, "read as columns": scan}


def _timed(what: str, count: int, body_size: int, job: Callable[[], object]) -> dict[str, Any]:
    before = time.perf_counter()
    job()
    seconds = time.perf_counter() - before
    return {"what": what, "messages_per_s": count / seconds, "bytes_per_s": count * body_size / seconds}


def _synced(folder: str, body: bytes) -> dict[str, Any]:
    """Measure puts that each wait for the disk."""
    from commitlog import Message
    from messagestore import FlushMode, MessageStore, StoreConfig

    config = StoreConfig.small().but(flush_disk_type=FlushMode.SYNC)
    with MessageStore.open(folder, config=config) as store:

        def put() -> None:
            for _ in range(SYNCED):
                store.put(Message(TOPIC, body, queue_id=0))

        return _timed("put one by one, on the disk", SYNCED, len(body), put)
