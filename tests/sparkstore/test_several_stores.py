"""A stream over several stores: each message once, stores that join and leave, and topics that one of them has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from messagestore import MessageStore
from sparkstore.errors import BadOption
from storageio import UnknownStore
from tests.sparkstore.test_streaming import Clock, Stream, bodies_of, collected, expected_of, fill, stream_format
from tests.stores import small_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["collected", "stream_format"]


@pytest.mark.parametrize("max_bytes", [None, "700", "5k"])
def test_a_stream_of_several_stores_has_each_message_once(tmp_path: Path, max_bytes: str | None) -> None:
    """Also of a store that grew, and of one that appears between two runs; and each store's messages in order."""
    for name in "ab":
        fill(tmp_path / name, 30)
    stream = Stream(tmp_path / "*", **({} if max_bytes is None else {"maxBytesPerTrigger": max_bytes}))
    got = stream.run()
    assert sorted(got) == sorted(expected_of(30) * 2)
    fill(tmp_path / "a", 20)
    assert sorted(stream.run()) == sorted(expected_of(20))
    fill(tmp_path / "c", 25)
    assert stream.run() == expected_of(25)
    again = stream.reader()
    reported = again.reportLatestOffset()["stores"]
    assert [Path(path).name for path in reported] == ["a", "b", "c"]
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(UnknownStore, match="b: the query has read this store"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    assert stream.run() == []
    stream.start = {"physical_offset": 0}
    with pytest.raises(BadOption, match="a checkpoint of its own"):
        stream.run()


def test_a_topic_of_a_stream_may_be_in_one_of_its_stores(tmp_path: Path) -> None:
    """An error names a topic that none of them has."""
    fill(tmp_path / "a", 5)
    with MessageStore.open(tmp_path / "b", config=small_config()) as store:
        store.put("other", b"x")
    assert Stream(tmp_path / "*", topic="other").run() == [b"x"]
    with pytest.raises(BadOption, match="no topic 'none'"):
        Stream(tmp_path / "*", topic="none").run()


@pytest.mark.spark
def test_one_query_follows_several_stores(spark: SparkSession, tmp_path: Path, collected: Any) -> None:
    """A second run reads what came since, and a store that came since."""
    clock = Clock()
    fill(tmp_path / "stores" / "a", 30, clock=clock)
    fill(tmp_path / "stores" / "b", 30, 30, clock=clock)
    assert collected(tmp_path / "stores" / "*", maxBytesPerTrigger="8k")
    fill(tmp_path / "stores" / "a", 20, 60, clock=clock)
    fill(tmp_path / "stores" / "c", 20, 80, clock=clock)
    assert collected(tmp_path / "stores" / "*")
    assert collected(tmp_path / "stores" / "*") == []
    assert bodies_of(spark, tmp_path / "out-checkpoint") == expected_of(100)
