"""`export`: the same messages in every format, past damage, filtered, and never a partial file."""

from __future__ import annotations

import csv
import json
import os
import stat
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.damage import Log
from tests.brokerstore.test_golden import expected
from tests.brokerstore.tool import run


def read_back(path: Path, form: str) -> list[dict[str, Any]]:
    """Return the rows of an exported file with the tool's keys."""
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
    """They equal the manifest; the checksum property is no column."""
    fixture = fixture_store(name)
    out = tmp_path / "out"
    ran = run("export", "--to", form, "--out", out, fixture.store)
    assert (ran.code, ran.out) == (0, "")
    assert ran.talk.startswith(f"brokerstore: wrote {len(fixture.expected()['messages'])} messages to {out}, ")
    requested = [expected(manifest) for manifest in fixture.expected()["messages"]]
    for message in requested if form != "jsonl" else []:
        message["properties"].pop("__CRC32#", None)
    assert read_back(out, form) == requested
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "arrow"])
def test_filters_and_an_empty_answer(fixture_store: Any, tmp_path: Path, form: str) -> None:
    """The columns exist even without a row."""
    fixture = fixture_store("plain")
    out = tmp_path / "out"
    assert run("export", "--to", form, "--out", out, "--topic", "SpreadTopic", "--queue", 3, fixture.store).code == 0
    manifest = [expected(one) for one in fixture.expected()["messages"] if (one["topic"], one["queueId"]) == ("SpreadTopic", 3)]
    assert read_back(out, form) == manifest
    assert run("export", "--to", form, "--out", out, "--topic", "nobody's", fixture.store).code == 0
    assert read_back(out, form) == []


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_an_export_continues_after_damage(tmp_path: Path, form: str) -> None:
    """Every intact message is exported, and the exit code is 1."""
    log = Log(tmp_path)
    log.put(log.offsets[5], "magic", 1)
    out = tmp_path / "out"
    ran = run("export", "--to", form, "-o", out, log.store)
    assert ran.code == 1
    assert "bad magic" in ran.talk
    found = [row["physical_offset"] for row in read_back(out, form)]
    assert found == [offset for offset in log.offsets if offset != log.offsets[5]]


def test_to_stdout(fixture_store: Any) -> None:
    """JSON Lines equal those of `dump`; CSV works too."""
    store = fixture_store("plain").store
    assert run("export", store).out == run("dump", "--json", store).out
    assert run("export", "--to", "csv", store).out.startswith("topic,queue_id,")


def test_an_export_into_a_missing_folder_leaves_no_file(fixture_store: Any, tmp_path: Path) -> None:
    """The exit code is 5, and nothing remains."""
    ran = run("export", "-o", tmp_path / "no" / "folder", fixture_store("plain").store)
    assert ran.code == 5
    assert list(tmp_path.iterdir()) == []


def test_bodies_are_bytes(tmp_path: Path) -> None:
    """Bodies keep any bytes."""
    log = Log(tmp_path)
    row = run("export", log.store).lines[0]
    assert b64decode(row["body_base64"]).startswith(b"000000..")


def vhost_of(fixture_store: Any) -> Path:
    return Path(fixture_store("rabbitmq-clean").folder.parent / "vhost")


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("kind", ["rocketmq", "rabbitmq"])
@pytest.mark.parametrize("limit", [0, 1, 700, 10**6])
def test_limit_applies_to_every_export_format(fixture_store: Any, tmp_path: Path, form: str, kind: str, limit: int) -> None:
    """--limit works as for `dump` in every format, and the number of messages is reported."""
    folder = fixture_store("plain").store if kind == "rocketmq" else vhost_of(fixture_store)
    chosen = ["--topic", "HotTopic"] if kind == "rocketmq" else ["--key", "q.mixed"]
    requested = run("dump", "--json", *chosen, "--limit", limit, folder).lines
    out = tmp_path / f"rows.{form}"
    ran = run("export", "--to", form, *chosen, "--limit", limit, "-o", out, folder)
    assert (ran.code, f"brokerstore: wrote {len(requested)} message" in ran.talk) == (0, True)
    assert run("export", "--to", form, *chosen, "--limit", limit, "-o", out, folder, "-q").talk == ""
    if form == "jsonl":
        assert [json.loads(line) for line in out.read_text().splitlines()] == requested
        assert run("export", *chosen, "--limit", limit, folder).lines == requested
    elif form == "parquet":
        assert pytest.importorskip("pyarrow.parquet").read_table(out).num_rows == len(requested)
    answer = run("export", "--to", form, *chosen, "--limit", limit, "-o", out, folder, "--json")
    expected = {"file": str(out), "form": form, "messages": len(requested), "size_bytes": out.stat().st_size, "problems": 0}
    assert (answer.json, answer.talk) == (expected, "")


@pytest.mark.parametrize("command", ["export", "report"])
def test_json_without_out_is_refused(fixture_store: Any, tmp_path: Path, command: str) -> None:
    """A program could not separate them, so --json needs --out."""
    ran = run(command, "--json", fixture_store("plain").store)
    assert (ran.code, ran.out, "--json needs --out" in ran.talk) == (2, "", True)


@pytest.mark.parametrize("line", ["export STORE -o OUT", "export STORE --to csv -o OUT", "report STORE -o OUT", "bench OUT"])
def test_an_output_path_that_cannot_be_written_is_an_error(fixture_store: Any, line: str) -> None:
    """The error names the file."""
    words = {"STORE": str(fixture_store("plain").store), "OUT": "/proc/nowhere/out"}
    ran = run(*(words.get(word, word) for word in line.split()))
    assert (ran.code, ran.out) == (5, "")
    assert "/proc/nowhere" in ran.talk
    assert "internal error" not in ran.talk


@pytest.mark.usefixtures("undrawn")
def test_an_exported_page_is_reported_on_stderr_or_as_json(fixture_store: Any, tmp_path: Path) -> None:
    """The file is reported on stderr, or as JSON on stdout."""
    out = tmp_path / "page.html"
    ran = run("report", "-o", out, fixture_store("plain").store)
    assert (ran.out, f"wrote {out}" in ran.talk) == ("", True)
    ran = run("report", "-o", out, "--json", fixture_store("plain").store)
    assert (ran.json, ran.talk) == ({"file": str(out), "size_bytes": out.stat().st_size, "problems": 0}, "")


def test_an_output_that_is_no_file_is_refused(fixture_store: Any, tmp_path: Path) -> None:
    """A finished file is renamed into place, and as root a rename replaces /dev/null for every program of the machine."""
    store = fixture_store("plain").store
    device, folder, alias = tmp_path / "device", tmp_path / "folder", tmp_path / "alias"
    os.mkfifo(device)
    folder.mkdir()
    alias.symlink_to(device)
    for target in (device, folder, alias):
        for command in (("export", "-q"), ("export", "-q", "--to", "parquet"), ("report",)):
            ran = run(*command, "--out", target, store)
            assert ran.code == 2
            assert f"{target}: not a regular file; expected the name of a file to write" in ran.talk
    assert stat.S_ISFIFO(device.lstat().st_mode)
    assert alias.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alias", "device", "folder"]


def test_a_symlink_to_a_file_stays_one(fixture_store: Any, tmp_path: Path) -> None:
    """The file that it names is written."""
    real, alias = tmp_path / "real.jsonl", tmp_path / "alias.jsonl"
    alias.symlink_to(real)
    assert run("export", "-q", "--out", alias, fixture_store("plain").store).code == 0
    assert alias.is_symlink()
    assert real.stat().st_size > 0
