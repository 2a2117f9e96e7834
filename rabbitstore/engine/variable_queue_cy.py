"""A queue whose messages move between memory and disk (docs/formats/rabbitmq-queue.md#message-states).

    publish -> q1 -> q2 -> delta -> q3 -> q4 -> fetch

- *alpha*: message and index entry in memory (q1, q4);
- *beta*: message on disk, index entry in memory (q2, q3); *gamma*: a beta whose index entry is on disk too, as that of each
  persistent message is;
- *delta*: a range of sequence numbers, everything on disk.

A lazy queue publishes to delta; its q1, q2 and q4 stay empty.  Persistent messages are written on arrival, transient ones
under memory pressure.  When q3 becomes empty, the next segment of delta is read into it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import StoreCorrupt, StoreError
from storageio.invariants import check_invariants

from ..declarations import DEFAULT, LAZY
from ..format.entry_cy import IndexEntry
from ..settings import RabbitSettings
from .msg_store_cy import StoreClient
from .rates_cy import INFINITY, Rates

if not cython.compiled:
    from storebytes._bytes_cy import I64
if TYPE_CHECKING:
    from .opening import Index


class Delta:
    """The part of a queue that is only on disk: `count` of the messages in start..stop, of which memory has only this range."""

    __slots__ = ("count", "start", "stop")

    def __init__(self, start: int = 0, count: int = 0, stop: int = 0) -> None:
        """Create it, empty by default."""
        self.start = start
        self.count = count
        self.stop = stop

    def expand(self, seq_id: I64) -> None:
        """Add the message to the range."""
        if self.count == 0:
            self.start, self.stop = seq_id, seq_id + 1
        else:
            self.start, self.stop = min(self.start, seq_id), max(self.stop, seq_id + 1)
        self.count += 1

    def clear(self) -> None:
        """Remove all messages from it."""
        self.start = self.count = self.stop = 0


class VariableQueue:
    """One queue.  Not thread-safe."""

    __slots__ = (
        "delta", "disk_pending", "disk_reads", "durable", "index", "length", "mode", "next_deliver_seq_id", "next_seq_id",
        "now_ms", "persistent_bytes", "persistent_count", "persistent_store", "q1", "q2", "q3", "q4", "ram_bytes",
        "ram_count", "ram_pending", "rates", "settings", "target_ram_count", "transient_store",
    )  # fmt: skip

    def __init__(
        self,
        index: Index,
        persistent_store: StoreClient,
        transient_store: StoreClient,
        settings: RabbitSettings,
        now_ms: Callable[[], int],
        *,
        mode: str = DEFAULT,
        durable: bool = True,
        next_deliver_seq_id: int | None = None,
        persistent: tuple[int, int] = (0, 0),
    ) -> None:
        """Continue with the loaded `index`; without `next_deliver_seq_id` all its messages count as redelivered.

        `persistent` is the number of persistent messages in the index and the bytes of their bodies.
        """
        self.index = index
        index.before_flush = persistent_store.store.sync
        self.persistent_store = persistent_store
        self.transient_store = transient_store
        self.settings = settings
        self.now_ms = now_ms
        self.mode = mode
        self.durable = durable
        self.q1: deque[IndexEntry] = deque()
        self.q2: deque[IndexEntry] = deque()
        self.q3: deque[IndexEntry] = deque()
        self.q4: deque[IndexEntry] = deque()
        self.delta = Delta()
        self.ram_pending: dict[int, IndexEntry] = {}
        self.disk_pending: dict[int, IndexEntry] = {}
        self.length = 0
        self.ram_count = 0  # messages in q1..q4 whose term is in memory
        self.ram_bytes = 0  # of terms, those of unacknowledged messages included
        self.target_ram_count = INFINITY
        self.rates = Rates(now_ms())
        self.persistent_count, self.persistent_bytes = persistent  # unacknowledged ones included
        self.disk_reads = 0  # messages read from a store
        start, self.next_seq_id = index.bounds()
        self.next_deliver_seq_id = self.next_seq_id if next_deliver_seq_id is None else next_deliver_seq_id
        self._recover(start)

    def _recover(self, start: int) -> None:
        self.length = self.index.unacked
        if self.length:
            self.delta = Delta(start, self.length, self.next_seq_id)
            if self.mode == DEFAULT:
                self._load_delta()
        check_invariants(self.check)

    def __len__(self) -> int:
        """Return the number of waiting messages, without unacknowledged ones."""
        return self.length

    @property
    def pending_count(self) -> int:
        """The number of unacknowledged messages."""
        return len(self.ram_pending) + len(self.disk_pending)

    # --- publish

    def publish(self, msg_id: bytes, term: bytes, size: int, *, expiry_us: int = 0, persistent: bool, embedded: bool) -> int:
        """Append a message and return its sequence number."""
        message = self._new(msg_id, term, size, expiry_us, persistent, embedded)
        if self.mode == LAZY:
            self._write(message, force=True)
            self._write_index(message, force=True)
            self.delta.expand(message.seq_id)
        else:
            self._write(message, force=False)
            self._write_index(message, force=False)
            (self.q1 if self.q3 else self.q4).append(message)
            self._count_term(message, 1)
        self.length += 1
        if self.rates.count(1, 0, 0, 0):
            self._update_rates()
        if self.target_ram_count != INFINITY:
            self.reduce_memory_use()
        return message.seq_id

    def publish_delivered(self, msg_id: bytes, term: bytes, size: int, *, persistent: bool, embedded: bool) -> int:
        """Add a message that a waiting consumer of the empty queue gets immediately: it starts unacknowledged."""
        assert self.length == 0, "the message would overtake others"
        message = self._new(msg_id, term, size, 0, persistent, embedded)
        self._write(message, force=False)
        self._write_index(message, force=False)
        self.next_deliver_seq_id = message.seq_id + 1
        self.ram_pending[message.seq_id] = message
        self.ram_bytes += len(term)
        self.rates.count(1, 1, 1, 0)
        return message.seq_id

    def _new(self, msg_id: bytes, term: bytes, size: int, expiry_us: int, persistent: bool, embedded: bool) -> IndexEntry:
        seq_id = self.next_seq_id
        self.next_seq_id = self.index.next_seq_id = seq_id + 1
        message = IndexEntry(seq_id, msg_id, expiry_us, size, persistent and self.durable, term, embedded)
        if message.persistent:
            self.persistent_count += 1
            self.persistent_bytes += size
        return message

    def sync(self) -> None:
        """Make everything published so far durable.  `Vhost.sync` does this for many queues with one sync of the stores."""
        position = self.index.position()
        self.persistent_store.store.sync()
        self.index.sync(position)

    # --- fetch and acknowledge

    def fetch(self, *, ack_required: bool = True) -> tuple[IndexEntry, bytes, bool] | None:
        """Take the first message: return it, its term and whether it is redelivered; None when the queue is empty.

        Without `ack_required` it is acknowledged.  Raise `StoreCorrupt` when the stored message is damaged or missing, and
        drop it.  When it cannot be read now, raise `DiskError` and leave it in the queue.
        """
        read = None if self.q4 else self._read_head()
        message = self._take_head()
        if message is None:
            return None
        redelivered = message.seq_id < self.next_deliver_seq_id
        if not redelivered:
            self.next_deliver_seq_id = message.seq_id + 1
        term = message.term if read is None else read
        assert term is not None
        if ack_required:
            self._keep_pending(message)
        else:
            self._forget((message,))
        if self.rates.count(0, 1, int(ack_required), 0):
            self._update_rates()
        return message, term, redelivered

    def _keep_pending(self, message: IndexEntry) -> None:
        if message.term is None:
            self.disk_pending[message.seq_id] = message
        else:
            self.ram_pending[message.seq_id] = message
            self.ram_bytes += len(message.term)

    def acknowledge(self, seq_ids: Iterable[int]) -> list[bytes]:
        """Acknowledge messages and return their ids; for unknown numbers change nothing and raise `KeyError`."""
        messages = self._take_pending(seq_ids)
        self._forget(messages)
        if self.rates.count(0, 0, 0, len(messages)):
            self._update_rates()
        return [message.msg_id for message in messages]

    def is_pending(self, seq_id: int) -> bool:
        """Return whether the message is unacknowledged."""
        return seq_id in self.ram_pending or seq_id in self.disk_pending

    def _take_pending(self, seq_ids: Iterable[int]) -> list[IndexEntry]:
        unique = list(dict.fromkeys(seq_ids))
        for seq_id in unique:
            if not self.is_pending(seq_id):
                raise KeyError(seq_id)
        found = []
        for seq_id in unique:
            message = self.ram_pending.pop(seq_id, None)
            if message is None:
                message = self.disk_pending.pop(seq_id)
            else:
                assert message.term is not None
                self.ram_bytes -= len(message.term)
            found.append(message)
        return found

    def _forget(self, messages: Iterable[IndexEntry]) -> None:
        """Remove the messages from index and stores."""
        message: IndexEntry
        indexed: list[int] = []
        persistent: list[bytes] = []
        transient: list[bytes] = []
        for message in messages:
            if message.persistent:
                self.persistent_count -= 1
                self.persistent_bytes -= message.size
            if message.in_store:
                (persistent if message.persistent else transient).append(message.msg_id)
            if message.in_index:
                indexed.append(message.seq_id)
        if persistent:
            self.persistent_store.remove(persistent)
        if transient:
            self.transient_store.remove(transient)
        if indexed:
            self.index.acknowledge(indexed)

    def purge(self) -> int:
        """Drop all waiting messages and return their number; unacknowledged messages stay."""
        count = 0
        while (message := self._take_head()) is not None:
            self._forget((message,))
            count += 1
        return count

    def drop_expired(self, now_us: int) -> int:
        """Drop expired messages from the head, as RabbitMQ does: one behind an unexpired message stays."""
        count = 0
        while (message := self._peek()) is not None and 0 < message.expiry_us <= now_us:
            self._take_head()
            self._forget((message,))
            count += 1
        return count

    def _peek(self) -> IndexEntry | None:
        if not self.q4 and not self.q3 and self.delta.count:
            self._load_delta()
        return self.q4[0] if self.q4 else self.q3[0] if self.q3 else None

    def _take_head(self) -> IndexEntry | None:
        """Remove and return the first message, from q4 or q3."""
        if self.q4:
            message = self.q4.popleft()
        else:
            taken = self._take_q3()
            if taken is None:
                return None
            message = taken
        self.length -= 1
        self._count_term(message, -1)
        return message

    def _take_q3(self) -> IndexEntry | None:
        if not self.q3 and self.delta.count:  # lazy mode only
            self._load_delta()
        if not self.q3:
            return None
        message = self.q3.popleft()
        if not self.q3 and self.mode == DEFAULT:
            if self.delta.count:
                try:
                    self._load_delta()
                except BaseException:  # a segment cannot be read: keep the message
                    self.q3.appendleft(message)
                    raise
            else:
                assert not self.q2 and not self.q4, "q2 follows delta, q4 precedes q3"
                self.q1, self.q4 = self.q4, self.q1
        return message

    def _load_delta(self) -> None:
        """Read segments of delta into q3 until q3 has a message; when delta is empty, append q2 to q3."""
        delta, ram, disk = self.delta, self.ram_pending, self.disk_pending
        lost = 0
        while delta.count and not self.q3:
            stop = min(self.index.segment_end(delta.start), delta.stop)
            entries = self.index.read(delta.start, stop)
            if self.index.miscounted:
                self._recount()
            if ram or disk:
                entries = [entry for entry in entries if entry.seq_id not in ram and entry.seq_id not in disk]
            for entry in entries:
                entry.in_index = True
                entry.in_store = not entry.embedded
                self.q3.append(entry)
                self._count_term(entry, 1)
            delta.start = stop
            delta.count -= len(entries)
            if stop == delta.stop and delta.count:
                lost, delta.count = delta.count, 0
        if not delta.count:
            delta.clear()
            self.q3.extend(self.q2)
            self.q2.clear()
            if not self.q3 and not lost:  # after an error the caller returns its message to q3
                self.q1, self.q4 = self.q4, self.q1
        if lost:
            self._lost_entries(lost)

    def _recount(self) -> None:
        """Correct the counts after a segment had another number of entries than the last stop counted."""
        difference, self.index.miscounted = self.index.miscounted, 0
        self.length += difference
        self.delta.count += difference
        self.persistent_count += difference

    def _lost_entries(self, count: int) -> None:
        """Raise `StoreCorrupt` for entries that the index no longer has: somebody else changed the folder."""
        self.length -= count
        file = self.index.folder
        raise StoreCorrupt("index entries are gone", file=file, offset=0, expected=f"{count} more entries", found="none")

    # --- requeue

    def requeue(self, seq_ids: Iterable[int]) -> None:
        """Return unacknowledged messages to their old positions; for unknown numbers change nothing and raise `KeyError`.

        A message that cannot be read or written stays unacknowledged; the others are requeued before its error is raised.
        """
        ready, failed = self._prepare(seq_ids)
        messages = sorted(self._take_pending(ready), key=_seq_id)
        self.length += len(messages)
        if self.mode == DEFAULT:
            messages = self._merge(messages, "q4", self.q3[0].seq_id if self.q3 else None, self._into_alpha)
        messages = self._merge(messages, "q3", self.delta.start if self.delta.count else None, self._into_beta)
        for message in messages:
            self._write(message, force=True)
            self._write_index(message, force=True)
            self.delta.expand(message.seq_id)
        if self.target_ram_count != INFINITY:
            self.reduce_memory_use()
        check_invariants(self.check)
        if failed is not None:
            raise failed

    def _prepare(self, seq_ids: Iterable[int]) -> tuple[list[int], StoreError | None]:
        """Do the reads and writes of a requeue first; return the numbers that succeeded, and the first error."""
        ready: list[int] = []
        failed: StoreError | None = None
        for seq_id in dict.fromkeys(seq_ids):
            message = self.ram_pending.get(seq_id)
            if message is None:
                message = self.disk_pending[seq_id]
            try:
                self._prepare_one(message)
            except StoreError as error:
                failed = failed or error
            else:
                ready.append(seq_id)
        return ready, failed

    def _prepare_one(self, message: IndexEntry) -> None:
        if self.mode == DEFAULT and (not self.q3 or message.seq_id < self.q3[0].seq_id):
            self._into_alpha(message)
            return
        self._write(message, force=True)
        if self.delta.count and message.seq_id >= self.delta.start:
            self._write_index(message, force=True)

    def _merge(
        self, messages: list[IndexEntry], name: str, limit: int | None, prepare: Callable[[IndexEntry], None]
    ) -> list[IndexEntry]:
        """Merge the messages below `limit` into a queue by sequence number; return the others."""
        count = len(messages) if limit is None else sum(message.seq_id < limit for message in messages)
        for message in messages[:count]:
            prepare(message)
            self._count_term(message, 1)
        if count:
            queue: deque[IndexEntry] = getattr(self, name)
            if not queue or messages[count - 1].seq_id < queue[0].seq_id:
                queue.extendleft(reversed(messages[:count]))
            else:
                setattr(self, name, deque(heapq.merge(queue, messages[:count], key=_seq_id)))
        return messages[count:]

    def _into_alpha(self, message: IndexEntry) -> None:
        if message.term is None:
            message.term = self.read_term(message)

    def _into_beta(self, message: IndexEntry) -> None:
        self._write(message, force=True)
        if not message.embedded:
            message.term = None

    # --- memory

    def set_duration_target(self, seconds: float) -> None:
        """Limit the messages in memory to those that move in this time at the measured rates; infinity removes the limit."""
        self._update_rates()
        self.set_target_ram_count(INFINITY if seconds == INFINITY else int(seconds * self.rates.total))

    def set_target_ram_count(self, count: float) -> None:
        """Limit the messages in memory to about `count`."""
        self.target_ram_count = count
        if count != INFINITY:
            self.reduce_memory_use()

    def duration_s(self) -> float:
        """Return how long the messages in memory last at the measured rates."""
        total = self.rates.total
        return INFINITY if total == 0 else (self.ram_count + len(self.ram_pending)) / total

    def reduce_memory_use(self) -> None:
        """Turn alphas into betas, drop unacknowledged messages from memory, then turn betas into delta in large batches."""
        excess = self._excess()
        if excess > 0:
            steps = [self._push_alphas_to_betas, self._limit_ram_acks]
            if self.rates.fetched - self.rates.acked > self.rates.ingress - self.rates.egress:
                steps.reverse()
            for step in steps:
                excess -= step(excess) if excess > 0 else 0
        permitted = self._permitted_beta_count()
        surplus = len(self.q2) + len(self.q3) - permitted
        if surplus >= self.settings.io_batch_size:
            self._push_betas_to_deltas(int(surplus))

    def _excess(self) -> int:
        count = self.ram_count + len(self.ram_pending) - self.target_ram_count
        return 0 if count <= 0 else int(count)

    def _permitted_beta_count(self) -> float:
        """Return how many betas may stay: the smaller the target against the messages on disk, the fewer."""
        if self.length == 0 or self.target_ram_count == INFINITY:
            return INFINITY
        if self.mode == LAZY:
            return self.target_ram_count
        segment = self.index.settings.segment_entries
        if self.target_ram_count == 0:
            return min(len(self.q3), segment)
        on_disk = self.length - len(self.q1) - len(self.q4)
        return max(segment, on_disk - (on_disk * on_disk) // (on_disk + int(self.target_ram_count)))

    def _push_alphas_to_betas(self, quota: int) -> int:
        """Move messages from q1's front to q2 or q3, then from q4's end to q3; return how many moved."""
        count = 0
        while count < quota and self.q1:
            message = self.q1[0]
            self._drop_term(message)
            self.q1.popleft()
            (self.q2 if self.delta.count else self.q3).append(message)
            count += 1
        while count < quota and self.q4:
            message = self.q4[len(self.q4) - 1]
            self._drop_term(message)
            self.q4.pop()
            self.q3.appendleft(message)
            count += 1
        return count

    def _drop_term(self, message: IndexEntry) -> None:
        self._write(message, force=True)
        self._count_term(message, -1)
        if not message.embedded:
            message.term = None
        self._count_term(message, 1)

    def _limit_ram_acks(self, quota: int) -> int:
        """Drop the newest unacknowledged messages from memory; return how many were dropped."""
        count = 0
        for seq_id in sorted(self.ram_pending, reverse=True)[:quota]:
            message = self.ram_pending[seq_id]
            assert message.term is not None
            self._write(message, force=True)
            if message.embedded:
                self._write_index(message, force=True)
                continue
            self.ram_bytes -= len(message.term)
            message.term = None
            self.disk_pending[seq_id] = self.ram_pending.pop(seq_id)
            count += 1
        return count

    def _push_betas_to_deltas(self, quota: int) -> None:
        """Move messages to delta from q3's end, except its first segment, then from q2's front."""
        limit = self.index.segment_end(self.q3[0].seq_id if self.q3 else 0)
        while quota and self.q3 and self.q3[len(self.q3) - 1].seq_id >= limit:
            self._into_delta(self.q3[len(self.q3) - 1])
            self.q3.pop()
            quota -= 1
        while quota and self.q2:
            self._into_delta(self.q2[0])
            self.q2.popleft()
            quota -= 1

    def _into_delta(self, message: IndexEntry) -> None:
        self._write(message, force=True)
        self._write_index(message, force=True)
        self._count_term(message, -1)
        self.delta.expand(message.seq_id)

    def set_mode(self, mode: str) -> None:
        """Change between default and lazy."""
        assert mode in (DEFAULT, LAZY)
        if mode == self.mode:
            return
        if mode == DEFAULT and not self.q3 and self.delta.count:
            self._load_delta()  # this and the writes may fail, so nothing is changed before them
        queues = (self.q4, self.q3, self.q2, self.q1) if mode == LAZY else ()
        for queue in queues:
            for message in queue:
                self._write(message, force=True)
                self._write_index(message, force=True)
        self.mode = mode
        for queue in queues:
            while queue:
                self._into_delta(queue.popleft())
        check_invariants(self.check)

    # --- disk

    def _client(self, message: IndexEntry) -> StoreClient:
        return self.persistent_store if message.persistent else self.transient_store

    def _write(self, message: IndexEntry, force: bool) -> None:
        """Write the message to its store, unless it belongs into the index."""
        if message.embedded or message.in_store or not (force or message.persistent):
            return
        assert message.term is not None
        self._client(message).write(message.msg_id, message.term)
        message.in_store = True

    def _write_index(self, message: IndexEntry, force: bool) -> None:
        if message.in_index or not (force or message.persistent):
            return
        term = message.term if message.embedded else None
        self.index.publish(message.seq_id, message.msg_id, message.expiry_us, message.size, message.persistent, term)
        message.in_index = True

    def read_term(self, message: IndexEntry) -> bytes:
        """Read the term from its store; raise `StoreCorrupt` when it is damaged or missing."""
        self.disk_reads += 1
        term = self._client(message).read(message.msg_id)
        if term is None:
            file = self._client(message).store.folder
            raise StoreCorrupt("message is in no file", file=file, offset=0, expected=message.msg_id.hex(), found="nothing")
        return term

    def _read_head(self) -> bytes | None:
        """Read the term of the first message before it is taken; return None when it is in memory."""
        message = self._peek()
        if message is None or message.term is not None:
            return None
        try:
            return self.read_term(message)
        except StoreCorrupt:
            self._take_head()
            message.in_store = False
            self._forget((message,))
            raise

    def _count_term(self, message: IndexEntry, sign: I64) -> None:
        if message.term is not None:
            self.ram_count += sign
            self.ram_bytes += sign * len(message.term)

    def _update_rates(self) -> None:
        self.rates.update(self.now_ms())

    def check(self) -> None:
        """Assert the invariants of q1 to q4 and delta."""
        has1, has2, has3, has4 = (bool(queue) for queue in (self.q1, self.q2, self.q3, self.q4))
        has_delta = self.delta.count > 0
        if self.mode == LAZY:
            assert not has1 and not has2 and not has4
        assert not has1 or has3 or self.mode == LAZY, "q1 fills only while q3 has messages"
        assert not has2 or has_delta, "q2 follows delta"
        assert self.mode == LAZY or not has_delta or has3, "delta is read as soon as q3 is empty"
        assert (self.length == 0) == (not has3 and not has4 and not has_delta)
        queues = [self.q4, self.q3, self.q2, self.q1]
        assert self.length == sum(map(len, queues)) + self.delta.count
        order = [message.seq_id for queue in queues for message in queue]
        assert order == sorted(order)
        if has_delta:
            assert all(message.seq_id < self.delta.start for queue in (self.q4, self.q3) for message in queue)
            assert all(message.seq_id >= self.delta.stop for queue in (self.q2, self.q1) for message in queue)
        in_memory = [message for queue in queues for message in queue]
        terms = [message.term for message in in_memory if message.term is not None]
        pending = [message.term for message in self.ram_pending.values() if message.term is not None]
        assert self.ram_count == len(terms) and self.ram_bytes == sum(map(len, terms)) + sum(map(len, pending))
        for message in in_memory:
            assert message.term is not None or message.in_store
            assert not message.persistent or message.in_index
        for message in (*self.q1, *self.q4):
            assert message.term is not None, "alphas are in memory"
        for message in (*self.q2, *self.q3):
            assert message.in_store or message.embedded, "betas are on disk"


def _seq_id(message: IndexEntry) -> int:
    return message.seq_id
