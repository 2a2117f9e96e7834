"""A public kit for tests of programs that use a store, or official clients.

- `TemporaryStore`: a store with a clock that the test moves; `brokerstore.testing.temporary_store` has it as a pytest fixture
- `Broker`: a RocketMQ broker for tests, without a JVM; `brokerstore.testing.broker` has it as a pytest fixture

`storageio.testing.ForgettingDisk` is a disk that drops unsynced pages; any code that takes a `Disk` runs on it.
"""

from .broker import Broker
from .temporary_store import TemporaryStore

__all__ = ["Broker", "TemporaryStore"]
