"""Progress of a group's retry queue if retention deletes messages that no consumer acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from messagestore.read.retry_progress import RetryProgress
from tests.messagestore.kit import Clock, put_numbers
from tests.messagestore.test_nack import RETRY, next_try, numbers, open_idle


class Offsets:
    """The committed offset of one queue."""

    def __init__(self) -> None:
        self.committed: list[int] = []

    def get(self, _topic: str, _group: str, _queue_id: int) -> int | None:
        return self.committed[-1] if self.committed else None

    def commit(self, _topic: str, _group: str, _queue_id: int, offset: int) -> None:
        self.committed.append(offset)

    def add_done(self, _topic: str, _group: str, _queue_id: int, _offset: int) -> None:
        """Nothing reads what is recorded out of order."""

    def done(self, _topic: str, _group: str, _queue_id: int) -> set[int]:
        return set()


def forget_log_files(world: Any, store: Any) -> None:
    """Let retention delete everything that was put before."""
    put_numbers(world, store, range(40), topic="F", size=2000)
    store.flush()
    store.engine.settle()
    assert store.delete_before(store.log_end) > 0


def test_expired_retries_do_not_block_later_commits(world: Any, tmp_path: Path) -> None:
    """Later acknowledgements are committed, and those messages do not come again after a clean stop."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="G") as consumer:
        for part in (range(2), range(2, 5)):
            put_numbers(world, store, part)
            for message in consumer.poll(9):
                consumer.nack(message, delay_level=1)
            next_try(store, clock, 1)
            again = consumer.poll(9)
            assert numbers(again) == list(part)
            if part.start == 0:
                forget_log_files(world, store)
        assert store.min_offset(RETRY, 0) == 2
        assert consumer.ack(again[0])
        assert store.committed_offsets(RETRY, "G") == {0: 3}
        consumer.commit()
        assert store.committed_offsets(RETRY, "G") == {0: 5}
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="G") as consumer:
        assert consumer.poll(9) == []


def test_acks_after_expired_messages_are_committed_with_the_next_ack() -> None:
    """Offsets before the start of the queue are dropped, and acknowledging an expired message is harmless."""
    offsets = Offsets()
    progress = RetryProgress(offsets, RETRY, "G", 0)  # type: ignore[arg-type]
    for offset in (1, 3, 4):
        progress.done(offset)
    assert offsets.committed == []
    progress.begin_at(3)
    progress.done(0)
    assert offsets.committed == [5]
    assert progress._done == set()
