"""What `RabbitStore.metrics` counts, and what Prometheus reads of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brokerstore.metrics import observe, prometheus_text
from rabbitstore import RabbitQueueMetrics, RabbitStore
from storageio import StoreClosed


def test_waiting_and_held_messages_are_counted(tmp_path: Path) -> None:
    """A delivery moves from one number to the other, and an acknowledgement ends it; a reader counts what is in the files."""
    with RabbitStore.open(tmp_path / "s", "a") as store:
        for name, count in (("a", 3), ("b", 0)):
            store.declare_queue(name)
            for _ in range(count):
                store.publish(name, b"x" * 5000)
        delivery = store.get("a")
        assert delivery is not None
        found = store.metrics()
        assert found.queues == (RabbitQueueMetrics("a", 2, 1), RabbitQueueMetrics("b", 0, 0)) and found.is_writing
        assert found.syncs is not None and found.syncs > 0
        assert found.persistent_bytes > 3 * 5000 and found.transient_bytes == 0 and found.free_bytes > 0
        store.ack(delivery)
        assert store.metrics().queues[0] == RabbitQueueMetrics("a", 2, 0)
    with RabbitStore.open(tmp_path / "s", "r") as store:
        found = store.metrics()
        assert (found.queues[0], found.is_writing, found.syncs) == (RabbitQueueMetrics("a", 2, 0), False, None)
    with pytest.raises(StoreClosed):
        store.metrics()


def test_prometheus_reads_them(tmp_path: Path) -> None:
    """A line a queue and kind; the parser of Prometheus' own client finds the values."""
    parser = pytest.importorskip("prometheus_client.parser")
    with RabbitStore.open(tmp_path / "s", "a") as store:
        store.declare_queue("mail")
        store.publish("mail", b"hello")
        text = prometheus_text(store, store="s")
    samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    found = {(one.name, one.labels.get("queue") or one.labels.get("part", "")): one.value for one in samples}
    assert found["brokerstore_queue_ready_messages", "mail"] == 1
    assert found["brokerstore_queue_unacked_messages", "mail"] == 0
    assert ("brokerstore_file_bytes", "persistent") in found and all(one.labels["store"] == "s" for one in samples)


@pytest.mark.parametrize("wrong", [None, 5, "store"])
def test_an_argument_that_is_not_a_store_raises_a_type_error(wrong: Any) -> None:
    """Both exporters say what they expect."""
    with pytest.raises(TypeError, match="expected a store with metrics"):
        prometheus_text(wrong)
    pytest.importorskip("opentelemetry")
    with pytest.raises(TypeError, match="expected a store with metrics"):
        observe(wrong)
