"""A RocketMQ broker for tests of programs that use official clients: no JVM, no container.

    with Broker() as broker:
        start_my_program(names=broker.address)
        assert broker.bodies("orders") == [b"1"]

As pytest fixtures: `pytest_plugins = ["brokerstore.testing.broker"]`, then ask for `rocketmq_broker`, or for
`rocketmq_grpc_broker`, whose `grpc_address` clients of RocketMQ 5 use.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from messagestore import MessageStore, StoreConfig
from rocketlink import BrokerServer
from storageio import Closing


class Broker(Closing):
    """A broker and name server on a free port of this machine, with a store in a temporary folder or in `path`."""

    def __init__(self, path: str | None = None, *, grpc: bool = False, **options: Any) -> None:
        """Start it, with `grpc` also for clients of RocketMQ 5; `options` are those of `BrokerServer`."""
        self._temporary = tempfile.mkdtemp(prefix="brokerstore-broker-") if path is None else None
        self.store = MessageStore.open(path or f"{self._temporary}/store", config=StoreConfig.small())
        if grpc:
            options.setdefault("grpc_port", 0)
        try:
            self._server = BrokerServer(self.store, **options)
        except BaseException:
            self.close()
            raise
        self.address = self._server.address
        self.grpc_address = self._server.grpc_address

    def bodies(self, topic: str) -> list[bytes]:
        """Return the bodies of a topic, queue by queue."""
        self.store.engine.settle()
        return [message.body for queue_id in self.store.queue_ids(topic) for message in self.store.read(topic, queue_id)]

    def close(self) -> None:
        """Stop serving, close the store, and delete a temporary folder."""
        if hasattr(self, "_server"):
            self._server.close()
        self.store.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _fixtures() -> Any:
    """Return the pytest fixtures; None where pytest is not installed."""
    try:
        import pytest
    except ModuleNotFoundError:
        return None, None

    @pytest.fixture
    def rocketmq_broker() -> Iterator[Broker]:
        """Run a broker for one test."""
        with Broker() as broker:
            yield broker

    @pytest.fixture
    def rocketmq_grpc_broker() -> Iterator[Broker]:
        """Run a broker for one test, also for clients of RocketMQ 5."""
        with Broker(grpc=True) as broker:
            yield broker

    return rocketmq_broker, rocketmq_grpc_broker


rocketmq_broker, rocketmq_grpc_broker = _fixtures()
