"""`recover` of quorum queues: only what was hurt is lost, and nothing is left to report."""

from __future__ import annotations

import contextlib
import random
import shutil
import struct
import zlib

import pytest

from rabbitstore import apply_recovery, plan_recovery
from rabbitstore.format.config_text import parse_config
from rabbitstore.format.dets_table import ACTIVE, CLOSED_AT, SEGMENT_AT, SLOTS, read_dets
from rabbitstore.format.terms import Atom, encode
from rabbitstore.node_folder import NodeFolder
from rabbitstore.quorum.encode import LogEntry, LogRecord, plain_enqueue, segment_pieces, wal_pieces
from rabbitstore.quorum.folder import QuorumNode
from rabbitstore.quorum.repair import split_name
from rabbitstore.quorum.tables import read_rows
from rabbitstore.quorum.wal import WalScan
from rabbitstore.staging import Staging, commit, is_staged
from storageio import REAL_DISK, RealDisk, StoreCorrupt
from tests.brokerstore.tool import run
from tests.helpers import contents, overwrite

from .test_quorum_damage import CHECKPOINT, SNAPSHOT, flip, wal_of

REPAIRED_DROPPED, REPAIRED_KEPT = 6, 7


@pytest.fixture
def copy(folders, tmp_path):
    """Return a function that copies the quorum queues and the coordinator of a fixture's node."""

    def make(kind="rabbitmq4-quorum-snapshot"):
        for part in ("quorum", "coordination"):
            shutil.copytree(folders[kind][0] / part, tmp_path / "node" / part)
        return tmp_path / "node"

    return make


def quorum_of(node):
    return next((node / "quorum").iterdir())


def listed(node):
    """Return id, body and delivery count of every message by queue, in order."""
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        return {
            queue.queue: [
                (message.properties.get("message_id"), message.body, message.delivery_count) for message in queue.messages()
            ]
            for queue in folder.quorum_queues
        }


def problems(node):
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        return folder.check().problems


def recovered(node):
    """Recover; every message that was listed before is listed afterwards, nothing is reported, and a second plan is empty."""
    before = listed(node)
    plan = plan_recovery(str(node))
    assert plan.messages_kept == sum(map(len, before.values()))
    apply_recovery(str(node))
    after = listed(node)
    assert {queue: sorted(rows) for queue, rows in after.items()} == {queue: sorted(rows) for queue, rows in before.items()}
    assert problems(node) == [] and plan_recovery(str(node)).steps == []
    return plan, after


