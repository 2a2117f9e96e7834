"""An interrupted export continues where it stopped and gives the result of an uninterrupted one."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool import export_parts
from tests.brokerstore.damage import Log
from tests.brokerstore.tool import run

UNLINK = os.unlink
FORMS = ["jsonl", "csv", "arrow", "parquet"]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make many blocks and batches of a small folder."""
    monkeypatch.setattr("brokerstore.tool.message_json.BLOCK_SIZE", 4096)
    monkeypatch.setattr("commitlog.columns.BATCH_ROWS", 40)
    monkeypatch.setattr("brokerstore.tool.backends.rabbitmq_export.BATCH_ROWS", 100)
    monkeypatch.setattr("brokerstore.tool.backends.rabbitmq_export.BLOCK_SIZE", 4096)


@pytest.fixture(params=["rocketmq", "rabbitmq"])
def folder(request: pytest.FixtureRequest, fixture_store: Any) -> Path:
    if request.param == "rocketmq":
        return Path(fixture_store("plain").store)
    return Path(fixture_store("rabbitmq-clean").folder.parent / "vhost")


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch, how: Callable[[], object]) -> None:
    """Interrupt the next export in the middle of its `count`-th write."""
    kept = export_parts.ExportParts.write
    left = [count]

    def write(self: export_parts.ExportParts, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            how()
        kept(self, *arguments)

    monkeypatch.setattr(export_parts.ExportParts, "write", write)


def content(path: Path, form: str) -> Any:
    """Return the bytes of text; rows, columns and number of batches of tables."""
    if form in ("jsonl", "csv"):
        return path.read_bytes()
    import pyarrow as pa
    import pyarrow.parquet as pq

    if form == "parquet":
        return pq.read_table(path), pq.ParquetFile(path).num_row_groups
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        return reader.read_all(), reader.num_record_batches


@pytest.mark.deep
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_again_and_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, number: signal.Signals
) -> None:
    """Signals arrive after 1, 2, 3, ... writes until the export is done; then only the file remains."""
    whole, out = tmp_path / "whole", tmp_path / "out" / "file"
    out.parent.mkdir()
    assert run("export", "--to", form, "-o", whole, folder).code == 0
    rounds = 0
    while not out.exists():
        rounds += 1
        with monkeypatch.context() as patch:
            interrupted_after(rounds, patch, lambda: signal.raise_signal(number))
            ran = run("export", "--to", form, "-o", out, folder)
        assert ran.code == (0 if out.exists() else 130)
        assert ("continu" in ran.talk) == (rounds > 1 or ran.code == 130)
        assert rounds < 200
    assert rounds > 3
    assert content(out, form) == content(whole, form)
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("form", FORMS)
def test_killed_between_two_parts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Sealed parts are kept; an unsealed one is written again."""
    whole, out = tmp_path / "whole", tmp_path / "out" / "file"
    out.parent.mkdir()
    assert run("export", "--to", form, "-o", whole, folder).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(export_parts.os, "unlink", lambda _path: None)  # as if the process were gone
        patch.setattr(export_parts, "SEAL_SIZE", 300)
        interrupted_after(60 if form in ("jsonl", "csv") else 9, patch, _fail)
        assert run("export", "--to", form, "-o", out, folder).code == 5
    note = json.loads(Path(f"{out}.part.json").read_text())
    assert note["parts"] >= 1
    Path(f"{out}.part-{note['parts'] + 1}").write_bytes(b"torn")
    ran = run("export", "--to", form, "-o", out, folder)
    assert (ran.code, f"continuing the interrupted export at {note['position']}" in ran.talk) == (0, True)
    assert content(out, form) == content(whole, form)
    assert list(out.parent.iterdir()) == [out]


def _fail() -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_keeps_only_sealed_parts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """The exit code is 5, the file does not exist, and the unsealed part is removed."""
    out = tmp_path / "file"
    with monkeypatch.context() as patch:
        interrupted_after(3, patch, _fail)
        ran = run("export", "--to", form, "-o", out, folder)
    assert (ran.code, list(tmp_path.iterdir())) == (5, [])
    assert "No space left" in ran.talk
    assert "df -h" in ran.talk


def test_problems_before_the_interruption_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code covers the damage of every run, and each problem is reported once."""
    log = Log(tmp_path)
    log.put(log.offsets[5], "magic", 1)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupted_after(12, patch, lambda: signal.raise_signal(signal.SIGINT))
        first = run("export", "-o", out, log.store)
    assert (first.code, first.talk.count("bad magic")) == (130, 1)
    ran = run("export", "-o", out, log.store)
    assert (ran.code, ran.talk.count("bad magic")) == (1, 0)
    found = [json.loads(line)["physical_offset"] for line in out.read_text().splitlines()]
    assert found == [offset for offset in log.offsets if offset != log.offsets[5]]


