"""`verify` of the whole store, `recover` and `rebuild`: damage, its report, and its repair."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config.consumer_offsets import ConsumerOffsets
from storageio import REAL_DISK
from tests.brokerstore.test_golden import expected
from tests.brokerstore.tool import run
from tests.cases import unpack_case
from tests.helpers import contents

SIZES = ("--index-slots", 500, "--index-num", 2000, "--cq-size", 2000, "--commitlog-size", 65536)


@pytest.mark.parametrize("name", ["plain", "propcrc", "lmq", "broker-live"])
def test_rebuild_gives_the_same_bytes(fixture_store: Any, name: str) -> None:
    """Queues are rebuilt from nothing and the index under its old names; nothing else changes."""
    fixture = fixture_store(name, own=True)
    before = contents(fixture.store)
    shutil.rmtree(fixture.store / "consumequeue")
    ran = run("rebuild", "--apply", "--json", fixture.store, *SIZES)
    assert (ran.code, ran.talk) == (0, "")
    assert ran.json["rebuilt"] == ["consumequeue", "index"]
    assert ran.json["queues"] == len(fixture.expected()["queues"])
    assert contents(fixture.store) == before


def test_rebuild_shows_a_plan_and_changes_nothing(fixture_store: Any) -> None:
    """The plan names the parts and the size of the log files; without an option it still executes, with a warning."""
    fixture = fixture_store("plain", own=True)
    before = contents(fixture.store)
    shutil.rmtree(fixture.store / "consumequeue")
    bare = contents(fixture.store)
    log_bytes = sum(path.stat().st_size for path in (fixture.store / "commitlog").iterdir())
    ran = run("rebuild", "--plan", "--json", fixture.store, *SIZES)
    assert (ran.code, ran.talk) == (0, "")
    assert ran.json == {"plan": ["consumequeue", "index"], "applied": False, "log_bytes": log_bytes}
    assert run("rebuild", "--plan", fixture.store, "index", *SIZES).out.splitlines()[1].startswith("Rebuild index from ")
    assert contents(fixture.store) == bare
    ran = run("rebuild", fixture.store, *SIZES)
    assert (ran.code, ran.talk) == (0, "brokerstore: warning: without --apply, the next version only shows the plan\n")
    assert contents(fixture.store) == before


def test_queries_give_the_same_result_after_a_missing_index_is_rebuilt(fixture_store: Any) -> None:
    """All queries of the manifest are answered; the files have new names."""
    fixture = fixture_store("plain", own=True)
    answers = [_query(fixture.store, manifest) for manifest in fixture.expected()["queries"]]
    shutil.rmtree(fixture.store / "index")
    assert "rebuild" in run("query", fixture.store, "HotTopic", "hot-1").talk
    assert run("rebuild", "--apply", fixture.store, "index", *SIZES).code == 0
    assert [_query(fixture.store, manifest) for manifest in fixture.expected()["queries"]] == answers
    assert run("verify", fixture.store).code == 0


def _query(store: Path, manifest: dict[str, Any]) -> list[Any]:
    return run("query", "--json", "--max", manifest["maxNum"], store, "--", manifest["topic"], manifest["key"]).lines


def test_rebuild_of_queues_or_index_does_not_touch_the_other(fixture_store: Any) -> None:
    """The other one is not touched, even if it is damaged."""
    fixture = fixture_store("plain", own=True)
    unit = fixture.store / "consumequeue" / "HotTopic" / "0" / f"{2000:020d}"
    unit.write_bytes(bytes(2000))
    before = contents(fixture.store / "consumequeue")
    assert run("rebuild", "--apply", fixture.store, "index").code == 0
    assert contents(fixture.store / "consumequeue") == before
    assert run("rebuild", "--apply", fixture.store, "consumequeue").code == 0
    assert run("verify", fixture.store).code == 0


def test_rebuild_refuses_a_damaged_log(fixture_store: Any) -> None:
    """Recover comes first, and nothing is changed."""
    fixture = fixture_store("plain", own=True)
    _flip(fixture.store / "commitlog" / f"{65536:020d}", 90)
    before = contents(fixture.store)
    ran = run("rebuild", "--apply", fixture.store)
    assert (ran.code, ran.out) == (1, "")
    assert f"{65536:020d}" in ran.talk
    assert {name: data for name, data in contents(fixture.store).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_an_index_with_a_damaged_header_requires_the_slot_count_option(fixture_store: Any) -> None:
    """It is wrong use until they are given."""
    fixture = fixture_store("plain", own=True)
    for path in (fixture.store / "index").iterdir():
        path.write_bytes(path.read_bytes()[:40] + bytes(path.stat().st_size - 40))
    for command in (["rebuild", "--apply"], ["verify"], ["recover"]):
        ran = run(*command, fixture.store)
        assert ran.code == 2
        assert "--index-slots" in ran.talk
    assert run("rebuild", "--apply", fixture.store, *SIZES).code == 0
    assert run("verify", fixture.store).code == 0


Damage = Callable[[Path], object]
DERIVED: list[tuple[str, Damage, set[str]]] = [
    ("a_queue_gone", lambda store: shutil.rmtree(store / "consumequeue" / "EdgeTopic"), {"missing_queue"}),
    ("all_queues_gone", lambda store: shutil.rmtree(store / "consumequeue"), {"missing_queue"}),
    ("index_gone", lambda store: shutil.rmtree(store / "index"), {"missing_item"}),
    ("a_unit_flipped", lambda store: _flip(store / "consumequeue" / "HotTopic" / "0" / f"{2000:020d}", 45), {"wrong_unit"}),
    ("units_of_zeros", lambda store: (store / "consumequeue/SpreadTopic/1" / f"{0:020d}").write_bytes(bytes(2000)),
     {"missing_unit"}),
    ("an_item_flipped", lambda store: _flip(next((store / "index").iterdir()), 40 + 4 * 500 + 20 * 9 + 3),
     {"missing_item", "dangling_item", "damaged_index"}),
    ("a_stray_in_a_queue", lambda store: (store / "consumequeue/EdgeTopic/0/x").touch(), {"unreadable"}),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "kinds"), [case[1:] for case in DERIVED], ids=[case[0] for case in DERIVED])
def test_verify_reports_inconsistent_files_and_recover_repairs_them(
    fixture_store: Any, damage: Damage, kinds: set[str]
) -> None:
    """Nothing is dropped: the exit code is 7, and all messages are there."""
    fixture = fixture_store("plain", own=True)
    damage(fixture.store)
    before = contents(fixture.store)
    ran = run("verify", "--json", *SIZES, fixture.store)
    assert ran.code == 1
    found = {problem["kind"] for problem in ran.json["problems"]}
    assert found
    assert found <= kinds
    ran = run("recover", "--json", *SIZES, fixture.store)
    assert (ran.code, ran.json["applied"], ran.json["report"]) == (1, False, None)
    assert contents(fixture.store) == before
    ran = run("recover", "--json", "--apply", *SIZES, fixture.store)
    assert (ran.code, ran.json["applied"], ran.json["plan"]["records_dropped"]) == (7, True, 0)
    assert json.loads(Path(ran.json["report"]).read_text())["actions"] == ran.json["plan"]["actions"]
    assert run("verify", *SIZES, fixture.store).code == 0
    assert run("dump", "--json", fixture.store).lines == [expected(manifest) for manifest in fixture.expected()["messages"]]
    assert run("recover", *SIZES, fixture.store).code == 0


def test_verify_reports_damaged_checkpoint_and_config_files(fixture_store: Any) -> None:
    """A checkpoint ahead of the log, an unreadable config file and a consumer ahead of its queue are reported."""
    fixture = fixture_store("broker-live", own=True)
    checkpoint = fixture.store / "checkpoint"
    checkpoint.write_bytes((10**14 // 8).to_bytes(8, "big") + checkpoint.read_bytes()[8:])
    config = fixture.store / "config"
    (config / "topics.json").write_text("{")
    offsets = ConsumerOffsets(REAL_DISK, str(config))
    offsets.commit("LiveFilter", "G_tag", 0, 99)
    offsets.persist()
    problems = run("verify", "--json", fixture.store).json["problems"]
    assert [(Path(problem["file"]).name, problem["kind"]) for problem in problems] == [
        ("checkpoint", "checkpoint_ahead"),
        ("topics.json", "damaged_config"),
        ("consumerOffset.json", "offset_ahead"),
    ]
    assert run("verify", "--log-only", fixture.store).code == 0


@pytest.mark.parametrize("name", ["crash-torn", "crash-lost-cq"])
def test_recover_gives_what_the_real_store_recovered(fixture_store: Any, name: str) -> None:
    """Every queue unit and index item is there, too, which RocketMQ lost."""
    fixture = fixture_store(name, own=True)
    assert run("recover", *SIZES, fixture.store).code == 1
    ran = run("recover", "--apply", "--json", *SIZES, fixture.store)
    assert ran.code == (6 if name == "crash-torn" else 7)  # a unit names the torn record
    manifest = fixture.expected("recovered.json")
    assert run("dump", "--json", fixture.store).lines == [expected(message) for message in manifest["messages"]]
    assert run("verify", fixture.store).code == 0
    assert not (fixture.store / "abort").exists()
    rows = run("ls", "--json", fixture.store).json["queues"]
    before = fixture.expected("before.json")["queues"]
    assert {(row["topic"], row["queue_id"]) for row in rows} == {(queue["topic"], queue["queueId"]) for queue in before}


def test_recover_requires_an_option_before_it_drops_records(fixture_store: Any) -> None:
    """Damage to safe data needs a choice: skipped, or cut as RocketMQ does, with a copy kept."""
    fixture = fixture_store("plain", own=True)
    manifest = fixture.expected()["messages"]
    victim = manifest[300]
    _flip(
        fixture.store / "commitlog" / f"{victim['physicalOffset'] // 65536 * 65536:020d}", victim["physicalOffset"] % 65536 + 8
    )
    before = contents(fixture.store)
    for options in ([], ["--apply"]):
        ran = run("recover", "--json", *options, fixture.store)
        assert (ran.code, ran.json["applied"], ran.json["plan"]["needs_choice"]) == (1, False, True)
        assert "--skip-bad" in ran.talk
    assert {name: data for name, data in contents(fixture.store).items() if name in before} == before
    copy = fixture.folder / "copy"
    shutil.copytree(fixture.store, copy)
    ran = run("recover", "--apply", "--skip-bad", "--json", fixture.store)
    assert (ran.code, ran.json["plan"]["records_dropped"]) == (6, 1)
    left = {line["physical_offset"] for line in run("dump", "--json", fixture.store).lines}
    assert {message["physicalOffset"] for message in manifest if message is not victim} <= left
    assert run("verify", fixture.store).code == 0
    ran = run("recover", "--apply", "--truncate", "--no-backup", "--json", copy)
    assert (ran.code, ran.json["plan"]["records_dropped"]) == (6, len(manifest) - 300)
    assert len(run("dump", "--json", copy).lines) == 300
    assert run("verify", copy).code == 0


def test_the_plan_is_printed_as_a_table(fixture_store: Any) -> None:
    """Steps are a table, followed by how to execute them."""
    fixture = fixture_store("crash-torn")
    shown = run("recover", fixture.store).out
    assert "cut_log" in shown and "at 237596" in shown
    assert "--apply executes the plan" in shown


@pytest.mark.parametrize("name", ["lmq", "batchcq", "cqext", "broker-ext"])
def test_queues_of_other_kinds_survive(fixture_store: Any, name: str) -> None:
    """LMQs, batch queues and extended units survive recovery and rebuild."""
    fixture = fixture_store(name, own=True)
    folders = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
    before = {folder: contents(fixture.store / folder) for folder in folders}
    (fixture.store / "abort").touch()
    assert run("recover", "--apply", fixture.store).code == 7
    assert run("verify", fixture.store).code == 0
    assert {folder: contents(fixture.store / folder) for folder in folders} == before
    assert run("rebuild", "--apply", fixture.store).code == 0
    assert run("verify", fixture.store).code == 0
    for folder in folders:
        assert contents(fixture.store / folder).keys() == before[folder].keys()


def test_offsets_of_an_unreadable_file_are_an_error(tmp_path: Path) -> None:
    """An empty table would say that no group ever read."""
    store = unpack_case("offsets-and-backup-zero", tmp_path).folder
    shown = run("offsets", "show", store)
    assert shown.code != 0 and "consumerOffset.json" in shown.talk and "blank" in shown.talk
    assert run("verify", store).code == 1
    assert run("recover", store, "--apply").code == 7
    assert run("verify", store).code == 0 and run("offsets", "show", store).code == 0