def damage_record(node, at=None):
    """Flip a bit in the data of a record in the middle of the log; return its queue's folder."""
    file = wal_of(quorum_of(node))
    every = list(WalScan(file.read_bytes(), "", [], []).records())
    record = every[len(every) // 2]
    flip(file, record.at + record.size // 2 if at is None else at(record))
    return record.uid


def test_a_healthy_folder_has_no_plan(folders):
    """No step is planned for a folder of the real server, stopped or killed."""
    for kind in ("rabbitmq4-clean", "rabbitmq4-killed", "rabbitmq4-quorum-snapshot", "rabbitmq4-streams"):
        plan = plan_recovery(str(folders[kind][0]))
        assert (plan.steps, plan.unrepaired, plan.cost.log_entries_lost) == ([], [], 0), kind


def test_a_damaged_entry_in_the_middle(copy):
    """The write-ahead log is written without it, its queue gets a new log, and the old file is kept."""
    node = copy("rabbitmq4-streams")
    whole = listed(node)
    before = wal_of(quorum_of(node)).read_bytes()
    uid = damage_record(node)
    damaged = wal_of(quorum_of(node)).read_bytes()
    plan, after = recovered(node)
    assert before != damaged and plan.cost.log_entries_lost == 1
    kept = next((node / "brokerstore" / "cut").glob("*.wal"))
    assert kept.read_bytes() == damaged
    assert {step.kind for step in plan.steps} >= {"rewrite_wal", "rebuild_log"}
    assert any(uid in step.file for step in plan.steps)
    assert sum(map(len, whole.values())) - sum(map(len, after.values())) <= 1


def test_a_torn_tail_is_cut_and_kept(copy):
    """Only the log is written again; no queue is touched."""
    node = copy()
    file = wal_of(quorum_of(node))
    last = list(WalScan(file.read_bytes(), "", [], []).records())[-1]
    with file.open("r+b") as opened:
        opened.truncate(last.at + 3)
    damaged = file.read_bytes()
    plan = plan_recovery(str(node))
    assert [step.kind for step in plan.steps if "dets" not in step.file] == ["rewrite_wal", "commit_staged"]
    recovered(node)
    assert (node / "brokerstore/cut" / f"quorum__{file.parent.name}__{file.name}").read_bytes() == damaged


@pytest.mark.parametrize("position", [0, 1], ids=["data", "name"])
def test_a_damaged_first_record_keeps_the_name(copy, position):
    """The record that names a queue is damaged; the records behind it still belong to the queue."""
    node = copy("rabbitmq4-streams")
    whole = listed(node)
    file = wal_of(quorum_of(node))
    named = next(record for record in WalScan(file.read_bytes(), "", [], []).records() if record.index == 0)
    flip(file, (named.at + 4, named.position + 9)[position])
    assert recovered(node)[1] == whole


@pytest.mark.parametrize("field", ["data", "entry", "magic", "lost"])
def test_a_damaged_segment(copy, field):
    """The queue gets a new log of what is left; the others stay as they are."""
    node = copy()
    whole = listed(node)
    file = next(quorum_of(node).glob("2F_QSL*/00000001.segment"))
    offset, size = struct.unpack_from(">QI", file.read_bytes(), 8 + 32 * 10 + 16)
    if field == "lost":
        file.unlink()
    elif field == "entry":
        overwrite(file, 8 + 32 * 10, bytes(32))
    else:
        flip(file, 1 if field == "magic" else offset + size // 2)
    _plan, after = recovered(node)
    assert {queue: rows for queue, rows in after.items() if queue != "q.slow"} == {
        queue: rows for queue, rows in whole.items() if queue != "q.slow"
    }
    assert len(whole["q.slow"]) - len(after["q.slow"]) <= (len(whole["q.slow"]) if field in ("magic", "lost") else 1)


def settings_in(node, queue):
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        found = next(one for one in folder.quorum_queues if one.queue == queue).last_settings()
        return None if found is None else found.decode()[2][1]


@pytest.mark.parametrize("overflow", ["drop_head", "reject_publish"])
def test_a_new_log_has_the_settings_that_a_snapshot_replaced(copy, overflow):
    """Without such an entry the server drops the first messages above a limit, whatever `overflow_strategy` says."""
    node = copy()
    config = next(quorum_of(node).glob("2F_QRO*/config"))
    text = config.read_text().replace("overflow_strategy => drop_head", f"overflow_strategy => {overflow}")
    config.write_text(text)
    assert settings_in(node, "q.roll") is None and f"=> {overflow}" in text
    segment = next(quorum_of(node).glob("2F_QRO*/00000021.segment"))
    flip(segment, segment.stat().st_size - 5)
    apply_recovery(str(node))
    found = settings_in(node, "q.roll")
    machine = parse_config(text.encode(), "config")["machine"][2]
    assert {str(key): str(value) for key, value in found.items()} == {
        str(key): str(value) for key, value in machine.items()
    } | {
        "overflow_strategy": "drop_head"  # as in the snapshot, which is newer
    }


def test_settings_after_long_process_names_are_found(copy):
    """The server's own entry has the caller before the command, and each process has its node's name, of up to 255 bytes."""
    node = copy("rabbitmq4-streams")
    caller = b"X" + b"w\xff" + b"n" * 255 + bytes(12)
    entry = b"\x83h\x04w\x04$usrt\0\0\0\x01w\x04fromh\x02" + caller + b"j"
    entry += b"h\x02w\x0dupdate_configt\0\0\0\x01w\x0amax_lengtha\x07w\x0fawait_consensus"
    before = settings_in(node, "q.fan")
    file = wal_of(quorum_of(node))
    last = [record for record in WalScan(file.read_bytes(), "", [], []).records() if record.uid.startswith("2F_QFA")][-1]
    record = LogRecord(last.uid, last.index + 1, last.term, entry)
    (file.parent / "00000002.wal").write_bytes(b"".join(wal_pieces([record])))
    assert before is not None and "max_length" in before and settings_in(node, "q.fan") == {"max_length": 7}


@pytest.mark.parametrize("names", [(SNAPSHOT,), (CHECKPOINT,), (SNAPSHOT, CHECKPOINT)], ids=["snapshot", "checkpoint", "both"])
def test_a_damaged_state(copy, names):
    """The other state is used; without one the entries that are left are."""
    node = copy()
    whole = listed(node)
    for name in names:
        flip(next(quorum_of(node).glob(f"2F_QRO*/{name}")), 100)
    plan, after = recovered(node)
    assert {"rebuild_log", "move_aside"} <= {step.kind for step in plan.steps}
    assert len(names) == 2 or {queue: sorted(rows) for queue, rows in after.items()} == {
        queue: sorted(rows) for queue, rows in whole.items()
    }


def test_a_queue_missing_from_the_server_table_is_registered(copy):
    """The table gets the row that a killed server had not written."""
    node = copy("rabbitmq4-young")
    plan, after = recovered(node)
    assert {step.kind for step in plan.steps} == {"write_names", "commit_staged"} and len(after["q.fan"]) == 5
    rows = read_dets((quorum_of(node) / "names.dets").read_bytes(), "")
    (folder,) = (entry.name for entry in quorum_of(node).iterdir() if entry.is_dir())
    assert rows == [("%2F_q.fan", folder.encode())]


@pytest.mark.parametrize("name", ["names.dets", "meta.dets"])
@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_lost_table(copy, name, how):
    """All queues are in the new table, with the last index that their log has."""
    node = copy()
    whole = listed(node)
    file = quorum_of(node) / name
    old = read_dets(file.read_bytes(), "")
    if how == "lost":
        file.unlink()
    else:
        flip(file, 5)
    assert [problem.kind for problem in problems(node)] == ["bad_names_table" if name == "names.dets" else "bad_meta_table"]
    assert recovered(node)[1] == whole
    rows = read_dets(file.read_bytes(), "")
    keys = {row[0] for row in old}
    assert {row[0] for row in rows} == keys
    if name == "meta.dets":
        applied = {row[0]: row[-1] for row in old}
        assert all(row[-1] >= applied[row[0]] for row in rows)


@pytest.mark.parametrize("how", ["lost", "cut"])
def test_a_lost_config(copy, how):
    """It is written by the model of another queue, with the name in the table and without the model's limits."""
    node = copy()
    whole = listed(node)
    file = next(quorum_of(node).glob("2F_QSL*/config"))
    old = parse_config(file.read_bytes(), "")
    if how == "lost":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:300])
    assert [problem.kind for problem in problems(node)] == ["bad_queue_config"]
    apply_recovery(str(node))
    assert listed(node) == whole and problems(node) == [] and plan_recovery(str(node)).steps == []
    new = parse_config(file.read_bytes(), "")
    old["machine"][2]["created"] = new["machine"][2]["created"]
    old["machine"][2]["delivery_limit"] = new["machine"][2]["delivery_limit"]
    assert new == old


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'uid => <<"2F', b'uid => <<"2G'),
        (b"id => {'%2F_q.slow'", b"id => {'%2F_q.clow'"),
        (b"a@local", b"q@local"),
        (b"{module,rabbit_fifo", b"{module,rabbit_fyfo"),
        (b"initial_members", b"initial_members".replace(b"s", b"w")),
    ],
    ids=["folder", "name", "node", "module", "key"],
)
def test_a_config_with_different_names_is_damaged(copy, old, new):
    """A flipped bit leaves a map that can be read, from which the server starts no queue."""
    node = copy()
    file = next(quorum_of(node).glob("2F_QSL*/config"))
    whole = parse_config(file.read_bytes(), "")
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new, 1))
    assert [problem.kind for problem in problems(node)] == ["bad_queue_config"]
    apply_recovery(str(node))
    assert problems(node) == [] and parse_config(file.read_bytes(), "")["id"] == whole["id"]


