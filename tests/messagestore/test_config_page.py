"""docs/formats/config.md agrees with the code and with files of a real broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config import config_table, consumer_offsets, delay_offsets, fast_json
from messagestore.broker.config.consumer_offsets import ConsumerOffsets, LmqConsumerOffsets
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.fast_json import loads
from messagestore.broker.config.subscription_groups import SubscriptionGroups
from messagestore.broker.config.topics import Topics
from storageio import REAL_DISK

from .support import BROKERS, OTHERS, TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "config.md").read_text()
KINDS: list[type[config_table.ConfigTable]] = [Topics, ConsumerOffsets, LmqConsumerOffsets, DelayOffsets, SubscriptionGroups]
NO_DEFAULT = {"topicName", "groupName"}


def table(name: str) -> dict[str, str]:
    """Return field and default of the table after the first mention of a file's table."""
    rows = PAGE.partition(f"`{name}` of ")[2].partition("    field ")[2].partition("\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^    (\w+) +(\S+|(?= ))", rows, re.MULTILINE))


def test_the_page_names_every_file() -> None:
    """The page has every file, and no other."""
    rows = PAGE.partition("    file ")[2].partition("\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"^    (\S+)", rows, re.MULTILINE))
    assert named == {*TABLES, *OTHERS, "lmqConsumerOffset.json", "timercheck"}
    assert {kind.file_name for kind in KINDS} == {*TABLES, "lmqConsumerOffset.json"}


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize(
    ("file", "name"), [("topics.json", "topicConfigTable"), ("subscriptionGroup.json", "subscriptionGroupTable")]
)
def test_the_page_has_every_field_that_a_broker_writes(fixture_store: Any, broker: str, file: str, name: str) -> None:
    """The order is the broker's, which is alphabetical."""
    document = fixture_store(broker).expected()["configFiles"][file]
    assert list(table(name)) == sorted(table(name))
    assert name in PAGE
    for entry in document[name].values():
        assert set(entry) == set(table(name))


@pytest.mark.parametrize(("kind", "key"), [(Topics, "topicConfigTable"), (SubscriptionGroups, "subscriptionGroupTable")])
def test_the_defaults_on_the_page_are_those_of_a_field_left_out(tmp_path: Path, kind: Any, key: str) -> None:
    """An empty entry that is put again has all of them."""
    (tmp_path / kind.file_name).write_text(f'{{"{key}":{{"x":{{}}}}}}')
    entries = kind(REAL_DISK, str(tmp_path))
    entries.put(entries.get("x"))
    entries.persist()
    written = loads((tmp_path / kind.file_name).read_bytes(), file="")[key]["x"]
    for field, default in table(key).items():
        assert written[field] == ("x" if field in NO_DEFAULT else loads(default.encode(), file=field)), field


def test_the_worked_example_is_in_the_fixture(fixture_store: Any) -> None:
    """The example is equal byte by byte."""
    block = PAGE.partition("`>` for a tab:\n\n")[2].partition("\n\n")[0]
    example = "\n".join(line.removeprefix("    ") for line in block.splitlines()).replace(">", "\t")
    assert (fixture_store("broker-live").store / "config" / "delayOffset.json").read_bytes() == example.encode()


def test_the_numbers_on_the_page_are_the_modules() -> None:
    """Limits and steps are those of the modules."""
    assert f"{fast_json.SIZE_MAX >> 20} MiB and {fast_json.DEPTH_MAX} levels" in PAGE
    assert f"every {consumer_offsets.VERSION_STEP}th time" in PAGE
    assert f"every {delay_offsets.VERSION_STEP}th" in PAGE
