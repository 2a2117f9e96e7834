"""Followers and readers whose files a writer deletes, creates again, or creates while they look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from messagestore import MessageStore
from tests.helpers import until
from tests.messagestore.test_follower import Bench, DiskOfBusyWriter, log_of
from tests.messagestore.writers import LOG_SIZE, log_files, number_of, open_store, put_all


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "hand", tmp_path / "source")
    yield made
    made.follower.close()
    made.store.close()


def two_files(bench: Bench) -> tuple[list[Path], int]:
    """Return a log of two files as the bench has it, with messages in the first and zeros in the second."""
    with open_store(bench.source) as store:
        put_all(store, 0, 450)
        first = sum(stored.physical_offset < LOG_SIZE for stored in store.engine.log.messages())
    files = log_files(bench.source)[:2]
    bench.write(0, files[0].read_bytes())
    bench.path.with_name(files[1].name).write_bytes(bytes(LOG_SIZE))
    return files, first


def made_anew(path: Path, data: bytes) -> None:
    """Delete and create a file, as a clean stop and the next open do with a file created ahead."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(path)


def test_next_file_recreated_by_a_reopened_writer_is_not_a_rewind(bench: Bench) -> None:
    """The follower has the empty file open, and its last record is unchanged: it continues in the new file."""
    files, first = two_files(bench)
    numbers = [number for _ in range(3) for number in bench.polled()]
    assert numbers == list(range(first))
    assert bench.polled() == []
    made_anew(bench.path.with_name(files[1].name), files[1].read_bytes())
    assert bench.polled()[:3] == [first, first + 1, first + 2]
    assert bench.follower.skipped_bytes == 0


def test_recreated_file_with_the_last_accepted_record_is_not_a_rewind(bench: Bench) -> None:
    """The new file is a copy, so the last accepted record is the same."""
    data, starts = log_of(bench.source, 4)
    bench.write(0, data[: starts[2]])
    assert [number for _ in range(2) for number in until(bench.polled)] == [0, 1]
    made_anew(bench.path, data)
    assert until(bench.polled)[0] == 2


def test_blank_removed_with_the_next_file_is_read_again(bench: Bench) -> None:
    """The writer recovered to a position before the end of the first file: what it puts there is not skipped."""
    files, first = two_files(bench)
    numbers = [number for _ in range(3) for number in bench.polled()]
    last = next(stored for stored in bench.store.engine.log.messages() if number_of(stored) == first - 1)
    end = last.physical_offset + last.size
    assert numbers == list(range(first)) and bench.polled() == []
    bench.write(end, bytes(LOG_SIZE - end))
    made_anew(bench.path.with_name(files[1].name), bytes(LOG_SIZE))
    assert bench.polled() == [] and bench.follower._at == end


def test_first_queue_is_made_while_a_reader_opens(tmp_path: Path) -> None:
    """A reader that found no queue file when it looked for their size reads those with another size than RocketMQ's."""
    with open_store(tmp_path) as store:
        (tmp_path / "consumequeue").mkdir(exist_ok=True)

        def act() -> None:
            put_all(store, 0, 3)
            store.max_offset("t", 0)  # waits for the dispatcher

        disk = DiskOfBusyWriter("consumequeue", 2, act)
        with MessageStore.open(tmp_path, "r", disk=disk) as reader:
            assert disk.lists >= 2
            found = [number_of(reader.get("t", queue_id, 0).messages[0]) for queue_id in range(3)]
            assert found == [0, 1, 2] and reader.max_offset("t", 0) == 1
