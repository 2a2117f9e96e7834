"""Find messages by their tags through the key index, which brokers since RocketMQ 5.4 write."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from storageio import InvalidMessage

from .beside_writer import beside_writer
from .index_coverage import TAG_ITEM, has_tags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commitlog import StoredMessage

    from ..engine import Engine

ITEM_SLACK_MS = 1000  # item times are cut to seconds


def query_tag(engine: Engine, topic: str, tags: str, times_ms: tuple[int, int], max_count: int) -> list[StoredMessage]:
    """Return the newest messages of a topic with these tags, oldest first; see `MessageStore.query_tag`."""
    if max_count < 0:
        raise ValueError(f"max_count {max_count}: 0 or more")
    engine.settle()
    if engine.index is None or not engine.broker_version.has_tag_items:
        version = engine.broker_version.name
        raise InvalidMessage(
            f"{engine.paths.root}: the index has no tags: it is one of RocketMQ {version}, and 5.4.0 is needed"
        )
    found = beside_writer(engine.disk, engine.paths.root, lambda: list(_newest(engine, topic, tags, times_ms, max_count)))
    return engine.deleted.kept(topic, found[::-1])


def _newest(
    engine: Engine, topic: str, tags: str, times_ms: tuple[int, int], max_count: int
) -> Iterator[StoredMessage]:  # fmt: skip
    assert engine.index is not None
    low, high = times_ms
    fresh = sorted(engine.unindexed.tagged(topic, tags), reverse=True)
    hits = engine.index.hits(topic, TAG_ITEM + tags, max(0, low - ITEM_SLACK_MS), high)
    offsets = dict.fromkeys((*fresh, *hits))
    messages = (engine.log.message_at(offset) for offset in offsets)
    matching = (
        one for one in messages if one is not None and has_tags(one, topic, tags) and low <= one.store_timestamp_ms <= high
    )
    return islice(matching, max_count)
