"""The peers' benchmark, once on few records: every row runs, and its page can be made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers import embedded, folders, growth, page
from bench.peers.own_store import OwnStore
from bench.peers.turns import Row, take_turns


def everything(_: str) -> bool:
    return True


@pytest.mark.parametrize("mode", ["async", "pool", "sync"])
def test_every_question_to_our_own_store(tmp_path: Path, mode: str) -> None:
    """Our store answers everything that the rows against RocketMQ measure."""
    store = OwnStore(tmp_path / "s", mode, mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=9000)
    for measured in (store.put("T", 400, 100), store.put("T", 400, 100, 4), store.put("T", 40, 100, is_timed=True)):
        assert measured["seconds"] >= measured["put_seconds"] > 0
    store.put_many("M", 1000, 100, 100)
    pytest.importorskip("pyarrow")
    store.append_columns("C", 1000, 100, 100)
    store.flush_all()
    for kind in ("raw", "decoded", "columns"):
        assert store.scan("M", kind)["count"] == 1000
    for what in ("message_at", "query_hit", "query_miss", "offset_by_time"):
        assert store.probe("T", what, 20, 400)["seconds"] > 0
    store.close()


@pytest.mark.parametrize("name", embedded.PEERS)
def test_every_embedded_peer_that_is_installed(tmp_path: Path, name: str) -> None:
    """A scan returns every record that was put."""
    try:
        store = embedded.PEERS[name](tmp_path / "peer")
    except ImportError as error:
        pytest.skip(str(error))
    store.put(0, b"k0", b"body")
    store.put_many([(number, b"k", b"body") for number in range(1, 10)])
    assert store.scan() == 10
    store.close()


@pytest.mark.deep
def test_growth_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows survive JSON and appear on the page."""
    monkeypatch.setattr(growth, "PER_FILE", 40)
    rows = list(growth.rows(tmp_path, 1, 0.01, everything))
    assert len(rows) == 6
    rows.append(take_turns(Row("p999", "rocketmq", "us", 1, less_is_better=True), lambda: 2.0, lambda: 4.0, 2))
    assert rows[-1].ratios == [2.0, 2.0]
    machine = {"cores": 2, "cpu": "c", "kernel": "k", "python": "p"}
    measured = [row.measured() | {"date": date, "load": 1.5} for date, row in enumerate(rows)]
    empty = "".join(
        f"<!-- rows: {name} -->\nbefore {name}\n<!-- end of rows -->\n" for name in ("rocketmq", "embedded", "live")
    )
    text = page.with_tables(empty, json.loads(json.dumps({"machine": machine, "rows": measured})))
    assert page.with_tables(text, {"machine": machine, "rows": []}) == text
    assert "before live" in text
    assert "before rocketmq" not in text
    assert "Measured 0 to 5 at a load of 1.5: 2 cores (c)," in text
    assert "| p999 | rocketmq | 2 | 4 | us | 2.00 |" in text


@pytest.mark.deep
def test_commands_on_whole_folders(tmp_path: Path) -> None:
    """Every command succeeds on both kinds of folder, cold and warm; each has a row for Parquet and one for memory."""
    pytest.importorskip("jinja2")
    rows = list(folders.rows(tmp_path, 1, 0.0001, everything))
    assert len(rows) == 2 * (len(folders.ROCKETMQ) + len(folders.RABBITMQ)) + 4
    assert all(row.ours[0] > 0 and row.theirs[0] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
