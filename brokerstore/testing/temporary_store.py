"""A store in a temporary folder for tests of programs that use a store, with a clock that only the test moves.

    with TemporaryStore() as temporary:
        my_program.send_reminder(temporary.store)
        temporary.clock.advance(minutes=10)
        assert [message.body for message in temporary.drain("reminders")] == [b"1"]

As a pytest fixture: `pytest_plugins = ["brokerstore.testing.temporary_store"]`, then ask for `temporary_store`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from commitlog import StoredMessage
from messagestore import MessageStore, StoreConfig
from storageio import REAL_DISK, Closing

STEP = timedelta(hours=1)  # `delete_when` names hours: a longer jump would miss them


class ManualClock:
    """The time of a `TemporaryStore` in milliseconds: that of its creation, until the test moves it."""

    def __init__(self, now_ms: int, on_moved: Callable[[], object]) -> None:
        """Set the time; `on_moved` is called after each step."""
        self.now_ms = now_ms
        self._on_moved = on_moved

    def __call__(self) -> int:
        """Return the time in milliseconds."""
        return self.now_ms

    def advance(self, **units: float) -> None:
        """Move the clock by `seconds`, `minutes`, `hours`, `days` as for `timedelta`; return when what is due is delivered."""
        left = timedelta(**units)
        if left < timedelta(0):
            raise ValueError(f"the clock moves forwards, not by {left}")
        while left:
            step = min(left, STEP)
            left -= step
            self.now_ms += step // timedelta(milliseconds=1)
            self._on_moved()


class TemporaryStore(Closing):
    """A `MessageStore` (`store`) with a `ManualClock` (`clock`), in a folder that is deleted when it is closed.

    Delays, delivery times, retries in wait, transactions' ages and retention follow the clock.  Timeouts of a call, such as
    `poll(timeout_s=...)`, take real time.
    """

    def __init__(self, config: StoreConfig | None = None) -> None:
        """Create the store, with `StoreConfig.small()` by default."""
        self._config = config or StoreConfig.small()
        self._folder = tempfile.mkdtemp(prefix="brokerstore-test-")
        self.clock = ManualClock(REAL_DISK.now_ms(), self._follow_clock)
        try:
            self.store = self._open()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _open(self) -> MessageStore:
        return MessageStore.open(f"{self._folder}/store", config=self._config, clock=self.clock)

    def reopen(self) -> MessageStore:
        """Close the store, open it again, as a restarted program does, and return it."""
        self.store.close()
        self.store = self._open()
        return self.store

    def drain(
        self, topic: str, group: str = "tests", handle: Callable[[StoredMessage], object] | None = None
    ) -> list[StoredMessage]:
        """Deliver to a group what is due, until nothing more is; return it in its order, acknowledged.

        `handle` is called with each message before it is acknowledged.  If it returns False, the message is sent back, and
        comes again from the group's retry topic after a delay of the clock.  Its exception ends the call; that message and
        later ones come again.
        """
        delivered = []
        with self.store.consumer(topic, group=group) as consumer:
            while True:
                polled = consumer.poll()
                for message in polled:
                    delivered.append(message)
                    if handle is None or handle(message) is not False:
                        consumer.ack(message)
                    else:
                        consumer.nack(message)
                if not polled and not self._deliver_due():
                    return delivered

    def _follow_clock(self) -> None:
        """Do what the housekeeper does by and by."""
        while self._deliver_due():
            pass
        self.store.flush()  # retention deletes nothing that is not on the disk
        self.store.engine.retention.run()

    def _deliver_due(self) -> bool:
        """Put delayed messages that are due to their topics; return whether anything was put."""
        engine = self.store.engine
        engine.settle()
        before = engine.log.written_offset
        with engine.housekeeper.guard:
            while engine.deliver_due() <= 0:
                pass
        return engine.log.written_offset > before

    def close(self) -> None:
        """Close the store and delete its folder."""
        self.store.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _fixture() -> Any:
    """Return the pytest fixture; None where pytest is not installed."""
    try:
        import pytest
    except ModuleNotFoundError:
        return None

    @pytest.fixture
    def temporary_store() -> Iterator[TemporaryStore]:
        """Make a store for one test."""
        with TemporaryStore() as temporary:
            yield temporary

    return temporary_store


temporary_store = _fixture()
