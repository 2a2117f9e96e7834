"""Stores of brokers of different versions: what is written for each, and what RocksDB has of newer ones."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from commitlog import PutStatus, StoredMessage
from commitlog.walk import LogFiles
from messagestore import MessageStore, StoreConfig
from messagestore.broker_versions import BROKER_VERSIONS, BY_NAME, shown_version
from messagestore.checkpoint import Checkpoint, read_checkpoint
from messagestore.folder import FolderFacts
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.rocksdb.database import open_database
from messagestore.rocksdb.queues import UNITS
from storageio import REAL_DISK, InvalidMessage, InvalidSetting, UnsupportedFormat
from storageio.testing import CountingDisk
from tests.archives import unpack
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import records
from tests.stores import problem_kinds, small_config

YEARS = Path(__file__).parents[1] / "data" / "years"
PAGE = Path(__file__).parents[2] / "docs" / "formats" / "store-folder.md"
ORDINARY = ["rocket540", "rocket550", "rocket551", "lite551", "timersnap551"]
IN_ROCKSDB = ["rocksdbstore551", "rocksqueues551", "rocksqueues533-lmq", "combined551"]
OF_CLIENT = {"MIN_OFFSET", "MAX_OFFSET", "CLUSTER"}
PENDING = {"rocksdbstore551": 4, "rocket551": 4, "timersnap551": 4, "rocksqueues551": 4}  # by the manifest: due after its end


def folder_of(name: str, root: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack a broker's folder; return it with what the broker delivered."""
    unpack(YEARS / f"{name}.tar.xz", root)
    return root / name / "store", json.loads((root / name / "manifest.json").read_text())


def items_of(store: Path) -> int:
    """Return the number of items in all index files."""
    return sum(int.from_bytes(path.read_bytes()[36:40], "big") - 1 for path in (store / "index").iterdir())


# What is written for each version


def test_the_page_has_the_table_of_versions() -> None:
    """The order of the columns is that of the fields; no test with a real broker failed in its last run."""
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (.+) \| \d+ passed, \d{4}-\d\d-\d\d \|$", PAGE.read_text(), re.MULTILINE)
    assert [(name, *(cell == "yes" for cell in cells.split(" | "))) for name, cells in rows] == [
        (one.name, one.has_long_topics, one.has_tag_items, one.has_rocksdb_store, one.has_logics_offset)
        for one in BROKER_VERSIONS
    ]


def test_version_that_a_folder_shows() -> None:
    """The log offset in the checkpoint came one version after the database."""
    assert shown_version(has_rocksdb_store=False, has_logics_offset=False).name == "4.9.7"
    assert shown_version(has_rocksdb_store=True, has_logics_offset=False).name == "5.4.0"
    assert shown_version(has_rocksdb_store=False, has_logics_offset=True).name == "5.5.0"


@pytest.mark.parametrize("version", [*BY_NAME, None])
def test_new_store_is_written_for_its_version(tmp_path: Path, version: str | None) -> None:
    """One key and one tag give two items or one; the version is kept, and counts for a rebuild."""
    expected = BY_NAME[version or "5.3.3"]
    with MessageStore.open(tmp_path, "a", small_config(broker_version=version)) as store:
        store.put("orders", b"x", queue_id=0, keys="k", tags="t")
        offset = store.put("orders", b"y", queue_id=0, keys="k", tags="t").physical_offset
    assert items_of(tmp_path) == (4 if expected.has_tag_items else 2)
    found = read_checkpoint(REAL_DISK, str(tmp_path / "checkpoint")).values.logics_physical_offset
    assert found == (offset if expected.has_logics_offset else 0)
    rebuild_store(str(tmp_path))
    assert items_of(tmp_path) == (4 if expected.has_tag_items else 2)
    assert FolderFacts(str(tmp_path)).broker_version() == expected
    assert problem_kinds(tmp_path) == set()


