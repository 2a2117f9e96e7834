"""Logs that are empty, gone or older than what the tables of the node have: a loss is counted, and never intact."""

from __future__ import annotations

import contextlib
import shutil
from types import SimpleNamespace

import pytest

from rabbitstore import apply_recovery, plan_recovery
from rabbitstore.format.message import Content
from rabbitstore.format.terms import UNDEFINED, Atom, Improper, encode
from rabbitstore.node_folder import NodeFolder
from rabbitstore.quorum.coordinator import _names_in, is_writer_entry
from rabbitstore.quorum.entries import RaftEntry
from rabbitstore.quorum.folder import _is_of
from rabbitstore.quorum.message import Located, to_message
from rabbitstore.quorum.messages import QuorumContent
from tests.brokerstore.tool import run
from tests.cases import unpack_case

DROPPED, KEPT = 6, 7
MESSAGES = {"plain": 3, "tür": 3, "tör": 3, "日本": 3, "strüm": 3}


@pytest.fixture
def node(tmp_path):
    """Return a node of a killed 4.0.5 whose logs are all in the newest write-ahead log."""
    return unpack_case("rabbit-quorum-latin1-4.0.5", tmp_path).folder


def checked(node):
    """Return the kinds of the problems, and the numbers of the messages that can be read."""
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        kinds = {problem.kind for problem in folder.check().problems}
        return kinds, {row.queue: row.messages for row in folder.queues()}


def wal_of(node, folder="quorum"):
    """Return the newest write-ahead log."""
    return sorted((node / folder).glob("*/*.wal"))[-1]


def table_of(node, name):
    """Return a table of the quorum queues."""
    return next((node / "quorum").glob(f"*/{name}"))


def test_an_empty_newest_log_of_a_real_node(tmp_path):
    """The server does not start with it; every message is in the older log."""
    node = unpack_case("rabbit-wal-empty-4.0.5", tmp_path).folder
    assert checked(node) == ({"bad_wal_head"}, MESSAGES)
    assert run("verify", node).code == 1
    assert run("recover", node, "--apply").code == KEPT
    assert checked(node) == (set(), MESSAGES) and run("verify", node).code == 0
    assert wal_of(node).read_bytes() == b"RAWA\x01"


@pytest.mark.parametrize("size", [0, 3, 4])
@pytest.mark.parametrize("folder", ["quorum", "coordination"])
def test_a_newest_log_with_a_truncated_header_is_damage(node, folder, size):
    """The server ends with an error while it reads the head."""
    file = wal_of(node, folder)
    newer = file.with_name("00000009.wal")
    newer.write_bytes(file.read_bytes()[:size])
    assert checked(node) == ({"bad_wal_head"}, MESSAGES)
    assert run("recover", node, "--apply").code == KEPT
    assert checked(node) == (set(), MESSAGES)


