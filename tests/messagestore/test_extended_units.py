"""Extended units of a store whose broker had them enabled for a time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.builds import World
from tests.messagestore.kit import open_small, read_all

EXT_SIZE = 2048


def put_tagged(world: World, store: Any, count: int, tag: str) -> None:
    for number in range(count):
        store.put(world.commitlog.Message("T", b"%d" % number, queue_id=0, tags=tag))
    store.engine.settle()


@pytest.mark.parametrize("plain", [0, 10, 130])
def test_kill_while_extended_units_are_disabled_hides_no_message_of_a_tag(world: World, tmp_path: Path, plain: int) -> None:
    """Units after the last address have no extended unit; earlier extended units stay, and their positions are not reused.

    Otherwise units written after enabling them again would be found for the tags of old messages.
    """
    with open_small(world, tmp_path / "s", enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=EXT_SIZE) as store:
        put_tagged(world, store, 150, "paid")
        reader = store.engine.derived.ext_reader("T", 0)
        before = list(reader.units())
    with open_small(world, tmp_path / "s", enable_consume_queue_ext=False) as store:
        put_tagged(world, store, plain, "paid")
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    with open_small(world, tmp_path / "killed", enable_consume_queue_ext=True) as store:
        put_tagged(world, store, 120, "other")
        assert len(read_all(store, "T", tags={"paid"})) == 150 + plain
        assert len(read_all(store, "T", tags={"other"})) == 120
        assert list(store.engine.derived.ext_reader("T", 0).units())[:150] == before


def test_extended_units_of_a_queue_without_addresses_are_dropped_after_a_kill(world: World, tmp_path: Path) -> None:
    """No unit points at them any more, because the queue was rebuilt while they were disabled."""
    with open_small(world, tmp_path / "s", enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=EXT_SIZE) as store:
        put_tagged(world, store, 150, "paid")
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    with open_small(world, tmp_path / "s", enable_consume_queue_ext=False) as store:
        put_tagged(world, store, 10, "paid")
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    with open_small(world, tmp_path / "killed", enable_consume_queue_ext=True) as store:
        assert list(store.engine.derived.ext_reader("T", 0).units()) == []
        put_tagged(world, store, 5, "other")
        assert len(read_all(store, "T", tags={"paid"})) == 160
        assert len(list(store.engine.derived.ext_reader("T", 0).units())) == 5