def test_a_changed_module_of_the_coordinator_is_damage(copy, folders):
    """The node starts, and its streams are unusable."""
    node = copy("rabbitmq4-streams")
    shutil.copy(folders["rabbitmq4-streams"][0] / "cluster_nodes.config", node)
    (file,) = [file for file in node.glob("coordination/*/*/config") if b"{module,rabbit_stream" in file.read_bytes()]
    before = parse_config(file.read_bytes(), "")
    file.write_bytes(file.read_bytes().replace(b"{module,rabbit_stream_coordinator", b"{module,rabbit_stream_coordinatoR"))
    assert [problem.kind for problem in problems(node)] == ["bad_queue_config"]
    apply_recovery(str(node))
    assert problems(node) == [] and parse_config(file.read_bytes(), "") == before


def test_a_wrong_size_of_a_block_in_a_table(copy):
    """The server does not start: the rows can be read, and their block has another size."""
    node = copy()
    file = quorum_of(node) / "meta.dets"
    data, rows = file.read_bytes(), sorted(read_dets(file.read_bytes(), ""))
    at = data.index(ACTIVE) - 1
    file.write_bytes(data[:at] + bytes((data[at] ^ 0x50,)) + data[at + 1 :])
    assert [problem.kind for problem in problems(node)] == ["bad_meta_table"]
    apply_recovery(str(node))
    assert problems(node) == [] and {row[0] for row in read_dets(file.read_bytes(), "")} == {row[0] for row in rows}


def test_a_row_for_a_folder_that_does_not_exist_is_replaced(copy):
    """A flipped bit in the folder's name: the server would start the queue as a new one."""
    node = copy()
    file = quorum_of(node) / "names.dets"
    rows = read_dets(file.read_bytes(), "")
    (uid,) = (row[1] for row in rows if row[0] == "%2F_q.slow")
    flip(file, file.read_bytes().index(uid) + 3)
    assert [step.kind for step in plan_recovery(str(node)).steps] == ["write_names", "commit_staged"]
    recovered(node)
    assert sorted(read_dets(file.read_bytes(), "")) == sorted(rows)