@pytest.mark.parametrize("how", ["empty", "zeros", "missing", "head", "older"])
def test_missing_applied_entries_of_the_newest_log_are_counted_as_lost(node, how):
    """`meta.dets` has how far each queue came: the entries are counted as lost, and the copy of the file is kept."""
    file = wal_of(node)
    data = file.read_bytes()
    file.unlink()
    if how != "missing":
        sizes = {"empty": b"", "zeros": bytes(len(data)), "head": data[:5], "older": data[: len(data) // 2]}
        file.write_bytes(sizes[how])
    kinds, left = checked(node)
    assert "applied_ahead" in kinds and sum(left.values()) < sum(MESSAGES.values())
    assert ("bad_wal_head" in kinds) == (how in ("empty", "zeros")) and ("missing_entries" in kinds) == (how != "older")
    assert run("verify", node).code == 1
    plan = plan_recovery(str(node))
    assert plan.cost.log_entries_lost > 0
    assert run("recover", node, "--apply").code == DROPPED
    assert checked(node) == (set(), left)
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:  # a server elects no leader of an empty log
        assert all(queue.last_index() > 0 for queue in folder.quorum_queues)


def test_a_log_with_every_applied_entry_is_intact(node):
    """A killed server has more in its log than in `meta.dets`, never less."""
    assert checked(node) == (set(), MESSAGES) and run("verify", node).code == 0


def test_the_missing_folder_of_a_registered_queue_is_restored_from_the_log(node):
    """The log of all queues has its entries; the folder comes back with a `config` like that of another queue."""
    folder = next((node / "quorum").glob("*/2F_PLA*"))
    shutil.rmtree(folder)
    kinds, left = checked(node)
    assert kinds == {"bad_queue_config"} and sum(left.values()) == 15 and left[folder.name] == 3
    apply_recovery(str(node))
    assert checked(node) == (set(), MESSAGES)


def test_the_messages_of_a_registered_queue_without_any_file_are_counted_as_lost(node):
    """The number of its entries in `meta.dets` is counted as lost."""
    folder = next((node / "quorum").glob("*/2F_PLA*"))
    shutil.rmtree(folder)
    wal_of(node).unlink()
    assert "applied_ahead" in checked(node)[0]
    with contextlib.closing(NodeFolder(str(node), "/")) as opened:
        assert folder.name in {queue.uid for queue in opened.quorum_queues}


def test_streams_without_their_coordinator(node):
    """A server finds no stream without it, although its messages are all there; a person has to restore the folder."""
    shutil.rmtree(node / "coordination")
    kinds, left = checked(node)
    assert (kinds, left) == ({"unregistered_stream"}, MESSAGES)
    ended = run("verify", node)
    assert ended.code == 1 and "dump" in ended.out
    assert [one.finding.kind for one in plan_recovery(str(node)).unrepaired] == ["unregistered_stream"]
    assert run("recover", node).code == 1


def entry(*command):
    """Return an entry of the coordinator with a command."""
    data = encode((Atom("$usr"), {Atom("ts"): 5}, command, UNDEFINED))
    return RaftEntry(1, memoryview(data), "f", 0, len(data))


def resource(name, vhost=b"/", kind="queue"):
    return Atom("resource"), vhost, Atom(kind), name


def test_only_the_mnesia_updated_command_records_a_stream_writer():
    """Other commands may name one, and an entry of another form or a damaged one is none."""
    note = Atom("mnesia_updated")
    assert is_writer_entry(entry(note, b"folder", 5))
    for other in (entry(Atom("new_stream"), b"mnesia_updated"), entry(Atom("new_stream"), note), entry(b"mnesia_updated")):
        assert not is_writer_entry(other)
    for data in (encode((note, 1)), encode(note), encode((Atom("$usr"), {}, note, UNDEFINED)), encode((note, note))[:-3]):
        assert not is_writer_entry(RaftEntry(1, memoryview(data), "f", 0, len(data)))


def test_names_of_streams_are_those_of_the_newest_state_and_the_entries():
    """A stream that an older state has may be deleted since; damaged entries, and resources of another form, give no name."""
    newest = {Atom("streams"): {b"__a_1": (1, Improper((resource(b"a"),), 2)), b"x": (resource(b"x", kind="exchange"),)}}
    states = [SimpleNamespace(state=newest), SimpleNamespace(state={b"__old_1": resource(b"old")})]
    new = Atom("new_stream")
    rows = [
        entry(new, b"__b_1", {Atom("queue"): resource("b\u00fc".encode(), b"v")}),
        entry(new, b"__c_1", resource(Atom("c"))),
        entry(new, b"__d_1", resource(b"d", Atom("/"))),
        entry(new, Atom("__e_1"), resource(b"e")),
        entry(new, b"__f_1", (*resource(b"f"), 5)),
        entry(Atom("other"), b"new_stream", b"__g_1", resource(b"g")),
        RaftEntry(1, memoryview(b"\x83h\3new_stream"), "f", 0, 13),
    ]
    member = SimpleNamespace(snapshots=lambda: states, entries=lambda: dict(enumerate(rows)))
    assert _names_in(member) == {"__a_1": ("/", "a"), "__b_1": ("v", "b\u00fc")}


def test_machine_and_members_of_a_config_are_checked():
    """A server starts no queue from one of another form, or of another name."""
    name, own = Atom("%2F_q"), resource(b"q")
    module, members, known = Atom("module"), Atom("initial_members"), Atom("metrics_key")
    given = {Atom("name"): name, Atom("queue_resource"): own}
    good = {Atom("machine"): (module, Atom("m"), given), members: [(name, Atom("a@b")), (name, Atom("c@d"))], known: own}
    for same in (good, good | {known: name}, {key: value for key, value in good.items() if key != known}):
        assert _is_of(name, same)
    machines = [[module, Atom("m"), given], (module, Atom("m")), (Atom("other"), Atom("m"), given), (module, Atom("m"), [])]
    machines += [(module, Atom("m"), given | {Atom("name"): Atom("%2F_r")})]
    wrong = [{Atom("machine"): one} for one in machines]
    wrong += [{members: (name,)}, {members: [name]}, {members: [(name, 1), (Atom("%2F_r"), 1)]}, {known: resource(b"r")}]
    for change in wrong:
        assert not _is_of(name, good | change), change


@pytest.mark.parametrize(("acquired", "failed"), [(0, 0), (1, 0), (0, 2), (1, 1)])
def test_a_returned_message_is_marked_redelivered(acquired, failed):
    """Whether its deliveries failed or not, and while a consumer holds it."""
    content = Content("/", "", ("q",), b"", b"body", b"", True)
    for state in ("ready", "checked_out"):
        located = Located(QuorumContent(1, 4, acquired, failed), state, "", "")
        found = to_message(located, content, "q", ("f", 0))
        assert found.redelivered == (acquired + failed > 0 or state == "checked_out")
