"""JSON lines that are written without their messages equal those of the messages."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from rabbitstore.quorum.encode import FIRST_ENTRY, LogEntry, new_leader, segment_pieces
from tests.builds import World
from tests.rabbitstore.quorum.conftest import KINDS, folders  # noqa: F401
from tests.rabbitstore.quorum.test_command_reader import TIME_MS, entry, route
from tests.rabbitstore.test_json_lines import model

NODE, UID = "rabbit@localhost", "2F_QTESTAAAAAAAA"
CONFIG = f"""#{{id => {{'%2F_q','{NODE}'}},cluster_name => '%2F_q',uid => <<"{UID}">>,
  machine => {{module,rabbit_fifo,#{{name => '%2F_q',queue_resource => {{resource,<<"/">>,queue,<<"q">>}}}}}},
  initial_members => [{{'%2F_q','{NODE}'}}],log_init_args => #{{uid => <<"{UID}">>}},
  metrics_key => {{resource,<<"/">>,queue,<<"q">>}}}}.
"""


def written(world: World, path: str, capacity: int) -> tuple[bytes, int]:
    """Return the lines, and the number of messages that were left to the caller."""
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    found, left = b"", 0
    with contextlib.closing(world.module("rabbitstore.node_folder").NodeFolder(path, "/")) as node:
        for message in node.lines(lines, capacity):
            if message is None:
                found += lines.take()
            else:
                left += 1
                lines.add_line(model(message))
    return found + lines.take(), left


def expected(world: World, path: str) -> bytes:
    with contextlib.closing(world.module("rabbitstore.node_folder").NodeFolder(path, "/")) as node:
        return b"".join(model(message) for message in node.messages())


@pytest.mark.parametrize("capacity", [500, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_folders_of_real_servers(world: World, folders: Any, kind: str, capacity: int) -> None:  # noqa: F811
    """Quorum queues and streams, with messages that consumers held, priorities, sub-batches and other protocols."""
    node = str(folders[kind][0])
    found, left = written(world, node, capacity)
    assert found == expected(world, node) and found.count(b"\n") > left


@pytest.mark.parametrize("capacity", [500, 1 << 20])
@pytest.mark.parametrize("kind", ["rabbitmq4-clean", "rabbitmq4-killed"])
def test_classic_queues_of_real_servers(world: World, folders: Any, kind: str, capacity: int) -> None:  # noqa: F811
    """Messages in the index, in a store of the queue and in the shared store; priorities and acknowledged entries."""
    reader = world.module("rabbitstore.read.vhost_folder")
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    for path in reader.find_vhosts(str(folders[kind][0])):
        folder = reader.VhostFolder(path)
        found = b""
        for message in folder.lines(lines, capacity):
            if message is not None:
                lines.add_line(model(message))
            found += lines.take()
        assert found + lines.take() == b"".join(model(message) for message in folder.messages())
        folder.close()


@pytest.mark.parametrize("capacity", [1, 3000, 1 << 20])
def test_rare_messages_between_plain_ones(world: World, tmp_path: Any, capacity: int) -> None:
    """Several fragments, none, other routes, a damaged property block, and two segments."""
    forms: list[dict[str, Any]] = [
        {}, {"fragments": (b"a", b"b")}, {}, {"pairs": route(b"ex", (b"k", b"l"))}, {"fragments": ()}, {"block": b"\0\1"}, {},
        {"pairs": [*route(), b"w\1dw\5false"]}, {"block": b"\x80\x00\x04text"}, {"pairs": [*route(), b"w\1pa\5"]},
    ]  # fmt: skip
    log = [LogEntry(0, 0, lambda: FIRST_ENTRY), LogEntry(1, 1, lambda: new_leader(TIME_MS, 4))]
    for number in range(1, 61):
        data = entry(**{"pairs": route(), "sequence_number": number} | forms[number % len(forms)])
        log.append(LogEntry(number + 1, 1, data.__bytes__))
    folder = tmp_path / "quorum" / NODE / UID
    folder.mkdir(parents=True)
    (folder / "config").write_text(CONFIG)
    for number, part in enumerate((log[:33], log[33:]), 1):
        (folder / f"{number:08}.segment").write_bytes(b"".join(segment_pieces(part)))
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    found: list[bytes] = []
    requested: list[bytes] = []
    with contextlib.closing(world.module("rabbitstore.node_folder").NodeFolder(str(tmp_path), "/")) as node:
        for message in node.messages():
            requested.append(str(message.seq_id).encode() if message.content.properties_bin == b"\0\1" else model(message))
        for message in node.lines(lines, capacity):
            if message is None or lines.size:
                found.append(bytes(lines.take()))
            if message is not None:
                is_damaged = message.content.properties_bin == b"\0\1"
                found.append(str(message.seq_id).encode() if is_damaged else model(message))
    assert b"".join([*found, bytes(lines.take())]) == b"".join(requested) and len(requested) == 60
