"""A public kit that tests stores, and programs built on them, against crashes, and programs that use official clients.

- `TemporaryStore`: a store with a clock that the test moves; `brokerstore.testing.temporary_store` has it as a pytest fixture
- `Broker`: a RocketMQ broker for tests, without a JVM; `brokerstore.testing.broker` has it as a pytest fixture
- `rocketmq_lab`: runs programs on a `MessageStore` over a `ForgettingDisk`; opens and checks every crash of every step
- `rocketmq_check`, `rocketmq_ledger`: what must hold after a crash, and the record of what was promised

The disk is `storageio.testing.ForgettingDisk`, which drops unsynced pages; any code that takes a `Disk` runs on it.
"""

from .broker import Broker
from .temporary_store import TemporaryStore

__all__ = ["Broker", "TemporaryStore"]
