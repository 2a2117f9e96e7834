"""docs/formats/broker-topics.md agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from commitlog import topic_names as topics
from messagestore import property_names as names
from messagestore.config import DELAY_LEVELS, StoreConfig

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "broker-topics.md").read_text()


def rows(head: str) -> set[str]:
    return set(
        re.findall(r"^    (\S+)", PAGE.partition(f"    {head} ")[2].partition("\n")[2].partition("\n\n")[0], re.MULTILINE)
    )


def test_page_lists_every_topic() -> None:
    """The topics have the names that the code has."""
    prefixes = {topics.RETRY_PREFIX + "group", topics.DEAD_PREFIX + "group", topics.LMQ_PREFIX + "name"}
    assert rows("topic") == {topics.HALF_TOPIC, topics.OP_TOPIC, topics.GIVEN_UP_TOPIC, topics.SCHEDULE_TOPIC} | prefixes


def test_page_lists_every_property() -> None:
    """The page has every property, and no other."""
    of_topics = {topics.HALF_TOPIC, topics.OP_TOPIC, topics.GIVEN_UP_TOPIC, topics.SCHEDULE_TOPIC, names.TRANSACTION_GROUP}
    known = {value for value in vars(names).values() if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]{4,}", value)}
    assert rows("property") == {name for name in known - of_topics if not name.startswith("messagestore")} - {"names"}


def test_numbers_on_the_page_equal_the_configuration() -> None:
    """Levels, checks and the limit on LMQs are those of the configuration."""
    text = " ".join(PAGE.split())
    config = StoreConfig()
    assert DELAY_LEVELS in text
    assert f"After {config.transaction_check_max} checks" in text
    assert f"limit of {config.max_lmq_consume_queue_num:,} queues" in text
    assert names.TRANSACTION_GROUP in text
