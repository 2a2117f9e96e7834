"""The real rocketmq-store without a broker: one JVM with any number of stores in it.

`java/Driver.java` knows RocketMQ 5, `java/Stores.java` puts and reads with every version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .jvm import Jvm, Refused


class RealStores(Jvm):
    """One JVM with any number of stores in it."""

    def __init__(self, errors: Path, *, main: str = "Driver", **jvm: Any) -> None:
        """Start the JVM of a driver; `errors` is the file for its stderr."""
        super().__init__(main, [], errors, **jvm)
        self._numbers = iter(range(1, 1 << 30))

    def open(self, folder: Path, clock_ms: int = 0, batch_topics: tuple[str, ...] = (), **settings: Any) -> RealStore:
        """Load and start the store in a folder.

        A clock of 0 is the system's; `batch_topics` have batch queues.  Raises Refused if load() returns false.
        """
        number = next(self._numbers)
        reported = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
        found = self.invoke("open", id=number, dir=str(folder), set=reported, clock=clock_ms, batch=batch_topics)
        if not found["load"]:
            raise Refused(f"load() refused {folder}")
        return RealStore(self, number, found)

    def close(self, stores: list[RealStore]) -> None:
        """Shut stores down cleanly in one command, since each shutdown sleeps."""
        self.invoke("close", ids=[store.number for store in stores])


class RealStore:
    """One open store of the JVM."""

    def __init__(self, jvm: RealStores, number: int, opened: dict[str, Any]) -> None:
        self.jvm = jvm
        self.number = number
        self.opened = opened

    def invoke(self, do: str, **arguments: Any) -> Any:
        return self.jvm.invoke(do, id=self.number, **arguments)

    def close(self) -> None:
        self.jvm.close([self])
