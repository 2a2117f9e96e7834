"""Damaged folders: `verify` reports each damage, the rest stays readable, and `recover` repairs it."""

import contextlib
import shutil
from pathlib import Path

import pytest

from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, StoreSettings
from rabbitstore.format import tables
from rabbitstore.repair.check import size_bytes, verify
from rabbitstore.repair.recover import apply_recovery, plan_recovery
from storageio import DiskError, StoreCorrupt
from storageio.testing import FailingDisk
from tests.faults.golden import fast_folder
from tests.helpers import contents

from .conftest import WhenItWasWritten

QUIET = RabbitSettings(background=False)
STORE = "msg_store_persistent"
DEEP = "queues/18PFRXGVXXG0ZIS281F2ZCGPH"
LAZY = "queues/BGRIRRI733GZZGP0F653VU17V"
MIXED = "queues/434QJ29PS1F7KJO6A26YZF1Z8"
ALL = 3068


def patch(path, offset, data):
    found = bytearray(path.read_bytes())
    found[offset : offset + len(data)] = data
    path.write_bytes(found)


def cut(path, size):
    data = path.read_bytes()
    path.write_bytes(data[:size] if size >= 0 else data[: len(data) + size])


def last_record(manifest, file):
    rows = [row for row in manifest["rdq_records"] if (row["store"], row["file"]) == (STORE, file)]
    return max(rows, key=lambda row: row["offset"])


def torn_record(folder, _manifest):
    cut(folder / STORE / "6.rdq", -100)


def zeros_in_a_file(folder, manifest):
    row = last_record(manifest, "5.rdq")
    patch(folder / STORE / "5.rdq", row["offset"], bytes(row["total_size"]))


def wrong_size_in_the_middle(folder, manifest):
    patch(folder / STORE / "6.rdq", live_record(manifest, 6)["offset"], b"\x7f")


def live_records(manifest, number):
    rows = manifest["msg_store_index"]
    live = [row for row in rows if (row["store"], row["file"], row["ref_count"]) == (STORE, number, 1)]
    return sorted(live, key=lambda row: row["offset"])


def live_record(manifest, number):
    live = live_records(manifest, number)
    return live[len(live) // 2]


def a_missing_mark_before_a_wrong_size(folder, manifest):
    """The folder fuzzer found this: one rewrite repairs both damages, and used to run twice."""
    wrong_size_in_the_middle(folder, manifest)
    first = live_records(manifest, 6)[0]
    patch(folder / STORE / "6.rdq", first["offset"] + first["total_size"] - 1, b"\x00")


def an_entry_beyond_its_segment(folder, _manifest):
    """The folder fuzzer found this: the recovery used to keep a relative number that only larger segments have."""
    path = folder / DEEP / "2.idx"
    data = path.read_bytes()
    path.write_bytes(data + b"\xd0" + data[1 : 34 + int.from_bytes(data[30:34], "big")])


def missing_end_mark(folder, _manifest):
    patch(folder / STORE / "0.rdq", 4291 + 4293, b"\x00")


def bad_term(folder, manifest):
    rows = manifest["msg_store_index"]
    row = next(row for row in rows if (row["store"], row["file"], row["ref_count"]) == (STORE, 4, 1))
    patch(folder / STORE / "4.rdq", row["offset"] + 24, b"\x55")


def bad_term_in_the_index(folder, _manifest):
    patch(folder / DEEP / "1.idx", 34, b"\x55")


def index_pointing_into_a_deleted_file(folder, _manifest):
    (folder / STORE / "1.rdq").unlink()


def torn_journal(folder, _manifest):
    cut(folder / MIXED / "journal.jif", -5)


def torn_segment(folder, _manifest):
    cut(folder / DEEP / "2.idx", -30)


def mark_of_nobody(folder, _manifest):
    path = folder / DEEP / "2.idx"
    path.write_bytes(path.read_bytes() + b"\x47\xff")


def published_twice(folder, _manifest):
    path = folder / "queues/6WSGVAFGP1QQ069TLAF79N32N/0.idx"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:34])


def wrong_config(folder, _manifest):
    (folder / ".config").write_text("{segment_entry_count, many}.")


def vhost_name_of_zeros(folder, _manifest):
    (folder / ".vhost").write_bytes(bytes(1))


def config_of_larger_segments(folder, _manifest):
    """A segment begins after the queue's next sequence number of the last stop."""
    (folder / ".config").write_text("{segment_entry_count, 16384}.")


