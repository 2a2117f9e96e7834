"""The filters of dump, tail and export, compared with the real store's account of its messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.test_golden import expected
from tests.brokerstore.tool import run

Takes = Callable[[dict[str, Any]], bool]
MIDDLE_MS = 1_700_000_005_000  # between the first and the last of the fixture's messages
CASES: dict[str, tuple[list[str], Takes]] = {
    "topic": (["--topic", "HotTopic"], lambda one: one["topic"] == "HotTopic"),
    "queue": (["--queue", "2"], lambda one: one["queue_id"] == 2),
    "begin": (["--begin", str(MIDDLE_MS)], lambda one: one["store_timestamp_ms"] >= MIDDLE_MS),
    "end": (["--end", "2023-11-14T22:13:25Z"], lambda one: one["store_timestamp_ms"] <= MIDDLE_MS),
    "offsets": (["--from-offset", "3", "--to-offset", "5"], lambda one: 3 <= one["queue_offset"] <= 5),
    "tag": (["--tag", "TagA"], lambda one: one["tags"] == "TagA"),
    "key": (["--key", "hot-3"], lambda one: "hot-3" in one["keys"]),
    "property": (["--property", "TAGS=TagA"], lambda one: one["properties"].get("TAGS") == "TagA"),
    "all": (
        ["--topic", "HotTopic", "--tag", "TagA", "--from-offset", "4", "--begin", str(MIDDLE_MS)],
        lambda one: (
            (one["topic"], one["tags"]) == ("HotTopic", "TagA")
            and one["queue_offset"] >= 4
            and one["store_timestamp_ms"] >= MIDDLE_MS
        ),
    ),
}


def expected_of(fixture: Any, takes: Takes) -> list[dict[str, Any]]:
    return [made for message in fixture.expected()["messages"] if takes(made := expected(message))]


@pytest.mark.parametrize("case", CASES)
def test_dump_and_tail_show_only_matching_messages(fixture_store: Any, case: str) -> None:
    """They show every message that passes, and no other."""
    options, takes = CASES[case]
    fixture = fixture_store("plain")
    requested = expected_of(fixture, takes)
    assert 0 < len(requested) < 1093
    assert run("dump", "--json", *options, fixture.store).lines == requested
    assert run("tail", "--json", "-n", 5000, *options, fixture.store).lines == requested


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("case", CASES)
def test_export_writes_only_matching_messages(fixture_store: Any, tmp_path: Path, case: str, form: str) -> None:
    """Rows and columns give the same messages."""
    options, takes = CASES[case]
    fixture = fixture_store("plain")
    out = tmp_path / f"out.{form}"
    assert run("export", "--to", form, "-o", out, *options, fixture.store).code == 0
    if form == "jsonl":
        found = [json.loads(line)["physical_offset"] for line in out.read_text().splitlines()]
    else:
        import pyarrow.parquet as pq

        found = pq.read_table(out).column("physical_offset").to_pylist()
    assert found == [one["physical_offset"] for one in expected_of(fixture, takes)]


def test_a_rabbit_folder_by_queue_numbers_and_routing_key(fixture_store: Any) -> None:
    """A filter for a field that its messages lack is wrong use."""
    folder = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    everything = run("dump", "--json", folder).lines
    requested = [one for one in everything if one["queue"] == everything[0]["queue"] and 2 <= one["seq_id"] <= 4]
    found = run("dump", "--json", "--queue", everything[0]["queue"], "--from-offset", 2, "--to-offset", 4, folder)
    assert found.lines == requested
    key = everything[-1]["routing_keys"][0]
    assert run("dump", "--json", "--key", key, folder).lines == [one for one in everything if key in one["routing_keys"]]
    assert run("dump", "--tag", "x", folder).code == 2


def test_a_property_without_a_value_is_wrong_use(fixture_store: Any) -> None:
    """It would silently match nothing."""
    for given in ("TAGS", "=TagA"):  # no value, no name
        assert run("dump", "--property", given, fixture_store("plain").store).code == 2