@pytest.mark.parametrize(("at", "bit"), [(11, 4), (8, 0x80), (9, 8)], ids=["uneven", "outside", "overlapping"])
def test_a_flipped_bit_in_the_free_blocks_of_a_table(copy, at, bit):
    """The rows can be read, but the server does not start with such a table."""
    node = copy()
    file = quorum_of(node) / "names.dets"
    rows = read_dets(file.read_bytes(), "")
    flip(file, file.read_bytes().rindex(b"\x03\xab\xcd\xef\0\0\0\x13") + at, bit)
    assert [problem.kind for problem in problems(node)] == ["bad_names_table"]
    recovered(node)
    assert sorted(read_dets(file.read_bytes(), "")) == sorted(rows)


def test_a_checkpoint_without_its_file(copy):
    """The server ends with an error while it looks for checkpoints; the state itself is not needed."""
    node = copy()
    whole = listed(node)
    next(quorum_of(node).glob(f"2F_QRO*/{CHECKPOINT}")).unlink()
    assert [problem.kind for problem in problems(node)] == ["bad_snapshot"]
    assert recovered(node)[1] == whole


def test_a_queue_without_a_machine_version_does_not_hide_damage_of_another_queue(copy):
    """Found by fuzzing: looking for the version in the other queue hid that queue's damage."""
    node = copy()
    files = [
        next(quorum_of(node).glob(f"{name}*/{number}.segment"))
        for name, number in (("2F_QON", "00000001"), ("2F_QRO", "00000020"))
    ]
    for file, entries in zip(files, (range(3), (64,)), strict=True):
        for entry in entries:
            flip(file, struct.unpack_from(">Q", file.read_bytes(), 8 + 32 * entry + 16)[0] + 5)
    recovered(node)


def test_a_lost_config_of_an_unregistered_queue_is_not_recreated(copy):
    """The name of the queue is not known; its messages can be exported."""
    node = copy()
    next(quorum_of(node).glob("2F_QSL*/config")).unlink()
    (quorum_of(node) / "names.dets").unlink()
    plan = plan_recovery(str(node))
    assert [(one.finding.kind, one.finding.found) for one in plan.unrepaired] == [("bad_queue_config", "no row in names.dets")]


def test_a_name_is_split_at_a_known_virtual_host():
    """Both parts may have the character that joins them."""
    assert split_name("%2F_a_b", {"/", "x"}) == ("/", "a_b")
    assert split_name("a_b_c", {"/", "a_b", "a"}) == ("a_b", "c")
    assert split_name("new_q", set()) == ("new", "q")


@pytest.mark.parametrize("name", ["names.dets", "meta.dets"])
def test_free_blocks_of_an_open_table(copy, name):
    """A running server leaves those of the last stop in the file, and writes rows over them; a start repairs the table."""
    (file,) = copy("rabbitmq4-streams").glob(f"quorum/*/{name}")
    data = bytearray(file.read_bytes())
    before = read_rows(bytes(data), "")
    at = data.find(b"\x03\xab\xcd\xef")
    data[at + 8 : at + 20] = b"\x83h\2overwrit"[:12]
    data[CLOSED_AT : CLOSED_AT + 4] = b"\0\0\0\1"
    with pytest.raises(StoreCorrupt, match="free blocks"):
        read_rows(bytes(data), "")
    data[CLOSED_AT : CLOSED_AT + 4] = bytes(4)
    assert read_rows(bytes(data), "") == before


@pytest.mark.parametrize("folder", ["quorum", "coordination"])
@pytest.mark.parametrize("name", ["names.dets", "meta.dets"])
def test_an_open_table_without_its_whole_head_is_rebuilt(copy, name, folder):
    """Servers repair one that was not closed from 312 bytes on: 3.10.8 refuses 56 and 184, and 4.0.5 and 4.3.6 refuse 56."""
    node = copy("rabbitmq4-killed")
    (file,) = node.glob(f"{folder}/*/{name}")
    data = bytearray(file.read_bytes())
    data[CLOSED_AT : CLOSED_AT + 4] = bytes(4)
    assert read_rows(bytes(data[:312]), "") == []
    file.write_bytes(data[:311])
    kind = f"bad_{name.removesuffix('.dets')}_table"
    assert (f"{file.relative_to(node)}", kind) in {(one.file, one.kind) for one in problems(node)}
    recovered(node)