def config_of_smaller_segments(folder, _manifest):
    """`.config` has 2048 for segments of 16384: the entries above would be cut as torn."""
    shutil.rmtree(folder)
    settings = RabbitSettings(background=False, index_version=1, index=IndexSettings(segment_entries=16384))
    with RabbitStore.open(str(folder), settings=settings) as store:
        store.declare_queue("q")
        for _ in range(ALL):
            store.publish("q", b"small")
    (folder / ".config").write_text("{segment_entry_count, 2048}.")


def an_id_known_to_no_file(folder, manifest):
    """An index entry refers to a message that was never stored."""
    row = live_record(manifest, 4)
    path = next(path for path in folder.glob("queues/*/*.idx") if bytes.fromhex(row["msg_id"]) in path.read_bytes())
    patch(path, path.read_bytes().index(bytes.fromhex(row["msg_id"])), b"nobody ever knew")


def damaged_locations(folder, _manifest):
    patch(folder / STORE / "msg_store_index.ets", 400, b"\xff\xff\xff\xff")


def damaged_summary(folder, _manifest):
    cut(folder / STORE / "file_summary.ets", -20)


def damaged_clean_mark(folder, _manifest):
    (folder / STORE / "clean.dot").write_bytes(b"{client_refs,[<<1,2")


def damaged_recovery_terms(folder, _manifest):
    path = folder / "recovery.dets"
    patch(path, path.read_bytes().index(b"next_seq_id"), b"next_sec_id")


def replace_rows(path, read, write, change):
    rows = change(read(path.read_bytes(), ""))
    path.write_bytes(write(rows))


def wrong_valid_size(folder, _manifest):
    path = folder / STORE / "file_summary.ets"
    change = lambda rows: [rows[0]._replace(valid_total_size=rows[0].valid_total_size - 1), *rows[1:]]  # noqa: E731
    replace_rows(path, tables.read_summary, tables.write_summary, change)


def wrong_neighbour(folder, _manifest):
    path = folder / STORE / "file_summary.ets"
    change = lambda rows: [rows[0]._replace(right=4), *rows[1:]]  # noqa: E731
    replace_rows(path, tables.read_summary, tables.write_summary, change)


def location_of_a_live_message_missing(folder, _manifest):
    path = folder / STORE / "msg_store_index.ets"
    change = lambda rows: [row for row in rows if row != next(row for row in rows if row.ref_count)]  # noqa: E731
    replace_rows(path, tables.read_locations, tables.write_locations, change)


def terms_of_another_time(folder, _manifest):
    path = folder / "recovery.dets"
    change = lambda rows: [row._replace(segments={0: 7}, next_seq_id=1) for row in rows.values()]  # noqa: E731
    replace_rows(path, tables.read_recovery, tables.write_recovery, change)


def mark_of_other_clients(folder, _manifest):
    (folder / STORE / "clean.dot").write_bytes(tables.write_clean_mark([b"x" * 16]))


def torn_recovery_terms(folder, _manifest):
    cut(folder / "recovery.dets", -30)


def unclosed_recovery_terms(folder, _manifest):
    patch(folder / "recovery.dets", 8, bytes(4))


