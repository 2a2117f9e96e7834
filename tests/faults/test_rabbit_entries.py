"""A virtual host's folder damaged at its entries: a sample of what `tests/faults/night.py` runs in full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rabbitstore import RabbitSettings, RabbitStore, apply_recovery
from storageio import StoreCorrupt
from storebytes.builds import build_name
from tests.amounts import amount
from tests.faults.golden import fast_folder
from tests.faults.rabbit_entries import GONE, Entry, Vhost, flip_clean, small_vhost, stopped_cleanly, sweeps

pytestmark = [pytest.mark.both_builds, pytest.mark.usefixtures("quiet")]
SCARCE = amount(3, 1) if build_name() == "compiled" else 7  # the plain build is slower
# (step between places, step between recoveries); odd steps reach every bit of every field
SHARES = {
    "bits of heads": (101, 5),
    "cuts at borders": (61, 5),
    "bytes behind the end": (7, 5),
    "files gone": (1, 2),
    "bits of clean-stop files": (301, 2),
}


@pytest.mark.parametrize("number", range(len(SHARES)), ids=list(SHARES))
def test_damage_to_an_entry_is_reported_or_changes_nothing(number: int) -> None:
    """No traceback and no message that nobody published; a recovery keeps all messages of untouched entries."""
    with fast_folder() as above:
        sweep = sweeps(above)[number]
        step, recovers_every = SHARES[sweep.name]
        found = sweep.run(0, len(sweep.paths), step * SCARCE, above / "copy", recovers_every)
    assert any("named" in answer for answer in found)
    print(f"{sweep.name}: {found.total()} of {len(sweep.paths)}: {dict(found)}")


def test_the_entries_cover_all_bytes_of_the_golden_files() -> None:
    """A control: entries cover each file from the first byte to the last, and each message has one."""
    with fast_folder() as above:
        vhost = Vhost(small_vhost(above))
        for file in {entry.file for entry in vhost.entries}:
            borders = [(entry.start, entry.stop) for entry in vhost.entries if entry.file == file]
            assert [stop for _start, stop in borders] == [*(start for start, _stop in borders[1:]), file.stat().st_size]
        spoken = set().union(*(vhost.messages_of(entry) for entry in vhost.entries))
        assert spoken == set(vhost.known) and len(vhost.entries) > 200


@pytest.mark.parametrize("wrong", ["invented", "lost", "unsaid"])
def test_the_judge_detects_invented_and_lost_messages(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: `judge` rejects an invented message, a lost untouched one, and reports one lost silently as GONE."""
    with fast_folder() as above:
        vhost = Vhost(small_vhost(above))
        rows = vhost.read()
        first = rows[0]
        if wrong == "invented":
            monkeypatch.setattr(vhost, "read", lambda: [*rows, replace(first, content=first.content._replace(body=b"never"))])
        else:
            monkeypatch.setattr(vhost, "read", lambda: rows[1:])
        touched = {(first.queue, first.content)} if wrong == "unsaid" else set()
        if wrong == "unsaid":
            assert vhost.judge(touched, "here") == GONE
            return
        with pytest.raises(AssertionError, match="never published" if wrong == "invented" else "untouched"):
            vhost.judge(touched, "here")


def waiting(folder: Path) -> int:
    """Open the folder for writing, and return the number of messages in all queues."""
    with RabbitStore.open(str(folder), "r+", settings=RabbitSettings(background=False)) as store:
        return sum(len(store.queue(name)) for name in store.queue_names())


def with_a_wrong_length(vhost: Vhost, kind: str) -> Entry:
    """Damage an entry with others after it: its length becomes one byte longer or shorter."""
    entry = next(entry for entry in vhost.entries if entry.kind == kind and entry.stop - entry.start > 100)
    data = bytearray(entry.file.read_bytes())
    data[entry.start + (33 if kind.startswith("segment") else 39)] ^= 1
    entry.file.write_bytes(data)
    return entry


def test_opening_refuses_a_segment_with_intact_entries_after_damage() -> None:
    """One flipped bit in an entry's length: opening used to drop every later message of the segment silently."""
    with fast_folder() as above:
        vhost = Vhost(small_vhost(above))
        entry = with_a_wrong_length(vhost, "segment publish")
        before = {path: path.read_bytes() for path in vhost.files}
        with pytest.raises(StoreCorrupt, match="damage before whole entries"):
            waiting(vhost.folder)
        assert before == {path: path.read_bytes() for path in vhost.files}
        apply_recovery(str(vhost.folder))
        assert waiting(vhost.folder) == len(vhost.rows) - len(vhost.messages_of(entry)) >= len(vhost.rows) - 1


def test_opening_keeps_intact_entries_after_damage_in_a_journal() -> None:
    """One flipped bit in an entry's length: opening used to cut everything after it as torn."""
    with fast_folder() as above:
        vhost = Vhost(small_vhost(above))
        entry = with_a_wrong_length(vhost, "journal publish")
        assert waiting(vhost.folder) == len(vhost.rows) - len(vhost.messages_of(entry)) >= len(vhost.rows) - 1


def test_a_bit_lost_in_a_table_of_our_clean_stop_loses_no_message() -> None:
    """Opening used to trust a changed id in `msg_store_index.ets`, and the fetch dropped a whole message."""
    with fast_folder() as above:
        own = stopped_cleanly(above / "own")
        stored = [row for row in own.rows if not row.embedded]
        table = own.folder / "msg_store_persistent" / "msg_store_index.ets"
        bit = 8 * table.read_bytes().index(stored[0].msg_id) + 3
        assert len(stored) == 4
        assert flip_clean(own, table, bit, opens=above / "copy") == "msg_store_index.ets: named"
