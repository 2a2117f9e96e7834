"""A source whose sinks kill themselves, `brokerstore_killing`; its options say when.

    killTask      number of an Arrow batch: the task that reaches it in its first attempt is killed by SIGKILL
    killExecutor  true: the task's executor is killed too, with every task that it runs
    deaths        folder in which each killed task leaves a file
    killCommit    storage call before which the process of batch 1's commit is killed: an operation and a part of the path.
                  Happens once, while the file named by the option `once` does not exist

It is a module of its own, so that Spark's processes can import it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource

from sparkstore.options import parse_read_options
from sparkstore.sink.writers import StoreBatchWriter, StoreStreamWriter, parse_target
from sparkstore.source.data_source import BrokerStoreReader, BrokerStoreSource
from storageio.testing import WrappedDisk

OWN = ("killtask", "killexecutor", "deaths", "killcommit", "once")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def executor_of_this_worker() -> int:
    """Return the process of the executor: it started the daemon that forked this worker."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def dying(batches: Iterator[Any], number: int, deaths: str, with_executor: bool = False) -> Iterator[Any]:
    """Yield the batches; kill the process after half of batch `number`, in partitions other than the first."""
    context = TaskContext.get()
    for position, batch in enumerate(batches):
        if context is not None and context.attemptNumber() == 0 and context.partitionId() > 0 and position == number:
            yield batch.slice(0, batch.num_rows // 2)
            (Path(deaths) / str(context.taskAttemptId())).touch()
            if with_executor:
                os.kill(executor_of_this_worker(), signal.SIGKILL)
            die()
        yield batch


class OnceKillingDisk(WrappedDisk):
    """A disk that kills the process before the first matching call, once."""

    def __init__(self, where: str, once: str) -> None:
        super().__init__()
        self.operation, _, self.position = where.rpartition(" ")
        self.once = Path(once)

    def before(self, operation: str, path: str) -> None:
        if operation == self.operation and self.position in path and not self.once.exists():
            self.once.touch()
            die()


class KillingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "brokerstore_killing"

    def _given(self) -> tuple[dict[str, str], dict[str, str]]:
        own = {name: value for name, value in self.options.items() if name in OWN}
        return {name: value for name, value in self.options.items() if name not in OWN}, own

    def writer(self, schema: Any, overwrite: bool) -> Any:
        given, own = self._given()
        return _with_kills(KillingBatchWriter(parse_target(given, schema, overwrite)), own)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        given, own = self._given()
        return _with_kills(KillingStreamWriter(parse_target(given, schema, overwrite)), own)


def _with_kills(writer: Any, own: dict[str, str]) -> Any:
    writer.kill_task = int(own.get("killtask", -1))
    writer.deaths = own.get("deaths", "")
    writer.with_executor = own.get("killexecutor") == "true"
    writer.kill_commit = own.get("killcommit", "")
    writer.once = own.get("once", "")
    return writer


class KillingBatchWriter(StoreBatchWriter):
    kill_task: int
    with_executor: bool
    deaths: str
    kill_commit: str
    once: str

    def write(self, iterator: Any) -> Any:
        return super().write(dying(iterator, self.kill_task, self.deaths, self.with_executor))

    def commit(self, messages: Any) -> None:
        if self.kill_commit:
            self.disk = OnceKillingDisk(self.kill_commit, self.once)
        super().commit(messages)


class KillingStreamWriter(StoreStreamWriter):
    kill_task: int
    deaths: str
    kill_commit: str
    once: str

    def write(self, iterator: Any) -> Any:
        return super().write(dying(iterator, self.kill_task, self.deaths))

    def commit(self, messages: Any, batchId: int) -> None:
        if self.kill_commit and batchId == 1:
            self.disk = OnceKillingDisk(self.kill_commit, self.once)
        super().commit(messages, batchId)


class VanishingSource(BrokerStoreSource):
    """`brokerstore_vanishing`: retention deletes the log's first file between the plan and the tasks."""

    @classmethod
    def name(cls) -> str:
        return "brokerstore_vanishing"

    def reader(self, schema: Any) -> Any:
        return VanishingReader(parse_read_options(self.options), schema)


class VanishingReader(BrokerStoreReader):
    def partitions(self) -> Any:
        planned = super().partitions()
        Path(planned[0].value.file).unlink()
        return planned
