"""Everything that `--json` prints conforms to the published schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run

jsonschema = pytest.importorskip("jsonschema")
STORES = ["plain", "propcrc", "lmq", "batchcq", "cqext", "broker-live", "broker-ext", "crash-torn"]
OF_A_STORE = {
    "info": ["info"], "ls": ["ls"], "stats": ["stats"], "stats by hour": ["stats", "--by", "hour"], "verify": ["verify"],
    "recover": ["recover"], "offsets": ["offsets", "show"], "top": ["top", "--interval", "0.1"],
    "transactions": ["transactions"],
}  # fmt: skip
OF_RABBIT = ["info", "ls", "stats", "verify", "recover"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("command", OF_A_STORE)
def test_output_for_a_store_conforms_to_the_schema(fixture_store: Any, store: str, command: str) -> None:
    """Clean stores and one with a torn tail conform."""
    ran = run(*OF_A_STORE[command], "--json", fixture_store(store).store)
    assert ran.code in (0, 1)
    check_schema(command.split()[0], ran.json)


@pytest.mark.parametrize("store", STORES)
def test_dumped_messages_conform_to_the_schema(fixture_store: Any, store: str) -> None:
    """Every line of a dump conforms."""
    lines = run("dump", "--json", fixture_store(store).store).lines
    assert lines
    for line in lines:
        check_schema("message", line)


@pytest.mark.parametrize("name", ["rabbitmq-clean", "rabbitmq-v2"])
def test_output_for_a_rabbit_folder_conforms_to_the_schema(fixture_store: Any, name: str) -> None:
    """Folders of both index versions conform."""
    folder = fixture_store(name).folder.parent / "vhost"
    for command in OF_RABBIT:
        check_schema("verify" if command == "verify" else f"rabbit_{command}", run(command, "--json", folder).json)
    for line in run("dump", "--json", folder).lines[:500]:
        check_schema("rabbit_message", line)


def test_output_of_the_other_commands_conforms_to_the_schema(fixture_store: Any, tmp_path: Path) -> None:
    """Commands on two folders, on none and on a new one conform."""
    store = fixture_store("plain").store
    check_schema("diff", run("diff", "--json", store, fixture_store("propcrc").store).json)
    check_schema("decode-id", run("decode-id", "--json", fixture_store("plain").expected()["messages"][0]["msgId"]).json)
    check_schema("doctor", run("doctor", "--json").json)
    check_schema("copy", run("copy", "--json", store, "--to", tmp_path / "copied", "--topic", "HotTopic").json)
    check_schema("export", run("export", "--json", store, "-o", tmp_path / "rows").json)
    check_schema("report", run("report", "--json", store, "-o", tmp_path / "page").json)
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=7\nenabledAppendPropCRC=true\nstoreType=defaultRocksDB\n")
    ran = run("info", "--json", "--config", tmp_path / "broker.conf", store)
    check_schema("info", ran.json)
    assert len(ran.json["differences"]) == 3
    (tmp_path / "rows.jsonl").write_text('{"topic": "T", "body": "x"}\n')
    check_schema("import", run("import", "--json", tmp_path / "rows.jsonl", "--to", tmp_path / "store", "--small").json)


def test_a_key_that_is_not_in_the_schema_is_seen() -> None:
    """The schema is closed, so it does not accept everything."""
    with pytest.raises(jsonschema.ValidationError):
        check_schema("decode-id", {"message_id": "x", "store_host": "y", "physical_offset": 1, "more": 2})
