"""A killed recovery: data that was safe before stays safe, whatever opens the folder next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import StoreCorrupt
from tests.messagestore.kit import START_MS, Clock
from tests.stores import small_config

SMALL = small_config(max_hash_slot_num=50)
COUNT, DAMAGED = 300, 100


class Killed(BaseException):
    """An error that no code catches, as a kill."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store with a clean stop, all within a second, a damaged record, and a recovery killed before the repair."""
    folder, clock = tmp_path / "store", Clock()
    with MessageStore.open(folder, config=SMALL, clock=clock) as store:
        results = []
        for number in range(COUNT):
            clock.now_ms = START_MS + number
            results.append(store.put(Message("topic", b"%d" % number, queue_id=0)))
    with (folder / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(results[DAMAGED].physical_offset)
        file.write(b"\xee" * results[DAMAGED].size_bytes)
    kill(Recovery(str(folder), Choice.SKIP, SMALL))
    assert (folder / "abort").exists()
    return folder


def kill(recovery: Any) -> None:
    """Raise the error once the abort file exists."""

    def die(*_: Any) -> None:
        raise Killed

    recovery._fill_holes = die
    with pytest.raises(Killed):
        recovery.apply()


def test_open_does_not_truncate_after_a_clean_stop_and_a_killed_recovery(folder: Path) -> None:
    """Everything was stored within three seconds of the stop, and would look like a crash tail."""
    with pytest.raises(StoreCorrupt, match="recover"):
        MessageStore.open(folder, config=SMALL)
    with MessageStore.open(folder, "r", SMALL) as store:
        assert store.max_offset("topic", 0) == COUNT


def test_repeated_recovery_requires_a_choice_and_keeps_every_other_message(folder: Path) -> None:
    """Without a choice it changes nothing, and must not plan to cut."""
    assert Recovery(str(folder), Choice.REFUSE, SMALL).plan().needs_choice
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert not verify_store(str(folder), SMALL).problems
    with MessageStore.open(folder, "r", SMALL) as store:
        found = [message.body for message in store.read("topic", 0)]
    assert found == [b"%d" % n for n in range(COUNT) if n != DAMAGED]
