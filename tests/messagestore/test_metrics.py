"""The metrics of a store are those of a plain count of what was put, read and acknowledged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brokerstore.metrics import observe, prometheus_text
from messagestore import FlushMode, Metrics
from messagestore.write.durations import BOUNDS_S, Durations
from tests.brokerstore.tool import run
from tests.messagestore.writers import Writer, open_store, put_all


def depths(metrics: Metrics) -> dict[tuple[str, int], tuple[int, int, int]]:
    return {(one.topic, one.queue_id): (one.min_offset, one.max_offset, one.messages) for one in metrics.queues}


def test_queues_groups_and_positions_are_counted(tmp_path: Path) -> None:
    """The writer knows its positions; a reader beside it counts queues and groups."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 300)
        size = store.flush()
        with store.consumer("t", group="g", timeout_s=0.0) as consumer:
            for message in consumer.poll(120):
                consumer.ack(message)
        store.engine.persist_offsets()
        store.offset_by_time("t", 0, 0)  # waits for the dispatcher
        found = store.metrics()
        assert found.messages_put == 300
        assert depths(found) == {("t", queue): (0, 100, 100) for queue in range(3)}
        assert sum(group.lag for group in found.groups) == 180
        assert {group.group for group in found.groups} == {"g"}
        assert found.written_offset == found.flushed_offset == found.dispatched_offset == size == store.log_end
        assert (found.flush_lag_bytes, found.dispatch_lag_bytes, found.accepts_puts) == (0, 0, True)
        assert found.flush is not None and found.dispatch is not None and found.opening_s is not None
        assert found.flush.count >= 1 and found.dispatch.count >= 1 and found.opening_s > 0
        assert found.log_bytes == sum(path.stat().st_size for path in (tmp_path / "commitlog").iterdir())
        assert found.queue_bytes == sum(
            path.stat().st_size for path in (tmp_path / "consumequeue").rglob("0*") if path.is_file()
        )
        with open_store(tmp_path, "r") as reader:
            beside = reader.metrics()
        assert depths(beside) == depths(found)
        assert beside.groups == found.groups
        assert beside.dispatched_offset == size
        assert (beside.written_offset, beside.flush, beside.flush_lag_bytes, beside.is_writing) == (None, None, None, False)
        assert json.loads(json.dumps(found.to_json()))["queues"][0]["max_offset"] == 100


def lags(metrics: Metrics) -> dict[int, int]:
    return {one.queue_id: one.lag for one in metrics.groups if one.topic == "t"}


def test_lag_counts_queues_in_which_the_group_acknowledged_nothing(tmp_path: Path) -> None:
    """It has to read all of them; a topic without a group has only the depth of its queues. A reader counts the same."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 30)
        put_all(store, 0, 6, topic="alone")
        with store.consumer("t", group="g", timeout_s=0.0) as consumer:
            first = next(message for message in consumer if message.queue_id == 1)
            assert first.queue_offset == 0
            consumer.ack(first)
            with open_store(tmp_path, "r") as reader:
                for one in (store, reader):
                    found = one.metrics()
                    assert lags(found) == {0: 10, 1: 9, 2: 10}
                    assert {group.topic for group in found.groups} == {"t"}
                    assert sum(queue.messages for queue in found.queues if queue.topic == "alone") == 6


def test_lag_counts_no_message_that_is_acknowledged_before_an_earlier_one(tmp_path: Path) -> None:
    """One slow job does not make the others wait: in the writer, beside it, after a kill, and in the count of a purge."""
    with Writer(tmp_path, ONE_SLOW_JOB) as writer:
        assert writer.hear() == "{0: 1}"
        with open_store(tmp_path, "r") as reader:
            assert lags(reader.metrics()) == {0: 1}
        assert [row["lag"] for row in shown_offsets(tmp_path)] == [1]
        writer.kill()
    assert [row["lag"] for row in shown_offsets(tmp_path)] == [1]
    with open_store(tmp_path) as store:
        assert lags(store.metrics()) == {0: 1}
        assert store.purge("t", "g") == 1
        assert lags(store.metrics()) == {0: 0}


ONE_SLOW_JOB = """
store = open_store(root)
put_all(store, 0, 20, queues=1)
consumer = store.consumer("t", group="g", timeout_s=0)
_slow, *others = consumer.poll(32)
for one in others:
    consumer.ack(one)