@pytest.mark.parametrize("folder", ["quorum", "coordination"])
@pytest.mark.parametrize("name", ["names.dets", "meta.dets"])
def test_a_table_with_zeroed_slots_is_rebuilt(copy, name, folder):
    """The server finds no row by slots of zeros, although all rows are there; it repairs only a table that was not closed."""
    node = copy("rabbitmq4-streams")
    (file,) = node.glob(f"{folder}/*/{name}")
    before = read_rows(file.read_bytes(), "")
    data = bytearray(file.read_bytes())
    rows = [at for at in range(SEGMENT_AT, SEGMENT_AT + 8 * SLOTS, 8) if any(data[at : at + 8])]
    data[CLOSED_AT : CLOSED_AT + 4] = b"\0\0\0\0"
    data[rows[0] : rows[0] + 8] = bytes(8)
    file.write_bytes(data)
    assert read_rows(file.read_bytes(), "") == before
    data[CLOSED_AT : CLOSED_AT + 4] = b"\0\0\0\1"
    file.write_bytes(data)
    kind = f"bad_{name.removesuffix('.dets')}_table"
    assert {problem.kind for problem in problems(node)} == {kind}
    apply_recovery(str(node))
    after = read_rows(file.read_bytes(), "")
    assert problems(node) == [] and len(after) == len(before) and read_dets(file.read_bytes(), "") == after
    if name == "names.dets":
        assert sorted(map(str, after)) == sorted(map(str, before))


def test_a_lost_table_of_the_coordinator(copy):
    """Without it the server finds no stream; the table gets both rows again."""
    node = copy("rabbitmq4-streams")
    (file,) = node.glob("coordination/*/names.dets")
    rows = read_dets(file.read_bytes(), "")
    file.unlink()
    assert [(one.kind, one.file) for one in problems(node)] == [
        ("bad_names_table", f"coordination/{file.parent.name}/names.dets")
    ]
    recovered(node)
    assert sorted(read_dets(file.read_bytes(), "")) == sorted(rows)


def test_the_last_applied_entry_is_lowered(copy):
    """A new log is shorter; the server would wait for entries that no longer exist."""
    node = copy()
    flip(next(quorum_of(node).glob(f"2F_QRO*/{SNAPSHOT}")), 100)
    before = {row[0]: row[-1] for row in read_dets((quorum_of(node) / "meta.dets").read_bytes(), "")}
    recovered(node)
    after = {row[0]: row[-1] for row in read_dets((quorum_of(node) / "meta.dets").read_bytes(), "")}
    (changed,) = (uid for uid in before if before[uid] != after[uid])
    assert changed.startswith(b"2F_QRO") and after[changed] == 102 < before[changed]  # 100 messages behind three entries


def test_the_log_of_one_of_several_members_is_not_rewritten(copy):
    """A new log would differ from that of the other members."""
    node = copy("rabbitmq4-streams")
    uid = damage_record(node)
    config = quorum_of(node) / uid / "config"
    name = parse_config(config.read_bytes(), "")["cluster_name"].encode()
    other = b"initial_members => [{'%b',b@localhost}," % name
    config.write_bytes(config.read_bytes().replace(b"initial_members => [", other))
    plan = plan_recovery(str(node))
    assert [one.finding.found for one in plan.unrepaired] == ["one of 2 members; delete this member and add it again"]
    assert not any(step.kind == "rebuild_log" for step in plan.steps)


def test_the_tool_plans_and_applies(copy, folders):
    """Nothing changes without --apply; the exit codes are those of other folders."""
    node = copy("rabbitmq4-streams")
    shutil.copytree(folders["rabbitmq4-streams"][0] / "msg_stores", node / "msg_stores")
    damage_record(node)
    before = wal_of(quorum_of(node)).read_bytes()
    planned = run("recover", "--json", node)
    assert planned.code == 1 and planned.json["node"]["lost_entries"] == 1
    assert wal_of(quorum_of(node)).read_bytes() == before and not (node / "brokerstore").exists()
    assert run("recover", "--apply", "--json", node).code == REPAIRED_DROPPED
    again = run("recover", node)
    assert again.code == 0 and "Nothing to repair." in again.out
    assert run("verify", node).code == 0


def test_an_enqueue_keeps_message_and_time():
    """A numbered enqueue becomes one of no process; bytes of the message and of the time stay."""
    meta = b"t\0\0\0\x01w\x02tsn\x06\0\x4d\xb9\x39\x08\xa2\x01"
    message = b"h\x04w\x02mcw\x08mc_amqplm\0\0\0\x04bodyt\0\0\0\x01w\x01pa\x07"
    data = b"\x83h\x04w\x04$usr" + meta + b"h\x04w\x01ea\x05" + message + b"h\x02a\x03a\x04" + b"h\x03w\x06notifya\x01a\x02"
    assert plain_enqueue(data, 0, "f") == (
        b"\x83h\x04w\x04$usr" + meta + b"h\x04w\x07enqueuew\x09undefinedw\x09undefined" + message + b"w\x07noreply"
    )
    counted = message[:-10] + b"t\0\0\0\x02w\x01pa\x07w\x0edelivery_counta\x03"
    assert counted in plain_enqueue(data, 3, "f")
    with pytest.raises(StoreCorrupt):
        plain_enqueue(b"\x83h\x04w\x04$usr" + meta + b"h\x01w\x05purgew\x07noreply", 0, "f")


