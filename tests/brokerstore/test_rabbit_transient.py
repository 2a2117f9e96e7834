"""Transient messages whose bodies were only in the server's memory when it was killed.

RabbitMQ never syncs the transient store and writes it through a buffer: after SIGKILL `0.rdq` there has 0 bytes, while the
index still names its messages.  The server drops every transient message at its next start, so none of them is lost.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import Finding, RabbitSettings, RabbitStore, VhostFolder, statistics, verify
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.helpers import contents

IN_MEMORY = 15  # transient messages of 4096 bytes and more, in the real server's folder
DATA = Path(__file__).resolve().parent.parent / "data"
STORED = Path("msg_store_transient", "0.rdq")


@pytest.fixture
def killed(fixture_store: Any, tmp_path: Path) -> Path:
    """Return the real server's folder as a kill leaves it: no clean-stop files and an empty transient store."""
    folder = tmp_path / "vhost"
    shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", folder)
    for name in ("recovery.dets", "msg_store_persistent/clean.dot", "msg_store_transient/clean.dot"):
        (folder / name).unlink()
    for table in folder.glob("*/*.ets"):
        table.unlink()
    (folder / STORED).write_bytes(b"")
    return folder


def test_every_command_counts_the_messages_that_have_bodies(killed: Path, fixture_store: Any) -> None:
    """`info` counted 15 messages more than `dump` printed; `dump` and `verify` exited with 1."""
    whole = run("dump", "--json", fixture_store("rabbitmq-clean").folder.parent / "vhost").lines
    dumped = run("dump", "--json", killed)
    count = len(whole) - IN_MEMORY
    assert dumped.code == 0
    assert {line["msg_id"] for line in whole} - {line["msg_id"] for line in dumped.lines} == {
        line["msg_id"] for line in whole if not line["persistent"] and not line["embedded"]
    }
    info, listed, stats = (run(command, "--json", killed) for command in ("info", "ls", "stats"))
    assert (info.code, listed.code, stats.code) == (0, 0, 0)
    assert info.json["messages"] == sum(row["messages"] for row in listed.json["queues"]) == len(dumped.lines) == count
    assert info.json["problems"] == []
    assert stats.json["total"]["messages"] == count
    assert sum(row.messages for row in statistics(str(killed)).queues) == count


def test_verify_does_not_report_transient_messages_as_problems(killed: Path) -> None:
    """They were reported as problems, "message lost"."""
    found = run("verify", "--json", killed)
    assert (found.code, found.json["ok"], found.json["problems"]) == (0, True, [])
    assert [note["kind"] for note in found.json["notes"]] == ["transient_in_memory"] * IN_MEMORY
    assert found.json["counts"]["messages"] == len(run("dump", "--json", killed).lines)
    shown = run("verify", killed)
    assert shown.code == 0
    assert shown.out.count("note: ") == IN_MEMORY
    assert "OK: " in shown.out


def test_reading_commands_print_the_number_of_transient_messages(killed: Path) -> None:
    """One line reports their number, and none if there are none."""
    printed = "brokerstore: note: 15 messages were only in the server's memory; it drops them at its next start\n"
    assert run("dump", killed).talk == run("info", killed).talk == run("ls", killed).talk == printed


def test_recover_plans_no_action_for_transient_messages(killed: Path) -> None:
    """It planned to drop 15 messages and exited with 6."""
    before = contents(killed)
    ran = run("recover", "--apply", "--json", killed)
    assert (ran.code, ran.json["applied"]) == (0, False)
    assert (ran.json["plan"]["records_dropped"], ran.json["plan"]["actions"]) == (0, [])
    assert before == contents(killed)


def test_an_opening_drops_all_transient_messages_as_the_server_does(killed: Path) -> None:
    """Messages with bodies are dropped too, and none is reported as lost."""
    with RabbitStore.open(str(killed), "r") as store:
        persistent = sum(queue.persistent for queue in store.queues())
    with RabbitStore.open(str(killed), "r+", settings=RabbitSettings(background=False)) as store:
        assert store.lost == []
        assert sum(queue.messages for queue in store.queues()) == persistent
    assert (verify(str(killed)).problems, verify(str(killed)).notes) == ([], [])


def test_a_transient_message_that_is_damaged_is_still_a_problem(killed: Path, fixture_store: Any) -> None:
    """Its record exists, so it was not only in memory."""
    data = bytearray((fixture_store("rabbitmq-clean").folder.parent / "vhost" / STORED).read_bytes())
    data[25] ^= 0xFF
    (killed / STORED).write_bytes(data)
    found = verify(str(killed))
    assert {problem.kind for problem in found.problems} == {"bad_term"}
    assert found.notes == []


def test_a_persistent_message_in_no_file_is_still_a_problem(killed: Path) -> None:
    """Only what the server drops when it starts is a note."""
    largest = max(killed.glob("msg_store_persistent/*.rdq"), key=lambda path: path.stat().st_size)
    largest.unlink()
    found = verify(str(killed))
    assert {problem.kind for problem in found.problems} == {"message_lost"}
    assert len(found.notes) == IN_MEMORY


def test_a_finding_has_the_message_and_queue_of_its_index_entry(killed: Path) -> None:
    """It gives the position of the index entry, as a problem does."""
    folder = VhostFolder(str(killed))
    list(folder.messages())
    assert folder.problems == [] and len(folder.notes) == IN_MEMORY
    (queue,) = {Path(note.file).parent.name for note in folder.notes}
    assert b"q.lazy" in (killed / "queues" / queue / ".queue_name").read_bytes()
    assert json.dumps([note.as_dict() for note in folder.notes])
    assert all(isinstance(note, Finding) and note.expected.startswith("message ") for note in folder.notes)


def test_a_killed_real_server_dropped_exactly_the_reported_transient_messages(tmp_path: Path) -> None:
    """After SIGKILL and a restart, RabbitMQ 4.0.5 held exactly the persistent messages."""
    unpack(DATA / "rabbitmq4-killed.tar.xz", tmp_path)
    (vhost,) = (tmp_path / "node" / "msg_stores" / "vhosts").iterdir()
    queues = json.loads((tmp_path / "manifest.json").read_text())["queues"]
    restarted = {name: row["messages_after_restart"] for name, row in queues.items() if row["type"] == "classic"}
    rows = run("ls", "--json", vhost).json["queues"]
    assert {row["queue"]: row["persistent"] for row in rows} == {
        name: restarted[name] for name in (row["queue"] for row in rows)
    }
    assert sum(restarted.values()) == sum(row["persistent"] for row in rows) > 200
    found, dumped = run("verify", "--json", vhost), run("dump", "--json", vhost)
    assert (found.code, dumped.code, found.json["problems"]) == (0, 0, [])
    assert [note["kind"] for note in found.json["notes"]] == ["transient_in_memory"] * 9
    assert found.json["counts"]["messages"] == len(dumped.lines) == sum(row["messages"] for row in rows)
