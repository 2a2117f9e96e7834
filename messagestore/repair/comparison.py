"""Compare queues and index with a log while a caller walks it: open them, take the log's records, and close them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from commitlog.walk import LogFiles, Piece
from consumequeue import ConsumeQueues
from indexfile import IndexFiles
from storageio import Closing, Disk, StoreError, own_view

from ..config import StoreConfig
from ..deleted_topics import DeletedTopics
from ..derive.cross_check import CrossCheck, LogBounds
from ..excluded_topics import excluded_topics
from ..folder_contents import queues_databases
from ..paths import StorePaths
from ..store_settings import read_levels

ALONE_MAX = 64 << 20  # bytes of log that are compared on the caller's thread


class Comparison(Closing):
    """A `CrossCheck` of a store's queues and index, as a context. A large log is compared on a thread of its own.

    The thread is at most one range of the log behind the walk, so findings have one order. An error ends the comparison and is
    raised by `finish`; the walk goes on.
    """

    def __init__(
        self, disk: Disk, paths: StorePaths, config: StoreConfig, files: LogFiles, bounds: LogBounds | None = None
    ) -> None:
        """Open nothing yet. `config` has the sizes of the files."""
        assert config.mapped_file_size_consume_queue and config.max_hash_slot_num and config.max_index_num
        self.queues = ConsumeQueues(disk, paths.queues, writable=False, file_size_bytes=config.mapped_file_size_consume_queue)
        self.index = IndexFiles(
            disk, paths.index, writable=False, slots=config.max_hash_slot_num, items=config.max_index_num
        ) if config.message_index_enable else None  # fmt: skip
        self.index_files = self.queue_count = 0
        self._disk = disk
        self._paths = paths
        self._delay_levels = config.message_delay_level
        self._files = files
        self._bounds = bounds
        self._cross_check: CrossCheck | None = None
        self._pending: Future[None] | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._error: StoreError | None = None

    def load(self, *, every_queue: bool) -> None:
        """Prepare the comparison; with `every_queue`, list every queue, which otherwise loads when a record needs it."""
        try:
            files = self._files.files
            low = files[0].start_offset if files else 0
            levels = read_levels(self._disk, self._paths.own, self._delay_levels)
            self._cross_check = CrossCheck(self.queues, self.index, levels, low, self._bounds)
            self._cross_check.is_ignored = excluded_topics(self._disk, self._paths.root)
            self._cross_check.leave_out(DeletedTopics(self._disk, self._paths.root))
            self._cross_check.files = self._files
            self._cross_check.skips_other_units = bool(queues_databases(self._disk, self._paths.root))
            self.index_files = len(self.index.files) if self.index is not None else 0
            if every_queue:
                self.queue_count = sum(self._cross_check.can_read(queue) for queue in self.queues)
            if sum(file.size_bytes for file in files) > ALONE_MAX:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="brokerstore-compare")
        except StoreError as error:
            self._error = error

    def walk(self, progress: Callable[[int], None] | None) -> None:
        """Walk the log and take all of it."""
        for step in self._files.walk():
            if isinstance(step, Piece):
                self.take(step)
                if progress is not None:
                    progress(step.stop - step.start)

    def take(self, piece: Piece) -> None:
        """Compare the next whole records of the log, after those before."""
        if self._worker is None:
            self._take(piece)
            return
        self._wait()
        self._pending = self._worker.submit(self._take, piece._replace(view=own_view(piece.view)))

    def _take(self, piece: Piece) -> None:
        if self._error is None and self._cross_check is not None:
            try:
                self._cross_check.take(piece)
            except StoreError as error:
                self._error = error.with_traceback(None)  # its frames keep the views of log files that a repair cuts

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def finish(self) -> CrossCheck:
        """Compare what is left after the last record, and return the result; raise the error that ended the comparison."""
        self._wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        assert self._cross_check is not None, "load comes first"
        self._cross_check.finish()
        return self._cross_check

    def close(self) -> None:
        """End the thread and close queues and index."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
        self.queues.close()
        if self.index is not None:
            self.index.close()
