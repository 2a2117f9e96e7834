"""A page of a queue of which a crash of the machine lost some sectors and kept others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.messagestore.kit import number_of, open_small, put_numbers, read_all

SECTOR_SIZE = 512
FILE_SIZE = 6000


@pytest.mark.parametrize("flushed", [51, 76, 102, 128, 153])
def test_torn_page_of_a_queue_returns_no_wrong_message(world: Any, tmp_path: Path, flushed: int) -> None:
    """The sector that ends inside the first unit after a flush is old, those after it are new.

    A unit whose offset is lost has 0: a consumer would get the log's first message again, and never the right one.
    """
    sizes = {"mapped_file_size_consume_queue": FILE_SIZE}
    with open_small(world, tmp_path / "s", **sizes) as store:
        put_numbers(world, store, range(flushed))
        store.engine.settle()
        store.flush()
        path = Path("consumequeue/T/0") / f"{0:020d}"
        before = (tmp_path / "s" / path).read_bytes()
        put_numbers(world, store, range(flushed, flushed + 60))
        store.engine.settle()
        shutil.copytree(tmp_path / "s", tmp_path / "crashed")
    torn = bytearray((tmp_path / "crashed" / path).read_bytes())
    at = 20 * flushed // SECTOR_SIZE * SECTOR_SIZE
    torn[at : at + SECTOR_SIZE] = before[at : at + SECTOR_SIZE]
    (tmp_path / "crashed" / path).write_bytes(torn)
    with open_small(world, tmp_path / "crashed", **sizes) as store:
        assert [number_of(message) for message in read_all(store, "T")] == list(range(flushed + 60))
        assert put_numbers(world, store, range(1))[0].queue_offset == flushed + 60


def test_queue_offset_gap_after_recovery_does_not_stop_dispatch(world: Any, tmp_path: Path) -> None:
    """While a recovery fills the queues a gap means lost units; later the unit goes to the next place."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(5))
        store.engine.settle()
        store.engine.dispatcher.catch_up(refuses_gaps=True)
        store.engine.offsets.set_next_offset("T", 0, 9)
        put_numbers(world, store, range(5, 6))
        store.engine.settle()
        assert store.engine.dispatcher.failure is None
        assert [number_of(message) for message in read_all(store, "T")] == list(range(6))
