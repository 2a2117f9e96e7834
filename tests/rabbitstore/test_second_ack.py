"""The results of a first and a second acknowledgement."""

from __future__ import annotations

from pathlib import Path

import pytest

from rabbitstore import RabbitSettings, RabbitStore, UnknownDelivery

QUIET = RabbitSettings(background=False)


def test_an_acknowledgement_returns_how_many_it_settled(tmp_path: Path) -> None:
    """A second acknowledgement raises, and with `multiple` settles nothing, in the store and in a consumer."""
    with RabbitStore.open(tmp_path / "vhost", settings=QUIET) as store:
        store.declare_queue("q")
        for number in range(6):
            store.publish("q", b"%d" % number)
        with store.consumer("q") as consumer:
            first, second, third = consumer.get(), consumer.get(), consumer.get()
            assert first and second and third
            assert consumer.ack(first) == 1
            with pytest.raises(UnknownDelivery):
                consumer.ack(first)
            assert consumer.ack(third, multiple=True) == 2
            assert consumer.ack(third, multiple=True) == 0
        delivery = store.get("q")
        assert delivery is not None
        assert store.ack(delivery) == 1
        with pytest.raises(UnknownDelivery):
            store.ack(delivery)
        assert store.ack(delivery, multiple=True) == 0