def test_another_export_does_not_continue_it(fixture_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another format, filter or folder, a broken progress file, or a missing part is wrong use."""
    store, out = fixture_store("plain", own=True).store, tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupted_after(30, patch, lambda: signal.raise_signal(signal.SIGINT))
        assert run("export", "-o", out, store).code == 130
    for arguments in (
        ["export", "--to", "csv", "-o", out, store],
        ["export", "--topic", "HotTopic", "-o", out, store],
        ["export", "-o", out, fixture_store("propcrc").store],
    ):
        ran = run(*arguments)
        assert (ran.code, "belongs to another export" in ran.talk) == (2, True)
    note = Path(f"{out}.part.json")
    kept = note.read_text()
    for text in ("", "[]", "{}", '{"position": 1}'):
        note.write_text(text)
        assert run("export", "-o", out, store).code == 2
    note.write_text(kept)
    shutil.move(f"{out}.part-1", f"{out}.elsewhere")
    assert run("export", "-o", out, store).code == 2
    shutil.move(f"{out}.elsewhere", f"{out}.part-1")
    files = sorted((store / "commitlog").iterdir())
    for file in files[:-1]:
        file.unlink()
    ran = run("export", "-o", out, store)
    assert (ran.code, "the log now begins at" in ran.talk) == (2, True)


@pytest.mark.parametrize("part_count", [1, 3])
def test_an_export_killed_after_the_final_rename_is_written_again(
    fixture_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_count: int
) -> None:
    """The progress file outlived the parts; the next run writes the file again."""
    store, out = fixture_store("plain").store, tmp_path / "out"
    expected = run("export", store).out
    monkeypatch.setattr(export_parts, "SEAL_SIZE", (1 << 30) if part_count == 1 else 300_000)
    with monkeypatch.context() as patch:
        patch.setattr(export_parts.os, "unlink", _fail_at_the_sidecar)
        assert run("export", "-o", out, store).code == 5
    assert Path(f"{out}.part.json").exists()
    for _ in range(2):
        assert run("export", "-o", out, store).code == 0
        assert out.read_text() == expected
        assert list(tmp_path.iterdir()) == [out]


def _fail_at_the_sidecar(path: str) -> None:
    if path.endswith(".json"):
        raise OSError(5, "Input/output error")
    UNLINK(path)


@pytest.mark.parametrize("form", ["csv", "arrow", "parquet"])
def test_a_rabbitmq_folder_in_every_form(fixture_store: Any, tmp_path: Path, form: str) -> None:
    """Every format has the messages of JSON Lines, which `test_rabbit_commands` compares with the server."""
    import csv
    from base64 import b64encode

    vhost = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    out = tmp_path / "out"
    csv.field_size_limit(1 << 24)
    assert run("export", "--to", form, "-o", out, vhost).code == 0
    expected = run("export", vhost).lines
    if form == "csv":
        with out.open(newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        for row in rows:
            for name in ("routing_keys", "properties", "persistent", "acked", "redelivered", "embedded"):
                row[name] = json.loads(row[name])
            row |= {name: int(row[name]) for name in ("seq_id", "expiry_us", "size", "offset")}
    else:
        rows = content(out, form)[0].to_pylist()
        for row in rows:
            row |= {"properties": json.loads(row["properties"]), "body_base64": b64encode(row.pop("body")).decode()}
    assert rows == expected
    assert run("export", "--to", form, "-o", out, "--queue", "q.mixed", "--to-offset", 16, vhost).code == 0
    assert run("export", "--to", form, "-o", out, "--queue", "nobody's", vhost).code in (0, 1)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_limit_includes_messages_exported_before_an_interruption(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The messages before the interruption count towards the limit and are reported."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run("export", "--to", form, "--limit", 500, "-o", whole, folder).code == 0
    with monkeypatch.context() as patch:
        interrupted_after(3, patch, lambda: signal.raise_signal(signal.SIGINT))
        assert run("export", "--to", form, "--limit", 500, "-o", out, folder).code == 130
    ran = run("export", "--to", form, "--limit", 500, "-o", out, folder)
    assert (ran.code, f"wrote 500 messages to {out}" in ran.talk) == (0, True)
    assert content(out, form)[0] == content(whole, form)[0]
    assert run("export", "--to", form, "--limit", 500, "-o", out, folder, "--json").json["messages"] == 500