def test_query_by_tag_finds_what_was_put_with_it(tmp_path: Path) -> None:
    """The newest ones come oldest first; another tag with the same hash, and the same word as a key, are not among them."""
    config = small_config(broker_version="5.5.1")
    with MessageStore.open(tmp_path, "a", config) as store:
        puts = [store.put("orders", b"%d" % number, tags=("Aa", "BB")[number % 2]).physical_offset for number in range(10)]
        store.put("orders", b"key", keys="T#Aa")
        store.put("others", b"other", tags="Aa")
        assert [one.physical_offset for one in store.query_tag("orders", "Aa")] == puts[::2]
        assert [one.physical_offset for one in store.query_tag("orders", "BB", max_count=2)] == puts[1::2][-2:]
        assert [one.body for one in store.query("orders", "T#Aa")] == [b"key"]
        assert [one.physical_offset for one in MessageStore.open(tmp_path, "r").query_tag("orders", "Aa")] == puts[::2]
    assert run("query", tmp_path, "orders", "--tag", "Aa").out.count("orders/") == 5


def test_query_by_tag_of_a_killed_writer_searches_the_log(tmp_path: Path) -> None:
    """Records behind the index are compared by their tags."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    with MessageStore.open(store, "a", small_config(broker_version="5.4.0")) as opened:
        expected = [opened.put("orders", b"x", keys="k", tags="t").physical_offset]
    index = {path.name: path.read_bytes() for path in (store / "index").iterdir()}
    with MessageStore.open(store, "a") as opened:
        expected.append(opened.put("orders", b"y", keys="k", tags="t").physical_offset)
        opened.put("orders", b"y", keys="k", tags="other")
        shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.socket"))
    for name, data in index.items():
        (copy / "index" / name).write_bytes(data)
    with MessageStore.open(copy, "r") as killed:
        assert [one.physical_offset for one in killed.query_tag("orders", "t")] == expected


def test_query_by_tag_is_refused_for_an_older_version(tmp_path: Path) -> None:
    """An answer without any message would look like a complete one."""
    with MessageStore.open(tmp_path, "a", small_config()) as store:
        store.put("orders", b"x", tags="t")
        with pytest.raises(InvalidMessage, match=r"RocketMQ 5\.3\.3, and 5\.4\.0 is needed"):
            store.query_tag("orders", "t")
    assert run("query", tmp_path, "orders").code == run("query", tmp_path, "orders", "k", "--tag", "t").code == 2


def test_long_topics_are_refused_for_a_broker_that_cannot_read_them(tmp_path: Path) -> None:
    """RocketMQ 4 ends the log at the first record of version 2."""
    topic = "%RETRY%" + "g" * 150
    with MessageStore.open(tmp_path / "old", "a", small_config(broker_version="4.9.7")) as store:
        result = store.put_raw(topic, b"x") if hasattr(store, "put_raw") else store.engine.admission.problem(topic)
        assert "at most 127" in str(result)
        with pytest.raises(InvalidMessage, match="before RocketMQ 5"):
            store.create_topic(topic)
    with MessageStore.open(tmp_path / "new", "a", small_config()) as store:
        assert store.put(topic, b"x").status is PutStatus.PUT_OK


def test_unknown_version_is_an_invalid_setting() -> None:
    """The error lists the versions that are known."""
    with pytest.raises(InvalidSetting, match=r"broker_version is '5\.2\.0'; expected one of 4\.9\.7, 5\.3\.3"):
        StoreConfig(broker_version="5.2.0")


# Folders of brokers


@pytest.mark.parametrize("name", [*ORDINARY, "rocket497", "dledger-mixed", "dledger497", "dledger551", *IN_ROCKSDB])
def test_every_message_is_the_one_that_the_broker_delivered(tmp_path: Path, name: str) -> None:
    """The decoded body, tags, keys and properties are equal; a client adds some properties of its own."""
    store, manifest = folder_of(name, tmp_path)
    found = {line["physical_offset"]: line for line in run("dump", store, "--json", "--decode").lines}
    for one in manifest["messages"]:
        line = found[one["commitLogOffset"]]
        body, properties = base64.b64decode(line["body_base64"]), dict(line["properties"])
        assert (line["topic"], line["queue_id"], line["queue_offset"]) == (one["topic"], one["queueId"], one["queueOffset"])
        assert (len(body), zlib.crc32(body)) == (one["bodyLength"], one["bodyCrc32"])
        assert (line["tags"], " ".join(line["keys"])) == (one.get("tags"), one.get("keys") or "")
        assert properties == {key: text for key, text in one["properties"].items() if key in properties or key not in OF_CLIENT}
    assert len(manifest["messages"]) > 50


@pytest.mark.parametrize("name", ORDINARY)
def test_folder_with_an_empty_database_is_an_ordinary_store(tmp_path: Path, name: str) -> None:
    """It is verified, written to, recovered and rebuilt; a rebuilt index has the items that the broker wrote."""
    store, _ = folder_of(name, tmp_path)
    items = items_of(store)
    assert problem_kinds(store) == set()
    rebuild_store(str(store))
    assert items_of(store) == items
    with MessageStore.open(store, "a") as opened:
        opened.put("MixPlain", b"ours", keys="ours", tags="ours")
        assert len(opened.query_tag("MixPlain", "ours")) == 1
    assert items_of(store) == items + 2
    Recovery(str(store)).apply()
    assert problem_kinds(store) == set()
    assert (store / "rocksdbstore" / "CURRENT").exists()


def test_index_is_not_demanded_of_a_broker_that_writes_none(tmp_path: Path) -> None:
    """indexFileWriteEnable=false leaves no folder; nothing creates one, and a query walks the log."""
    store, manifest = folder_of("rocket551", tmp_path)
    shutil.rmtree(store / "index")
    assert problem_kinds(store) == set()
    with MessageStore.open(store, "a") as opened:
        opened.put("MixPlain", b"ours", keys="ours")
    Recovery(str(store)).apply()
    assert problem_kinds(store) == set()
    assert not (store / "index").exists()
    (key, offsets) = next((key, offsets) for key, offsets in manifest["queries"].items() if key.startswith("MixPlain "))
    lines = run("query", store, *key.split(" "), "--json").out.splitlines()
    assert [json.loads(line)["physical_offset"] for line in lines] == offsets


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_cut_lowers_the_log_offset_in_the_checkpoint(tmp_path: Path, is_opened: bool) -> None:
    """A 5.5 broker with enableAcceleratedRecovery would not start with one behind the log."""
    with MessageStore.open(tmp_path, "a", small_config(broker_version="5.5.1")) as store:
        offsets = [store.put("orders", b"x" * 50, queue_id=0).physical_offset for _ in range(20)]
    path, at = records(tmp_path)[-1]
    with path.open("r+b") as file:
        file.seek(at + 8)
        file.write(b"\xee" * 40)
    assert problem_kinds(tmp_path) >= {"checkpoint_ahead"}
    if is_opened:
        (tmp_path / "abort").write_text("1")
        (tmp_path / "brokerstore" / "clean.json").unlink()
        with Checkpoint(REAL_DISK, str(tmp_path), writable=True) as checkpoint:
            checkpoint.physic_msg_timestamp_ms = checkpoint.logics_msg_timestamp_ms = 1
            checkpoint.flush()
        MessageStore.open(tmp_path, "a").close()
    else:
        Recovery(str(tmp_path), Choice.TRUNCATE, force=True).apply()
    found = read_checkpoint(REAL_DISK, str(tmp_path / "checkpoint")).values.logics_physical_offset
    assert found == offsets[-2]


def test_a_cut_of_all_but_the_first_record_forgets_the_time_too(tmp_path: Path) -> None:
    """0 is no offset for a broker, which then must not find a time either."""
    checkpoint = Checkpoint(CountingDisk(), str(tmp_path), writable=True)
    checkpoint.physic_msg_timestamp_ms, checkpoint.logics_physical_offset = 5, 7
    checkpoint.lower_to(7)
    assert checkpoint.values[::5] == (5, 7)
    checkpoint.lower_to(-1)
    assert checkpoint.values[::5] == (0, 0)
    checkpoint.close()


# RocksDB


@pytest.mark.parametrize("name", PENDING)
def test_pending_timers_are_counted_wherever_they_are(tmp_path: Path, name: str) -> None:
    """The broker delivered four of its eight timers."""
    pytest.importorskip("rocksdict")
    store, _ = folder_of(name, tmp_path)
    assert json.loads(run("info", store, "--json").out)["timers"]["pending"] == PENDING[name]
    (row,) = json.loads(run("ls", store, "--json").out)["timers"]
    assert (row["topic"], row["timers"]) == ("MixTimer", PENDING[name])


def test_timers_that_rocksdb_delivered_are_not_copied_as_pending(tmp_path: Path) -> None:
    """Their copies have no TIMER_DEQUEUE_MS."""
    store, _ = folder_of("rocksdbstore551", tmp_path)
    assert run("copy", store, "--to", tmp_path / "new", "--all").code == 0
    assert json.loads(run("info", tmp_path / "new", "--json").out)["timers"]["pending"] == 4


@pytest.mark.parametrize("name", ["rocksdbstore551", "rocksqueues551", "combined551"])
def test_keys_and_tags_are_found_in_folders_with_rocksdb(tmp_path: Path, name: str) -> None:
    """The answers are those of the broker, from index files and, without these, from the rows."""
    pytest.importorskip("rocksdict")
    store, manifest = folder_of(name, tmp_path)
    for _ in range(2):
        for key, offsets in manifest["queries"].items():
            found = run("query", store, *key.split(" ", 1), "--json").out.splitlines()
            assert [json.loads(line)["physical_offset"] for line in found] == sorted(offsets), key
        tagged = [one for one in LogFiles(REAL_DISK, [str(store / "commitlog")]).messages() if one.topic == "MixPlain"]  # type: ignore[union-attr]
        found = run("query", store, "MixPlain", "--tag", "Tag1", "--json").out.splitlines()
        expected = [one.physical_offset for one in tagged if one.tags == "Tag1"]  # type: ignore[union-attr]
        assert [json.loads(line)["physical_offset"] for line in found] == expected
        shutil.rmtree(store / "index", ignore_errors=True)


@pytest.mark.parametrize("name", ["rocksdbstore551", "rocksqueues551", "combined551"])
def test_rocksdb_folder_is_intact_and_writers_refuse_it_by_name(tmp_path: Path, name: str) -> None:
    """Only a broker writes to it; the advice names the way to a store that can be written to."""
    pytest.importorskip("rocksdict")
    store, _ = folder_of(name, tmp_path)
    assert run("verify", store).code == 0
    with pytest.raises(UnsupportedFormat):
        MessageStore.open(store, "a")
    if name != "rocksqueues551":
        assert "brokerstore copy" in run("put", store, "MixPlain", "x").talk


def test_index_rows_without_a_record_and_records_without_rows_are_reported(tmp_path: Path) -> None:
    """A record whose key was changed lacks a row, and one row is left over."""
    pytest.importorskip("rocksdict")
    store, _ = folder_of("rocksdbstore551", tmp_path)
    (log,) = (store / "commitlog").glob("0*")
    log.write_bytes(log.read_bytes().replace(b"KEYS\x01key-3 ", b"KEYS\x01key-X ", 1))
    assert "rocksdb_index" in {one["kind"] for one in json.loads(run("verify", store, "--json").out)["problems"]}


def test_lmqs_of_combined_queues_are_listed_from_rocksdb(tmp_path: Path) -> None:
    """They have no folder."""
    pytest.importorskip("rocksdict")
    store, _ = folder_of("combined551", tmp_path)
    rows = json.loads(run("ls", store, "--json").out)["queues"]
    assert {row["topic"]: row["messages"] for row in rows if row["topic"].startswith("%LMQ%")} == {
        "%LMQ%a": 6, "%LMQ%b": 12, "%LMQ%$MixLite$chat0": 4, "%LMQ%$MixLite$chat1": 4, "%LMQ%$MixLite$chat2": 4,
    }  # fmt: skip


def test_configuration_in_one_database_is_read(tmp_path: Path) -> None:
    """Topics, groups and offsets are those of the broker."""
    pytest.importorskip("rocksdict")
    store, _ = folder_of("rocksqueues551", tmp_path)
    assert "MixLite" in {one["topic"] for one in json.loads(run("ls", store, "--json").out)["topics"]}
    rows = json.loads(run("offsets", "show", store, "--json", "--group", "G_mix").out)["offsets"]
    assert [(row["queue_id"], row["offset"], row["max_offset"]) for row in rows] == [(0, 10, 10), (1, 10, 10), (2, 10, 10)]


def test_killed_queues_in_rocksdb_are_one_finding(tmp_path: Path) -> None:
    """The write-ahead log was never written; the log has everything, and a rebuild repairs it."""
    pytest.importorskip("rocksdict")
    store, manifest = folder_of("rocksqueues551", tmp_path)
    with open_database(str(store / "consumequeue")) as database:
        assert list(database.rows(UNITS))
    empty, _ = folder_of("rocket551", tmp_path)
    shutil.rmtree(store / "consumequeue")
    shutil.copytree(empty / "rocksdbstore", store / "consumequeue")
    problems = json.loads(run("verify", store, "--json").out)["problems"]
    assert [one["kind"] for one in problems] == ["rocksdb_unit"]
    assert "the log is intact" in str(problems[0]["found"])
    assert run("rebuild", store, "consumequeue", "--apply").code == 0
    assert run("verify", store).code == 0
    assert len(manifest["messages"]) > 100


@pytest.mark.parametrize("name", ["rocket497", "rocket551", "rocksdbstore551", "rocksqueues551", "combined551", "dledger551"])
def test_undecided_transactions_are_those_that_no_op_record_names(tmp_path: Path, name: str) -> None:
    """Each third of nine prepared messages was left undecided; their queue is in files or in RocksDB."""
    pytest.importorskip("rocksdict")
    store, _ = folder_of(name, tmp_path)
    named: set[int] = set()
    halves = {}
    for one in LogFiles(REAL_DISK, FolderFacts(str(store), REAL_DISK).log_folders).messages():
        assert isinstance(one, StoredMessage)
        if one.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC":
            named |= {int(part) for part in one.body.split(b",") if part}
        elif one.topic == "RMQ_SYS_TRANS_HALF_TOPIC":
            halves[one.queue_offset] = one.physical_offset
    rows = run("transactions", store, "--json").json["transactions"]
    assert [(row["half_offset"], row["physical_offset"]) for row in rows] == sorted(
        (offset, at) for offset, at in halves.items() if offset not in named
    )
    assert len(rows) == 3
    assert {row["topic"] for row in rows} == {"MixTran"}


def test_without_the_package_rows_in_rocksdb_are_named_and_never_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """What needs them is missing, refused or null; everything else is shown, and the folder has no problem."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    store, _ = folder_of("rocksdbstore551", tmp_path)
    missing = "rocksdict is not installed: pip install 'brokerstore[rocksdb]'"
    ran = run("info", store, "--json")
    assert (ran.code, ran.json["timers"], ran.json["problems"]) == (0, None, [])
    assert f"no timers: {missing}" in ran.talk and f"no transactions: {missing}" in ran.talk
    for command in ("ls", "stats", "verify"):
        ran = run(command, store, "--json")
        assert (ran.code, "timers" in ran.json) == (0, False)
        assert f"no timers: {missing}" in ran.talk
    assert "rocksdbstore: not read" in run("verify", store).out
    ran = run("transactions", store)
    assert (ran.code, ran.out) == (1, "") and missing in ran.talk
    ran = run("copy", store, "--to", tmp_path / "new", "--topic", "MixPlain", "--json")
    check_schema("copy", ran.json)
    assert set(ran.json["not_copied"].values()) == {None} and "not counted: what waits for these topics" in ran.talk
    assert run("copy", store, "--to", tmp_path / "all", "--all").code == 0


