"""`export`: the same messages in every form, past damage, filtered, and never half a file."""

from __future__ import annotations

import csv
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.damage import Log
from tests.brokerstore.test_golden import expected
from tests.brokerstore.tool import run


def read_back(path: Path, form: str) -> list[dict[str, Any]]:
    """Rows in the tool's keys."""
    if form == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if form == "csv":
        with path.open(newline="") as file:
            return [_from_csv(row) for row in csv.DictReader(file)]
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path) if form == "parquet" else pa.ipc.open_file(path).read_all()
    return [_from_arrow(row) for row in table.to_pylist()]


_TEXTS = {"topic", "magic", "born_host", "store_host", "message_id", "tags", "body_base64"}


def _from_csv(row: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = dict(row)
    for name in made.keys() - _TEXTS - {"keys", "properties"}:
        made[name] = int(made[name])
    made |= {"tags": row["tags"] or None, "keys": row["keys"].split(), "properties": json.loads(row["properties"])}
    return made


def _from_arrow(row: dict[str, Any]) -> dict[str, Any]:
    from base64 import b64encode

    body = row.pop("body")
    return row | {"properties": dict(row["properties"]), "body_base64": b64encode(body).decode()}


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("name", ["plain", "propcrc"])
def test_every_message_field_by_field(fixture_store: Any, tmp_path: Path, form: str, name: str) -> None:
    """Against the manifest; the checksum's own property stays out of the columns."""
    fixture = fixture_store(name)
    out = tmp_path / "out"
    ran = run("export", "--to", form, "--out", out, fixture.store)
    assert (ran.code, ran.out, ran.talk) == (0, "", "")
    wanted = [expected(truth) for truth in fixture.truth()["messages"]]
    for message in wanted if form != "jsonl" else []:
        message["properties"].pop("__CRC32#", None)
    assert read_back(out, form) == wanted
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "arrow"])
def test_filters_and_an_empty_answer(fixture_store: Any, tmp_path: Path, form: str) -> None:
    """With the columns even where there is no row."""
    fixture = fixture_store("plain")
    out = tmp_path / "out"
    assert run("export", "--to", form, "--out", out, "--topic", "SpreadTopic", "--queue", 3, fixture.store).code == 0
    truth = [expected(one) for one in fixture.truth()["messages"] if (one["topic"], one["queueId"]) == ("SpreadTopic", 3)]
    assert read_back(out, form) == truth
    assert run("export", "--to", form, "--out", out, "--topic", "nobody's", fixture.store).code == 0
    assert read_back(out, form) == []


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_past_damage(tmp_path: Path, form: str) -> None:
    """All that is whole; the exit code tells."""
    log = Log(tmp_path)
    log.put(log.offsets[5], "magic", 1)
    out = tmp_path / "out"
    ran = run("export", "--to", form, "-o", out, log.store)
    assert ran.code == 1
    assert "bad magic" in ran.talk
    found = [row["physical_offset"] for row in read_back(out, form)]
    assert found == [offset for offset in log.offsets if offset != log.offsets[5]]


def test_to_stdout(fixture_store: Any) -> None:
    """JSON Lines as `dump` gives them, and CSV."""
    store = fixture_store("plain").store
    assert run("export", store).out == run("dump", "--json", store).out
    assert run("export", "--to", "csv", store).out.startswith("topic,queue_id,")


def test_a_file_that_cannot_be_made(fixture_store: Any, tmp_path: Path) -> None:
    """Exit code 5, and nothing stays."""
    ran = run("export", "-o", tmp_path / "no" / "folder", fixture_store("plain").store)
    assert ran.code == 5
    assert list(tmp_path.iterdir()) == []


def test_bodies_are_bytes(tmp_path: Path) -> None:
    """Whatever is in them."""
    log = Log(tmp_path)
    row = run("export", log.store).lines[0]
    assert b64decode(row["body_base64"]).startswith(b"000000..")