said({one.queue_id: one.lag for one in store.metrics().groups})
told()
"""


def shown_offsets(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `offsets show`."""
    rows: list[dict[str, Any]] = run("offsets", "show", "--json", folder).json["offsets"]
    return rows


def test_messages_put_does_not_decrease_after_retention(tmp_path: Path) -> None:
    """The number of puts does not decrease."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 1500)
        store.flush()
        store.offset_by_time("t", 0, 0)  # waits for the dispatcher
        assert store.delete_before(2 * (1 << 16)) == 2
        found = store.metrics()
        assert found.messages_put == 1500
        assert 0 < sum(queue.messages for queue in found.queues) < 1500
        assert found.min_offset == 2 * (1 << 16)


def test_a_sync_flush_is_measured(tmp_path: Path) -> None:
    """Each put waits for one."""
    with open_store(tmp_path, flush_disk_type=FlushMode.SYNC) as store:
        put_all(store, 0, 5)
        flush = store.metrics().flush
        assert flush is not None and flush.count >= 5 and flush.sum_s > 0


def test_durations_are_counted_in_histogram_buckets() -> None:
    """A duration that equals a bound belongs to it."""
    durations = Durations()
    for duration_s in (0.00005, BOUNDS_S[0], 0.0002, 100.0):
        durations.add(duration_s)
    found = durations.histogram
    assert found.counts == (2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4)
    assert found.count == 4
    assert found.sum_s == pytest.approx(100.00035)


def test_the_prometheus_text_is_what_prometheus_reads(tmp_path: Path) -> None:
    """Its own parser finds the same values; names of topics are escaped."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    with open_store(tmp_path) as store:
        put_all(store, 0, 7, topic='a"b')
        store.flush()
        store.offset_by_time("t", 0, 0)
        families = {family.name: family for family in parser.text_string_to_metric_families(prometheus_text(store, store="s1"))}
    found = {tuple(sample.labels.values()): sample.value for sample in families["brokerstore_messages"].samples}
    assert found == {("s1", 'a"b', "0"): 3.0, ("s1", 'a"b', "1"): 2.0, ("s1", 'a"b', "2"): 2.0}
    assert families["brokerstore_flush_seconds"].type == "histogram"
    buckets = [sample for sample in families["brokerstore_flush_seconds"].samples if sample.name.endswith("_bucket")]
    assert len(buckets) == len(BOUNDS_S) + 1
    assert buckets[-1].labels == {"store": "s1", "le": "+Inf"}


def test_the_prometheus_text_has_a_line_a_value(tmp_path: Path) -> None:
    """The format is simple enough to be written without a library."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 3, queues=1)
        store.flush()
        store.offset_by_time("t", 0, 0)
        lines = prometheus_text(store).splitlines()
    assert 'brokerstore_messages_total{topic="t",queue="0"} 3' in lines
    assert "# TYPE brokerstore_messages_total counter" in lines
    assert "brokerstore_dispatch_lag_bytes 0" in lines
    assert not [line for line in lines if "None" in line or "True" in line]


def test_opentelemetry_reads_the_store_at_each_collection(tmp_path: Path) -> None:
    """After the close nothing is reported."""
    pytest.importorskip("opentelemetry.sdk.metrics", reason="the OpenTelemetry SDK is not installed")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def points() -> dict[str, list[Any]]:
        data = reader.get_metrics_data()
        scopes = data.resource_metrics[0].scope_metrics if data is not None and data.resource_metrics else []
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}

    with open_store(tmp_path) as store:
        observe(store, provider.get_meter("test"), store="s1")
        put_all(store, 0, 4, queues=1)
        store.offset_by_time("t", 0, 0)
        [point] = points()["brokerstore.messages"]
        assert point.value == 4
        assert dict(point.attributes) == {"store": "s1", "topic": "t", "queue": "0"}
        put_all(store, 4, 6, queues=1)
        store.offset_by_time("t", 0, 0)
        assert points()["brokerstore.messages"][0].value == 6
    assert not points().get("brokerstore.messages")
    provider.shutdown()
