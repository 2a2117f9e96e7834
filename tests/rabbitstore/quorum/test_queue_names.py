"""Names of queues are exact: the server writes a byte for each character up to U+00FF into `config`, and escapes the others."""

from __future__ import annotations

import contextlib

import pytest

from rabbitstore import apply_recovery
from rabbitstore.folder import RabbitmqFacts
from rabbitstore.format.config_text import parse_config, queue_name
from rabbitstore.format.dets_table import read_dets, write_dets
from rabbitstore.format.terms import Atom
from rabbitstore.node_folder import NodeFolder
from rabbitstore.quorum.tables import read_rows
from rabbitstore.stream.folder import folder_prefix
from tests.brokerstore.tool import run
from tests.cases import unpack_case


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Queues `tür` and `tör`, beside one of another script, of a killed 4.0.5."""
    return unpack_case("rabbit-quorum-latin1-4.0.5", tmp_path_factory.mktemp("names"))


def ids(node):
    """Return the ids of the messages by queue."""
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        found = {}
        for message in folder.messages():
            found.setdefault(message.queue, []).append(message.properties["message_id"])
    return found


def delivered(case):
    """Return what the server delivered by queue."""
    rows = case.expected["delivered"].items()
    return {name.removeprefix("/|"): [row["properties"]["message_id"] for row in found] for name, found in rows}


def test_names_that_differ_in_one_character_above_ascii_are_two_queues(case):
    """Each queue has its own messages under its own name."""
    assert ids(case.folder) == delivered(case)
    assert sorted(RabbitmqFacts(str(case.folder)).node.quorum_queues) == ["plain", "tör", "tür", "日本"]


@pytest.mark.parametrize("queue", ["tür", "tör", "日本"])
def test_dump_accepts_a_queue_name_above_ascii(case, queue):
    """`--queue` takes the name as the server shows it."""
    ended = run("dump", case.folder, "--queue", queue, "--json")
    assert ended.code == 0 and [row["routing_keys"] for row in ended.lines] == [[queue]] * 3


def test_a_lost_table_of_names_is_written_with_all_of_them(tmp_path):
    """The server registered the same names; the table that is written is the one that was lost."""
    case = unpack_case("rabbit-quorum-latin1-4.0.5", tmp_path)
    (table,) = (case.folder / "quorum").glob("*/names.dets")
    before = read_dets(table.read_bytes(), "")
    table.unlink()
    apply_recovery(str(case.folder))
    assert sorted(read_dets(table.read_bytes(), "")) == sorted(before) and len(before) == 4
    assert ids(case.folder) == delivered(case)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'<<"q.t\xc3\xbcr">>', "q.tür"),
        (b"<<113,46,195,159>>", "q.ß"),
        (b'<<"aaaa"\n   "bb\\"b">>', 'aaaabb"b'),
        (b'<<"a\\tb\\177\\\\">>', "a\tb\x7f\\"),
        (b'<<"\\x{65E5}"/utf8>>', "日"),
    ],
)
def test_forms_of_a_name_in_a_config(text, name):
    """Printable Latin-1 is written as it is, long strings in parts, anything else as numbers or escaped."""
    data = b'#{machine => {module,rabbit_fifo,#{queue_resource => {resource,<<"/">>,queue,' + text + b"}}},x => 't\xf6r'}."
    config = parse_config(data, "config")
    assert queue_name(config) == ("/", name) and config["x"] == "tör"


def test_folder_names_of_streams_replace_what_is_seen_as_one_character():
    """The server of 4.0.5 made these folders: a letter with a combining mark becomes one `_`."""
    assert folder_prefix("/", "s.tür") == folder_prefix("/", "s.tu\u0308r") == "__s_t_r"
    assert folder_prefix("/", "s.😀") == "__s__" and folder_prefix("/", "s.a\tb") == "__s_a_b"


def test_stale_free_lists_inside_of_later_blocks_are_ignored():
    """A table of 36 queues, closed by a running server, had them there; the head says where the valid ones are."""
    rows = [(Atom("%2F_q"), b"\0\0\0\x10\x03\xab\xcd\xef\x83h\2m"), (Atom("%2F_t\xfcr"), b"2F_TRHH8WW1IVDCCX")]
    assert sorted(read_rows(write_dets(rows), "names.dets")) == sorted(rows)
