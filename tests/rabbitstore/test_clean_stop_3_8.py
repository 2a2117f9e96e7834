"""A clean stop of RabbitMQ before 3.10: its recovery terms have no sequence numbers, and marks in the index show deliveries."""

from __future__ import annotations

import shutil

import pytest

from rabbitstore import RabbitStore
from rabbitstore.engine.opening import VhostOpening
from rabbitstore.format import tables
from rabbitstore.format.dets_table import read_dets, write_dets
from rabbitstore.format.terms import Atom, CharList
from rabbitstore.read.vhost_folder import VhostFolder, find_vhosts
from rabbitstore.repair.check import verify
from rabbitstore.repair.recover import plan_recovery
from rabbitstore.settings import RabbitSettings
from storageio import REAL_DISK, StoreCorrupt
from tests.cases import unpack_case
from tests.rabbitstore.delivered import delivered, persistent


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return unpack_case("rabbit-clean-3.8.9", tmp_path_factory.mktemp("clean"))


@pytest.fixture
def vhost(case, tmp_path):
    (found,) = find_vhosts(str(case.folder))
    return shutil.copytree(found, str(tmp_path / "vhost"))


def test_clean_stop_without_sequence_numbers_is_intact(vhost: str) -> None:
    """The folder is intact and cleanly stopped, and `recover` has nothing to do."""
    checked = verify(vhost)
    assert (checked.ok, checked.problems) == (True, [])
    assert VhostFolder(vhost).is_clean
    assert plan_recovery(vhost).steps == []


def test_marks_of_the_index_show_what_was_delivered(case, vhost: str) -> None:
    """A message is redelivered if the index has its delivered mark, as the restarted 3.8.9 delivered it."""
    expected = {queue: messages for queue, messages in case.expected["delivered"].items() if messages}
    assert delivered(persistent(RabbitStore.open(vhost, "r").messages())) == expected


def test_store_resumes_from_a_clean_stop_without_sequence_numbers(case, vhost: str) -> None:
    """An opening for writing reads these indexes in full, keeps the clean stop, and a stop writes it again."""
    opened = VhostOpening(REAL_DISK, vhost, RabbitSettings()).run()
    assert (opened.problems, opened.lost, opened.is_resumed) == ([], [], True)
    for queue in opened.queues:
        queue.index.abandon()


def test_opening_and_stop_keep_messages_and_flags(case, vhost: str) -> None:
    """After an opening and a clean stop the folder is intact, with the same messages and flags."""
    with RabbitStore.open(vhost, "r+") as store:
        assert (store.problems, store.lost) == ([], [])
    expected = {queue: messages for queue, messages in case.expected["delivered"].items() if messages}
    assert verify(vhost).ok
    assert delivered(RabbitStore.open(vhost, "r").messages()) == expected


@pytest.mark.parametrize("gone", ["next_seq_id", "next_deliver_seq_id"])
def test_one_of_two_sequence_numbers_is_damage(gone: str) -> None:
    """No server writes one number without the other."""
    row = tables.RecoveryRow("A", {}, 3, 2, None, 0, 0)
    ((folder, terms),) = read_dets(tables.write_recovery([row]), "recovery.dets")
    data = write_dets([(CharList(folder), [term for term in terms if term[0] != gone])])
    with pytest.raises(StoreCorrupt):
        tables.read_recovery(data, "recovery.dets")


def test_term_with_a_damaged_name_is_damage() -> None:
    """A flipped bit in the name of a term is no term of another release, and no term of before 3.10."""
    row = tables.RecoveryRow("A", {}, 3, 2, None, 0, 0)
    ((folder, terms),) = read_dets(tables.write_recovery([row]), "recovery.dets")
    names = {"next_seq_id": "nexu_seq_id", "next_deliver_seq_id": "next_delivfr_seq_id"}
    data = write_dets([(CharList(folder), [(Atom(names.get(str(name), str(name))), value) for name, value in terms])])
    with pytest.raises(StoreCorrupt):
        tables.read_recovery(data, "recovery.dets")


def test_rows_without_sequence_numbers_are_written_as_they_are_read() -> None:
    """A row of before 3.10 is written without the two numbers."""
    row = tables.RecoveryRow("A", {0: 2}, None, None, bytes(16), 2, 10)
    assert tables.read_recovery(tables.write_recovery([row]), "recovery.dets") == {"A": row}