def unfinished_compaction(folder, manifest):
    rows = [row for row in manifest["rdq_records"] if (row["store"], row["file"]) == (STORE, "4.rdq")]
    middle = sorted(row["offset"] for row in rows)[len(rows) // 2]
    data = (folder / STORE / "4.rdq").read_bytes()
    (folder / STORE / "4.rdt").write_bytes(data[middle:])
    (folder / STORE / "4.rdq").write_bytes(data[: middle + 5000] + bytes(len(data) - middle - 5000))


def missing_queue_name(folder, _manifest):
    (folder / MIXED / ".queue_name").unlink()


# damage, kinds that verify must name, messages that are gone
TABLE = [
    (torn_record, {"torn_record", "message_lost", "bad_table", "bad_location"}, 1),
    (zeros_in_a_file, {"torn_record"}, None),
    (wrong_size_in_the_middle, {"torn_record", "message_lost"}, 1),
    (a_missing_mark_before_a_wrong_size, {"torn_record", "record_without_end_mark", "message_lost"}, 2),
    (an_entry_beyond_its_segment, {"torn_segment"}, 0),
    (missing_end_mark, {"record_without_end_mark"}, None),
    (bad_term, {"bad_term"}, None),
    (bad_term_in_the_index, {"bad_term"}, None),
    (an_id_known_to_no_file, {"message_lost", "bad_ref_count"}, 1),
    (index_pointing_into_a_deleted_file, {"message_lost", "bad_table", "bad_location"}, None),
    (torn_journal, {"torn_journal"}, None),
    (torn_segment, {"torn_segment", "bad_recovery_terms"}, 1),
    (mark_of_nobody, {"mark_without_publish"}, 0),
    (published_twice, {"published_twice"}, 0),
    (wrong_config, {"bad_config"}, 0),
    (vhost_name_of_zeros, {"bad_vhost_name"}, 0),
    (config_of_larger_segments, {"bad_config"}, 0),
    (config_of_smaller_segments, {"bad_config"}, 0),
    (damaged_locations, {"bad_table"}, 0),
    (damaged_summary, {"bad_table"}, 0),
    (damaged_clean_mark, {"bad_clean_mark"}, 0),
    (damaged_recovery_terms, {"bad_recovery_terms"}, 0),
    (unclosed_recovery_terms, {"bad_recovery_terms"}, 0),
    (torn_recovery_terms, {"bad_recovery_terms"}, 0),
    (terms_of_another_time, {"bad_recovery_terms"}, 0),
    (wrong_valid_size, {"bad_table"}, 0),
    (wrong_neighbour, {"bad_table"}, 0),
    (location_of_a_live_message_missing, {"bad_location"}, 0),
    (mark_of_other_clients, {"bad_clean_mark"}, 0),
    (missing_queue_name, {"bad_queue_name"}, 0),
]


@pytest.fixture
def damaged(request, clean, tmp_path):
    folder = Path(shutil.copytree(clean.vhost, tmp_path / "vhost"))
    request.param(folder, clean.manifest)
    return folder


def readable(folder):
    read = RabbitStore.open(str(folder), "r").folder()
    return sorted((message.queue, message.seq_id, message.msg_id) for message in read.messages())


@pytest.mark.parametrize(("damaged", "kinds", "gone"), TABLE, indirect=["damaged"], ids=[row[0].__name__ for row in TABLE])
def test_damage_is_reported_read_past_and_repaired(damaged, kinds, gone):
    """`verify` reports it, the rest is read, a plan changes nothing, and after `apply` `verify` finds nothing."""
    found = verify(str(damaged))
    assert {problem.kind for problem in found.problems} >= kinds
    assert all(problem.file and problem.expected for problem in found.problems)
    before = readable(damaged)
    if gone is not None:
        assert len(before) == ALL - gone
    else:
        assert ALL - 40 < len(before) <= ALL + 1
    image = contents(damaged)
    made = plan_recovery(str(damaged))
    assert image == contents(damaged)
    assert made.steps and not made.is_applied and made.messages_kept == len(before)
    apply_recovery(str(damaged))
    after = verify(str(damaged))
    assert after.problems == []
    names = {row[0] for row in before}
    assert [row for row in readable(damaged) if row[0] in names] == [row for row in before if row[0] in names] or gone == 0
    assert len(readable(damaged)) == len(before)
    assert list((damaged / "brokerstore" / "cut").iterdir())
    with RabbitStore.open(str(damaged), "r+", settings=QUIET) as store:
        assert store.lost == []


@pytest.mark.parametrize("damaged", [bad_term], indirect=True)
def test_a_damaged_message_does_not_stop_the_queue(damaged):
    """Without a recovery the fetch of that message raises, and the next fetch returns the following one."""
    with RabbitStore.open(str(damaged), "r+", settings=QUIET, disk=WhenItWasWritten()) as store:
        total, errors = fetch_all(store)
        assert errors >= 1 and total + errors == 3037


@pytest.mark.parametrize("damaged", [wrong_config, config_of_larger_segments], indirect=True)
def test_opening_refuses_an_unreadable_config(damaged):
    """A wrong number would mix up every queue: the error has the likely value, and nothing changes."""
    image = {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file() and "brokerstore" not in path.parts}
    with pytest.raises(StoreCorrupt, match="likely N = 2048"):
        RabbitStore.open(str(damaged), "r+")
    assert all(path.read_bytes() == data for path, data in image.items())


@pytest.mark.parametrize("damaged", [unfinished_compaction], indirect=True)
def test_the_servers_unfinished_compaction_is_salvaged(damaged):
    """It is reported; `recover` and an opening both find the messages of the tail."""
    assert "unfinished_compaction" in {problem.kind for problem in verify(str(damaged)).problems}
    lost = ALL - len(readable(damaged))
    assert lost > 0
    copy = shutil.copytree(damaged, damaged.parent / "copy")
    with RabbitStore.open(str(copy), "r+", settings=QUIET) as store:
        assert store.lost == []
    shutil.rmtree(copy)


class ChangesFail(FailingDisk):
    """Only calls that change something are counted and fail."""

    def before(self, operation, path):
        if operation not in ("open", "list", "stat", "size", "read", "map", "lock"):
            super().before(operation, path)


def several(folder, manifest):
    """The folder has a hundred messages, so that every call can fail once."""
    for queue in (DEEP, LAZY):
        shutil.rmtree(folder / queue)
    cut(folder / MIXED / "0.idx", -30)
    for damage in (bad_term, torn_journal):
        damage(folder, manifest)


@pytest.mark.deep
@pytest.mark.parametrize("damaged", [several], indirect=True)
def test_a_recovery_interrupted_at_every_call_is_run_again(damaged):
    """No interruption loses more, and the next run completes the repair."""
    expected = len(readable(damaged))
    fail_at, is_done = 0, False
    with fast_folder() as above:
        while not is_done:
            fail_at += 1
            folder = Path(shutil.copytree(damaged, above / "again"))
            with contextlib.suppress(DiskError):
                apply_recovery(str(folder), ChangesFail(fail_at, for_ever=True))
                is_done = True
            apply_recovery(str(folder))
            assert verify(str(folder)).problems == [] and len(readable(folder)) == expected
            shutil.rmtree(folder)
    assert fail_at > 100


def test_progress_adds_up_to_the_bytes_of_the_files(either):
    """Folders of both index versions are intact, and a plan for them is empty."""
    for examine in (verify, plan_recovery):
        reported = []
        examine(str(either.vhost), progress=reported.append)
        assert len(reported) > 10 and min(reported) >= 0 and sum(reported) == size_bytes(str(either.vhost))


def test_version_2_damage(fixtures, tmp_path):
    """A wrong checksum, an invalid entry and a foreign head are reported and repaired; the rest is readable."""
    folder = Path(shutil.copytree(fixtures["v2"].vhost, tmp_path / "vhost"))
    queue = folder / DEEP
    patch(queue / "1.qs", 64 + 8 + 20, b"????")
    patch(queue / "0.qi", 64 + 32 * 3000, b"\x07")
    found = verify(str(folder))
    assert {problem.kind for problem in found.problems} >= {"message_lost", "bad_index_entry"}
    assert ALL - 2 <= len(readable(folder)) < ALL
    apply_recovery(str(folder))
    assert verify(str(folder)).problems == []
    patch(queue / "0.qi", 0, b"XXXX")
    assert [note.kind for note in verify(str(folder)).notes] == ["unsupported_format"]
    assert len(readable(folder)) > 500


@pytest.mark.parametrize("damaged", [wrong_size_in_the_middle], indirect=True)
def test_damage_before_good_records_is_not_cut_at_opening(damaged):
    """A scan cuts a torn tail, but rejects this damage; the recovery keeps all but the damaged message."""
    (damaged / STORE / "clean.dot").unlink()
    sizes = {path.name: path.stat().st_size for path in (damaged / STORE).glob("*.rdq")}
    with pytest.raises(StoreCorrupt, match="damage before whole records"):
        RabbitStore.open(str(damaged), "r+", settings=QUIET)
    assert sizes == {path.name: path.stat().st_size for path in (damaged / STORE).glob("*.rdq")}
    apply_recovery(str(damaged))
    with RabbitStore.open(str(damaged), "r+", settings=QUIET) as store:
        assert store.lost == [] and sum(len(store.queue(name)) for name in store.queue_names()) == 3036


def eager():
    """Open a store whose collector rewrites every file with garbage."""
    return RabbitSettings(background=False, store=StoreSettings(file_size_limit=262144, file_garbage_fraction=0.0))


def wrong_size_in_a_closed_file(folder, manifest):
    patch(folder / STORE / "5.rdq", live_record(manifest, 5)["offset"], b"\x7f")


@pytest.mark.parametrize("damaged", [wrong_size_in_a_closed_file], indirect=True)
def test_the_collector_leaves_a_file_in_which_damage_hides_messages(damaged):
    """After a clean stop the file was not scanned: one message is damaged, all later ones are delivered."""
    data = (damaged / STORE / "5.rdq").read_bytes()
    with RabbitStore.open(str(damaged), "r+", settings=eager(), disk=WhenItWasWritten()) as store:
        assert store.parts.is_resumed and store.collect() > 0
        assert (damaged / STORE / "5.rdq").read_bytes() == data
        assert fetch_all(store) == (3036, 1)


def fetch_all(store):
    """Return the messages and errors of all queues."""
    total, errors = 0, 0
    for name in store.queue_names():
        while True:
            try:
                if store.get(name, auto_ack=True) is None:
                    break
                total += 1
            except StoreCorrupt:
                errors += 1
    return total, errors