def test_a_log_is_written_in_the_documented_format():
    """The bytes are those of the format page, with the checksum of zlib."""
    import zlib

    records = [LogRecord("2F_QA", 1, 3, b"x"), LogRecord("2F_QA", 2, 3, b"", True)]
    positions = [struct.pack(">QQ", 1, 3) + b"x", struct.pack(">QQ", 2, 3)]
    assert b"".join(wal_pieces(records)) == (
        b"RAWA\x01" + b"\x00\x00\x01\x00\x052F_QA" + struct.pack(">II", zlib.adler32(positions[0]), 1) + positions[0]
        + b"\xc0\x00\x01" + struct.pack(">II", zlib.adler32(positions[1]), 0) + positions[1]
    )  # fmt: skip


class Stopped(Exception):
    """The process ended here."""


class StoppingDisk(RealDisk):
    """A disk on which a process ends before a change of the folder."""

    left = 0

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise Stopped

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def delete(self, path):
        self._count()
        super().delete(path)

    def delete_folder(self, folder):
        self._count()
        super().delete_folder(folder)


@pytest.mark.deep
@pytest.mark.parametrize("keeps", [True, False])
def test_a_kill_at_any_step(copy, keeps):
    """The next recovery completes an interrupted one, with the same messages."""
    node = copy()
    damage_record(node)
    flip(next(quorum_of(node).glob(f"2F_QRO*/{SNAPSHOT}")), 100)
    before = listed(node)
    for step in range(1, 40):
        again = node.with_name(f"step{step}")
        shutil.copytree(node, again)
        disk = StoppingDisk()
        disk.left = step
        with contextlib.suppress(Stopped):
            apply_recovery(str(again), disk, keep_backup=keeps)
        apply_recovery(str(again), keep_backup=keeps)
        found = listed(again)
        assert {name: sorted(rows) for name, rows in found.items()} == {name: sorted(rows) for name, rows in before.items()}, (
            step
        )
        assert problems(again) == [] and not (again / "brokerstore/staged").exists()
        shutil.rmtree(again)
        if disk.left >= 0:
            return
    raise AssertionError("the recovery has more steps")


def test_a_change_list_with_a_path_outside_of_the_folder_is_refused(tmp_path):
    """Only files below the folder are replaced."""
    Staging(REAL_DISK, str(tmp_path)).stage("a/b", lambda: [b"new"])
    rows = tmp_path / "brokerstore/staged/commit.json"
    rows.write_text("[]")
    assert is_staged(REAL_DISK, str(tmp_path))
    for text in ('[["../x", "0"]]', '[["/x", "0"]]', '[["x", "../0"]]', "[1]", "{", '[["x"]]'):
        rows.write_text(text)
        with pytest.raises(StoreCorrupt):
            commit(REAL_DISK, str(tmp_path))
    rows.write_text('[["a/b", "0"]]')
    commit(REAL_DISK, str(tmp_path))
    assert (tmp_path / "a/b").read_bytes() == b"new"


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40))
def test_random_damage_is_recovered(copy, seed):
    """After any damage the recovery keeps what was listed, or says what it leaves."""
    chance = random.Random(seed)
    node = copy()
    files = [file for file in sorted(quorum_of(node).rglob("*")) if file.is_file() and file.name != "config"]
    for _ in range(chance.randint(1, 4)):
        file = chance.choice([wal_of(quorum_of(node)), chance.choice(files)])
        data = chance.choice([bytes(chance.randint(1, 600)), chance.randbytes(chance.randint(1, 60))])
        overwrite(file, chance.randrange(file.stat().st_size), data)
    plan = apply_recovery(str(node))
    again = plan_recovery(str(node))
    assert again.steps == [] or again.unrepaired
    assert again.messages_kept == plan.messages_kept