def test_open_transactions_in_rocksdb_are_listed_with_their_checks(tmp_path: Path) -> None:
    """The row has the number of checks; one whose record left the log is skipped."""
    rocksdict = pytest.importorskip("rocksdict")
    store, _ = folder_of("rocksdbstore551", tmp_path)
    halves = run("transactions", store, "--json").json["transactions"]
    path = str(store / "rocksdbstore")
    families = {name: rocksdict.Options(raw_mode=True) for name in rocksdict.Rdict.list_cf(path)}
    families.setdefault("trans", rocksdict.Options(raw_mode=True))
    options = rocksdict.Options(raw_mode=True)
    options.create_missing_column_families(True)
    database = rocksdict.Rdict(path, options, column_families=families)
    table = database.get_column_family("trans")
    one = halves[0]["physical_offset"]
    for offset, checks in ((one, 7), (1 << 40, 1)):
        table[offset.to_bytes(8, "big") + b"@MixTran@id"] = checks.to_bytes(4, "big") + (500).to_bytes(4, "big")
    table.flush()
    database.close()
    rows = run("transactions", store, "--json").json["transactions"]
    assert [(row["physical_offset"], row["checks"]) for row in rows] == [(one, 7)] + [
        (row["physical_offset"], 0) for row in halves[1:]
    ]