def test_a_gap_of_the_log_that_a_segment_fills(copy):
    """The server expects every entry after the first one of the write-ahead log there, and crashes on a gap."""
    node = copy("rabbitmq4-streams")
    folder = quorum_of(node)
    file = wal_of(folder)
    data = file.read_bytes()
    every = [record for record in WalScan(data, "", [], []).records() if record.index > 2]
    lost = every[len(every) // 2]
    left = [record for record in WalScan(data, "", [], []).records() if record.position != lost.position]
    pieces = wal_pieces(LogRecord(one.uid, one.index, one.term, data[one.at : one.stop], one.truncates) for one in left)
    file.write_bytes(b"".join(map(bytes, pieces)))
    entry = LogEntry(lost.index, lost.term, lambda: data[lost.at : lost.stop])
    (folder / lost.uid / "00000001.segment").write_bytes(b"".join(map(bytes, segment_pieces([entry]))))
    assert [problem.kind for problem in problems(node)] == ["bad_wal_entry"]
    plan, _after = recovered(node)
    assert [step.kind for step in plan.steps] == ["rewrite_wal", "commit_staged"]
    found = [record.index for record in WalScan(file.read_bytes(), "", [], []).records() if record.uid == lost.uid]
    assert found == list(range(found[0], found[-1] + 1)) and lost.index in found


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_lost_config_of_the_coordinator(copy, folders, nodes):
    """Streams are unusable without it.  It is as the server wrote it, unless others may be in the cluster."""
    node = copy("rabbitmq4-streams")
    name = next((node / "coordination").iterdir()).name
    every = [file for file in node.glob("coordination/*/*/config") if b"{module,rabbit_stream_coordinator" in file.read_bytes()]
    (config,) = every
    before = parse_config(config.read_bytes(), "")
    cluster = [name, "other@host"][:nodes]
    (node / "cluster_nodes.config").write_text(f"{{[{','.join(cluster)}],[{name}]}}.\n")
    config.unlink()
    assert [problem.kind for problem in problems(node)] == ["bad_queue_config"]
    plan = apply_recovery(str(node))
    assert [problem.finding.kind for problem in plan.unrepaired] == ["bad_queue_config"] * (nodes - 1)
    if nodes == 1:
        assert problems(node) == [] and parse_config(config.read_bytes(), "") == before
    else:
        assert not config.exists()


def coordination_of(node):
    return next((node / "coordination").iterdir())


def test_a_lost_config_of_the_metadata_store(copy, folders):
    """The server does not start without it."""
    node = copy("rabbitmq4-streams")
    shutil.copy(folders["rabbitmq4-streams"][0] / "cluster_nodes.config", node)
    (file,) = [file for file in node.glob("coordination/*/*/config") if b"khepri_machine" in file.read_bytes()]
    before = parse_config(file.read_bytes(), "")
    file.unlink()
    apply_recovery(str(node))
    assert problems(node) == [] and parse_config(file.read_bytes(), "") == before


@pytest.fixture(params=[1, 2])
def shortened(copy, request):
    """Return a node whose metadata store has a snapshot after an entry, also after the last one, and the log from there on."""
    after = request.param
    node = copy("rabbitmq4-streams")
    (store,) = [file.parent for file in node.glob("coordination/*/*/config") if b"khepri_machine" in file.read_bytes()]
    file = next(coordination_of(node).glob("*.wal"))
    data = file.read_bytes()
    left = [row for row in WalScan(data, "", [], []).records() if row.uid != store.name or row.index > after]
    pieces = wal_pieces(LogRecord(row.uid, row.index, row.term, data[row.at : row.stop], row.truncates) for row in left)
    file.write_bytes(b"".join(map(bytes, pieces)))
    meta = encode({Atom("index"): after, Atom("term"): 1, Atom("machine_version"): 1, Atom("cluster"): []})
    root = (Atom("node"), {Atom("payload_version"): 1}, Atom("$__NO_PAYLOAD__"), {})
    state_term = (Atom("khepri_machine"), {}, (Atom("tree"), root, {}, {}))
    body = struct.pack(">I", len(meta)) + meta + encode(state_term)
    state = store / "snapshots" / f"{1:016X}_{after:016X}" / "snapshot.dat"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"RASN\1" + struct.pack(">I", zlib.crc32(body)) + body)
    return node, state


def test_a_log_of_the_metadata_store_may_start_behind_a_snapshot(shortened):
    """Entries up to the snapshot are not missing."""
    node, _state = shortened
    plan = plan_recovery(str(node))
    assert problems(node) == [] and (plan.steps, plan.unrepaired) == ([], [])


def test_a_damaged_snapshot_of_the_metadata_store_is_not_replaced(shortened):
    """Only it has what the store was told up to there: entries without effect in place of the others would hide the loss."""
    node, state = shortened
    flip(state, 40)
    before = contents(coordination_of(node))
    assert {"bad_snapshot", "missing_entries"} <= {problem.kind for problem in problems(node)}
    plan = plan_recovery(str(node))
    assert [one.finding.kind for one in plan.unrepaired] == ["bad_snapshot"] and plan.steps == []
    apply_recovery(str(node))
    assert contents(coordination_of(node)) == before


def coordinator_log(node):
    """Return the coordinator's entries by index, decoded."""
    with QuorumNode(str(coordination_of(node))) as logs:
        (log,) = [log for log in logs.queues() if log.registered_name == "rabbit_stream_coordinator"]
        return {index: (entry.term, entry.decode()) for index, entry in log.entries().items()}


@pytest.mark.parametrize("lost", ["new_stream", "member_started", "mnesia_updated"])
def test_a_lost_entry_of_the_coordinator(copy, lost):
    """The server does not start with a gap, and leaves a dead writer in its tables if it believes that they have the new one.

    Entries without effect take the place of the lost one and of all later `mnesia_updated`; all others stay.
    """
    node = copy("rabbitmq4-streams")
    before = coordinator_log(node)
    index = next(index for index, (_term, entry) in before.items() if len(entry) == 4 and entry[2][0] == lost)
    with QuorumNode(str(coordination_of(node))) as logs:
        (log,) = [log for log in logs.queues() if log.registered_name == "rabbit_stream_coordinator"]
        entry = log.entries()[index]
    flip(coordination_of(node) / entry.file.partition("/")[2].partition("/")[2], entry.at + 5)
    plan = apply_recovery(str(node))
    after = coordinator_log(node)
    changed = [number for number in before if before[number] != after[number]]
    notes = [number for number, (_term, found) in before.items() if len(found) == 4 and found[2][0] == "mnesia_updated"]
    assert plan.cost.log_entries_lost == 1 and problems(node) == [] and after.keys() == before.keys()
    assert changed == sorted({index, *(number for number in notes if number > index)})
    assert all(after[number][0] == before[number][0] and after[number][1][::2] == ("noop", 0) for number in changed)
    assert plan_recovery(str(node)).steps == []


def test_a_lost_entry_of_the_coordinator_of_a_cluster(copy):
    """A log that differs from those of the other nodes would be served, so it gets no entries in place of lost ones."""
    node = copy("rabbitmq4-streams")
    own = coordination_of(node).name
    (node / "cluster_nodes.config").write_text(f"{{['{own}',other@localhost],['{own}']}}.\n")
    before = coordinator_log(node)
    (file,) = coordination_of(node).glob("*.wal")
    (found,) = [
        one for one in WalScan(file.read_bytes(), "", [], []).records() if one.index == 5 and one.uid in _coordinators(node)
    ]
    flip(file, found.at + 5)
    plan = apply_recovery(str(node))
    assert [one.finding.kind for one in plan.unrepaired] == ["missing_entries"] and "rebuild_log" not in {
        one.kind for one in plan.steps
    }
    assert coordinator_log(node) == {index: entry for index, entry in before.items() if index != 5}


def _coordinators(node):
    with QuorumNode(str(coordination_of(node))) as logs:
        return {log.uid for log in logs.queues() if log.registered_name == "rabbit_stream_coordinator"}


def test_a_stream_that_the_coordinator_does_not_know(copy, folders):
    """A cut of its log: the messages can be read and exported, but the server cannot serve the stream."""
    node = copy("rabbitmq4-streams")
    shutil.copytree(folders["rabbitmq4-streams"][0] / "stream", node / "stream")
    assert plan_recovery(str(node)).unrepaired == []
    (file,) = coordination_of(node).glob("*.wal")
    first = next(
        record
        for record in WalScan(file.read_bytes(), "", [], []).records()
        if b"new_stream" in file.read_bytes()[record.at : record.stop]
    )
    with file.open("r+b") as opened:
        opened.truncate(first.position)
    expected = {f"stream/{folder.name}" for folder in (node / "stream").iterdir()}
    plan = plan_recovery(str(node))
    assert {(one.finding.kind, one.finding.file) for one in plan.unrepaired} == {
        ("unregistered_stream", name) for name in expected
    }
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        assert {one.file for one in folder.check().problems if one.kind == "unregistered_stream"} == expected


@pytest.mark.parametrize("flags", ["[message_containers]. ", "[khepri_db]. ", None])
def test_a_lost_log_of_the_metadata_store(copy, flags):
    """The server waits for a leader in vain.  Where it does not use the store, it starts when it can make a new one."""
    node = copy("rabbitmq4-streams")
    if flags is not None:
        (node.parent / f"{node.name}-feature_flags").write_text(flags)
    (store,) = [file.parent for file in node.glob("coordination/*/*/config") if b"khepri_machine" in file.read_bytes()]
    (log,) = coordination_of(node).glob("*.wal")
    log.unlink()
    plan = apply_recovery(str(node))
    is_new = flags is not None and "khepri" not in flags
    rows = [read_dets((coordination_of(node) / name).read_bytes(), "") for name in ("names.dets", "meta.dets")]
    assert store.exists() != is_new and all((store.name.encode() in sum(table, ())) != is_new for table in rows)
    left = set() if is_new else {"missing_entries"}
    assert {one.finding.kind for one in plan.unrepaired} == {problem.kind for problem in problems(node)} == left
    assert plan_recovery(str(node)).steps == []


def test_a_snapshot_that_a_kill_came_before_is_no_damage(copy):
    """Servers of 3.8.9 to 4.3.6 skip a folder without a file if the log has the entries; else the state is lost."""
    node = copy()
    whole = listed(node)
    (state,) = quorum_of(node).glob(f"2F_QRO*/{SNAPSHOT}")
    term, index = state.parent.name.split("_")
    begun = state.parents[1] / f"{term}_{int(index, 16) + 1:016X}"
    begun.mkdir()
    assert problems(node) == [] and plan_recovery(str(node)).steps == [] and listed(node) == whole
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        assert [(one.kind, begun.name in one.file) for one in folder.check().notes] == [("unfinished_snapshot", True)]
    state.unlink()
    assert {"bad_snapshot", "missing_entries"} <= {problem.kind for problem in problems(node)}
