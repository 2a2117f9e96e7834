"""The queue machine: apply the commands of a log to a state (docs/formats/rabbitmq-quorum.md#replay).

It follows rabbit_fifo of RabbitMQ 3.8 to 4.3; `versions.py` has what each version does.  Message bodies are not in it, only the
indexes of their entries.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from ..format.terms import FALSE, UNDEFINED, Atom, Opaque
from .command_cy import INDEX_BITS
from .machine_parts import CANCELLED, QUIESCING, SUSPECTED, UP, DeadLetters, MessageInfo, QuorumConsumer, Settings
from .messages import MessageList, QuorumContent
from .processes import key_order, message_ids, node_of, pid_order, uniform
from .versions import AT_REMOVAL, LISTS_STRICT, RULES, Rules

_HIGH_ABOVE = 4
_WEIGHT = 2
_PRIORITY_MAX = 31
_HIGH, _NORMAL = 9, 4  # priorities of the two lists before, and of a message without one
_DISABLED = "disabled"
AT_LEAST_ONCE = "at_least_once"


@dataclass
class Machine:
    """The state of one queue.

    `is_lenient` accepts a message whose predecessors are missing, as after a damaged entry; the server would ignore it.
    `monitored` has the processes in the order in which a leader starts to watch them; None before `become_leader`.
    """

    settings: Settings = field(default_factory=Settings)
    version: int = 0
    high: MessageList = field(default_factory=MessageList)
    normal: MessageList = field(default_factory=MessageList)
    strict: dict[int, MessageList] = field(default_factory=dict)
    taken: int = 0
    returns: deque[QuorumContent] = field(default_factory=deque)
    enqueuers: dict[Any, int] = field(default_factory=dict)
    early: dict[Any, list[tuple[int, QuorumContent]]] = field(default_factory=dict)  # by publisher, in order of their numbers
    consumers: dict[Any, QuorumConsumer] = field(default_factory=dict)
    service: dict[int, deque[Any]] = field(default_factory=dict)
    waiting: list[tuple[Any, QuorumConsumer]] = field(default_factory=list)
    dead: DeadLetters = field(default_factory=DeadLetters)
    ready_bytes: int = 0
    is_lenient: bool = False
    dropped: dict[int, str] = field(default_factory=dict)
    unknown: str = ""
    monitored: dict[Any, None] | None = None
    nodes: set[str] = field(default_factory=set)  # those of `become_leader`

    @classmethod
    def declared(cls, config: dict[Any, Any]) -> Machine:
        """Return the state of a new queue, whatever the server's version: it begins with version 0."""
        found = cls(Settings.of(config))
        found._drop_head()
        return found

    # Contents

    @property
    def rules(self) -> Rules:
        """What the machine's version does."""
        return RULES[self.version]

    def set_version(self, version: int) -> None:
        """Change the version, as a new leader does: convert the state to each version after its own; there is no way back."""
        while self.version < version:
            self.version += 1
            if self.version in _CONVERSIONS:
                _CONVERSIONS[self.version](self)

    def _drop_head(self) -> None:
        """Begin to know `reject_publish`: the settings of the state before have none."""
        self.settings = replace(self.settings, drops_head=True)

    def _keep_indexes(self) -> None:
        """Add the enqueues that wait for earlier ones; the settings of the state before have no time to live."""
        for pid in sorted(self.early, key=pid_order):
            self._add_early(pid)
        self.settings = replace(self.settings, msg_ttl=None)

    def _cap_credit(self) -> None:
        """Limit the credit of consumers; those that wait to be the active one are left as they are."""
        for _key, consumer in self.waiting:
            consumer.mode = (consumer.mode[0], 0)

    def _make_two_lists(self) -> None:
        self.taken = 0

    def _make_strict_lists(self) -> None:
        if self.high or self.normal:
            self.strict = {_HIGH: self.high, _NORMAL: self.normal}
            self.high, self.normal = MessageList(), MessageList()
        for consumer in self._every_consumer():
            consumer.before = UP if consumer.status == SUSPECTED else ""

    def lists(self) -> list[MessageList]:
        """Return the lists of messages that were not returned, in order of their priority."""
        return [self.high, self.normal, *(self.strict[priority] for priority in sorted(self.strict, reverse=True))]

    def list_of(self, priority: int | None) -> MessageList:
        """Return the list that a message of a priority is added to."""
        priority = _NORMAL if priority is None else priority
        if self.rules.lists == LISTS_STRICT:
            return self.strict.setdefault(max(0, min(priority, _PRIORITY_MAX)), MessageList())
        return self.high if priority > _HIGH_ABOVE and self.rules.lists > 1 else self.normal

    def restarted(self, time_ms: int) -> Machine:
        """Return the state after a start of the server: its node is up, and every process down, in the order of their watch.

        Messages that one consumer held may go to another one before that is found to be down.  `dropped` has the reason of each
        message that the start removes, by index.
        """
        found = self._copy()
        pids = found._processes()
        nodes = self._nodes() if self.monitored is None else self.nodes
        for node in sorted(nodes) if self.rules.finds_node_up else ():
            found._node_up(0, time_ms, (None, node))
            found._activate()
            found.checkout(time_ms)
        for pid in dict.fromkeys([*(pid for pid in self.monitored or () if pid in pids), *pids]):
            found._process_down(pid)
            found._activate_after("down")
            found.checkout(time_ms)
        return found

    def _processes(self) -> list[Any]:
        """Return the processes of enqueuers and consumers in the order of their numbers."""
        pids = [*self.enqueuers, *(one.pid for one in self.consumers.values()), *(one.pid for _key, one in self.waiting)]
        return sorted({pid for pid in pids if isinstance(pid, Opaque)}, key=pid_order)

    def become_leader(self) -> None:
        """Watch every process; those of later entries follow in the order of their entries."""
        self.monitored, self.nodes = dict.fromkeys(self._processes()), self._nodes()

    def _nodes(self) -> set[str]:
        """Return the nodes of all processes: the leader watches them too."""
        return {node_of(pid) for pid in self._processes()}

    def _monitor(self, pid: Any) -> None:
        if self.monitored is not None:
            self.monitored.setdefault(pid)

    def _copy(self) -> Machine:
        """Copy what changes, messages included."""

        def copied(consumer: QuorumConsumer) -> QuorumConsumer:
            return replace(consumer, held={number: replace(message) for number, message in consumer.held.items()})

        dead = replace(self.dead, waiting=deque(self.dead.waiting), held=dict(self.dead.held))
        return replace(
            self,
            high=self.high.copy(),
            normal=self.normal.copy(),
            strict={priority: part.copy() for priority, part in self.strict.items()},
            returns=deque(map(replace, self.returns)),
            dead=dead,
            dropped={},
            enqueuers=dict(self.enqueuers),
            early={pid: list(rows) for pid, rows in self.early.items()},
            service={priority: deque(part) for priority, part in self.service.items()},
            consumers={key: copied(consumer) for key, consumer in self.consumers.items()},
            waiting=[(key, copied(consumer)) for key, consumer in self.waiting],
        )

    def ready(self) -> Iterator[QuorumContent]:
        """Yield the messages that no consumer holds, in the order of their delivery."""
        yield from self.returns
        for part in self.ready_lists():
            yield from part

    def ready_lists(self) -> list[MessageList]:
        """Return the messages that follow the returned ones, in the order of their delivery."""
        is_strict = self.rules.lists == LISTS_STRICT
        if is_strict or not self.high or not self.normal:
            return self.lists() if is_strict else [self.high, self.normal]
        rest = replace(self, high=self.high.copy(), normal=self.normal.copy(), returns=deque())
        return [MessageList(iter(rest._take, None))]

    def held(self) -> Iterator[tuple[Any, QuorumContent]]:
        """Yield consumer tag and message of each that a consumer holds, by consumer."""
        for key in sorted(self.consumers, key=key_order):
            consumer = self.consumers[key]
            for number in sorted(consumer.held):
                yield consumer.tag, consumer.held[number]

    def count_ready(self) -> int:
        """Return the number of messages that no consumer holds."""
        return len(self.returns) + sum(map(len, self.lists()))

    # The order of messages

    def _next(self) -> QuorumContent | None:
        if self.returns:
            return self.returns[0]
        source = self._source()
        return source.first if source else None

    def _source(self) -> MessageList | None:
        if self.rules.lists == LISTS_STRICT:
            return next((part for part in self.lists() if part), None)
        if not self.high or not self.normal:
            return self.high or self.normal or None
        if self.taken == _WEIGHT:
            high, normal = self.high.first, self.normal.first
            return self.high if high and normal and high.index < normal.index else self.normal
        return self.high

    def _take(self) -> QuorumContent | None:
        if self.returns:
            return self.returns.popleft()
        source = self._source()
        if not source:
            return None
        self.taken = 0 if self.taken == _WEIGHT else self.taken + 1
        return source.popleft()

    # Commands

    def apply(self, index: int, time_ms: int, command: Any, reply_mode: Any, info: MessageInfo) -> None:
        """Apply one command; commands of other names have no effect, as in the server."""
        if isinstance(command, tuple) and command and isinstance(command[0], str):
            name = str(command[0])
            command = (command[0], *map(uniform, command[1:2]), *command[2:])
            handler = _ENQUEUES.get((name, len(command)))
            if handler is not None:
                self.enqueue(index, time_ms, *handler(command, reply_mode), info)
            else:
                other = _COMMANDS.get((name, len(command)))
                if other is None and self.rules.keeps_after_disconnect and name not in _WITHOUT_EFFECT:
                    self.unknown = name
                if other is not None and other(self, index, time_ms, command):
                    self._activate_after(name)
                    self.checkout(time_ms)

    def enqueue(self, index: int, time_ms: int, pid: Any, number: Any, info: MessageInfo) -> None:
        """Add a message, unless its publisher's number shows that it was added before."""
        if isinstance(number, int):
            self._monitor(pid)
            expected = self.enqueuers.setdefault(pid, 1)
            if number > expected and self.rules.waits_for_earlier and not self.is_lenient:
                insort(self.early.setdefault(pid, []), (number, QuorumContent(index, info.size)), key=itemgetter(0))
                self.checkout(time_ms)
                return
            if number < expected or (number > expected and not self.is_lenient):
                return
            self.enqueuers[pid] = number + 1
        limits = [limit for limit in (self.settings.msg_ttl, info.ttl_ms) if limit is not None]
        expiry = time_ms + (min(limits) or 1) if limits and self.rules.can_expire else None
        size = info.size + info.properties_size if self.rules.counts_properties else info.size
        message = QuorumContent(index, size, delivery_count=info.delivery_count, expiry_ms=expiry)
        self._add(self.list_of(info.priority), message)
        following = self.early.get(pid)
        while following and following[0][0] == self.enqueuers[pid]:
            self.enqueuers[pid] += 1
            self._add(self.list_of(None), following.pop(0)[1])
        self.checkout(time_ms)

    def _add(self, messages: MessageList, message: QuorumContent) -> None:
        messages.append(message)
        self.ready_bytes += message.size

    def _add_early(self, pid: Any) -> None:
        """Add what a publisher sent ahead of messages that will not come."""
        for _number, message in self.early.pop(pid, []):
            self._add(self.list_of(None), message)

    def is_idle(self) -> bool:
        """Return whether a message that does not expire would only be added to its list, until another command comes."""
        limits, dead, first = self.settings, self.dead, self._next()
        is_unlimited = limits.msg_ttl is limits.max_length is limits.max_bytes is None
        is_waited_for = any(self.service.values()) or (dead.pid is not None and bool(dead.waiting)) or any(self.early.values())
        return is_unlimited and not is_waited_for and (first is None or first.expiry_ms is None)

    def enqueue_plain(self, pid: Any, numbers: array[int]) -> None:
        """Add messages without priority and expiry to an idle queue: the next ones of a known publisher."""
        self.enqueuers[pid] += len(numbers)
        self.list_of(None).extend(numbers)
        self.ready_bytes += sum(number >> INDEX_BITS for number in numbers)

    def _find(self, key: Any) -> tuple[Any, QuorumConsumer] | None:
        if key in self.consumers:
            return key, self.consumers[key]
        found = ((own, one) for own, one in self.consumers.items() if isinstance(key, tuple) and key == (one.tag, one.pid))
        return next(found, None)

    def _register(self, _index: int, _time_ms: int, command: Any) -> bool:
        self.enqueuers.setdefault(command[1], 1)
        self._monitor(command[1])
        return False

    def _settle(self, _index: int, _time_ms: int, command: Any) -> bool:
        found = self._find(command[1])
        if found is not None:
            self._complete(*found, message_ids(command[2]))
        return found is not None

    def _complete(self, key: Any, consumer: QuorumConsumer, numbers: list[int]) -> list[QuorumContent]:
        """Remove messages from a consumer, which gets credit for them; one that it does not hold alone changes nothing."""
        if len(numbers) == 1 and numbers[0] not in consumer.held:
            return []
        gone = [consumer.held.pop(number) for number in numbers if number in consumer.held]
        self._add_credit(consumer, len(gone))
        self._update(key, consumer)
        return gone

    def _discard(self, _index: int, _time_ms: int, command: Any) -> bool:
        return self._discard_from(command, is_failed=True, annotations={})

    def _discard_from(self, command: Any, *, is_failed: bool, annotations: dict[Any, Any]) -> bool:
        found = self._find(command[1])
        if found is not None:
            for message in self._complete(*found, message_ids(command[2])):
                self._increase(message, is_failed=is_failed, annotations=annotations)
                self._dead_letter("rejected", message)
            self._activate_after("discard")
        return found is not None

    def _return(self, _index: int, _time_ms: int, command: Any) -> bool:
        return self._return_from(command, is_failed=False, annotations={})

    def _return_from(self, command: Any, *, is_failed: bool, annotations: dict[Any, Any]) -> bool:
        found = self._find(command[1])
        if found is None:
            return False
        key, consumer = found
        numbers = message_ids(command[2])
        for number in numbers if self.rules.keeps_return_order else sorted(set(numbers)):
            self._return_one(key, consumer, number, is_failed=is_failed, annotations=annotations)
        if key in self.consumers:
            self._update(key, consumer)
        return True

    def _modify(self, _index: int, _time_ms: int, command: Any) -> bool:
        is_failed, annotations = command[3] != FALSE, command[5] if isinstance(command[5], dict) else {}
        change = self._return_from if command[4] == FALSE else self._discard_from
        return change(command, is_failed=is_failed, annotations=annotations)

    def _increase(self, message: QuorumContent, *, is_failed: bool, annotations: dict[Any, Any]) -> None:
        message.acquired += 1
        message.annotations |= annotations
        if is_failed or not self.rules.counts_failures:
            message.delivery_count += 1

    def _return_one(
        self, key: Any, consumer: QuorumConsumer, number: int, *, is_failed: bool, annotations: dict[Any, Any]
    ) -> None:
        message = consumer.held.get(number)
        if message is None:
            return
        self._increase(message, is_failed=is_failed, annotations=annotations)
        limit = self.settings.delivery_limit
        count = message.delivery_count if self.rules.limits_failures else message.acquired
        if limit is not None and count > limit:
            self._dead_letter("delivery_limit", message)
            self._complete(key, consumer, [number])
            if self.rules.credits_dropped_twice:
                self._add_credit(consumer, 1)
            return
        del consumer.held[number]
        self._add_credit(consumer, 1)
        self.returns.append(message)
        self.ready_bytes += message.size
        if self.rules.updates_each_return:
            self._update(key, consumer)

    def _return_all(self, key: Any, consumer: QuorumConsumer, *, is_failed: bool) -> None:
        for number in sorted(consumer.held):
            self._return_one(key, consumer, number, is_failed=is_failed, annotations={})

    def _requeue(self, index: int, _time_ms: int, command: Any) -> bool:
        consumer = self.consumers.get(command[1])
        message = consumer.held.pop(command[2], None) if consumer is not None and isinstance(command[2], int) else None
        if consumer is None or message is None:
            return False
        message.index = index
        self._increase(message, is_failed=False, annotations={})
        self._add_credit(consumer, 1)
        self.list_of(None).append(message)
        self.ready_bytes += message.size
        self._update(command[1], consumer)
        return True

    def _credit(self, _index: int, time_ms: int, command: Any) -> bool:
        key, active = command[1], self.consumers.get(command[1])
        consumer = active if active is not None else next((one for own, one in self.waiting if own == key), None)
        if consumer is not None and isinstance(command[2], int) and isinstance(command[3], int):
            consumer.credit = max(command[2] + command[3] - consumer.delivery_count, 0)
            if consumer is active:
                self._queue(key, consumer)
                self.checkout(time_ms)
            if command[4] != FALSE:
                consumer.delivery_count += consumer.credit
                consumer.credit = 0
            if consumer is not active:
                self._wait(key, consumer)
        return False

    def _checkout(self, index: int, time_ms: int, command: Any) -> bool:
        identity, spec, meta = command[1], command[2], command[3]
        if not isinstance(identity, tuple) or len(identity) != 2:
            return False
        if isinstance(spec, str):
            if self._cancel_by_id(identity, is_removal=spec == "remove"):
                self._activate_after("cancel")
                self.checkout(time_ms)
            return False
        if not isinstance(spec, tuple):
            return False
        if spec[0] == "dequeue":
            self._dequeue(time_ms, identity, is_settled=spec[1] == "settled")
            return False
        life, mode = (spec[0], (spec[2], spec[1])) if len(spec) == 3 else (spec[0], spec[1])
        mode = mode if isinstance(mode, tuple) else (mode, 0)
        self._add_consumer(self._key_of(identity, index, is_new_form=len(spec) == 2), identity, mode, life == "once", meta)
        self._monitor(identity[1])
        return True

    def _key_of(self, identity: Any, index: int, *, is_new_form: bool) -> Any:
        every = [*self.consumers.items(), *self.waiting]
        known = next((key for key, one in every if identity in (key, (one.tag, one.pid))), None)
        return known if known is not None else index if is_new_form else identity

    def _add_consumer(self, key: Any, identity: Any, mode: tuple[Any, ...], is_once: bool, meta: Any) -> None:
        given = mode[1] if mode[0] == "simple_prefetch" and isinstance(mode[1], int) else 0
        priority = _priority(meta) if self.rules.has_consumer_priority else 0
        consumer = self.consumers.get(key)
        active = self._active() if self.settings.is_single_active else None
        if active is not None and (active[0] != key or active[1].status != UP):
            consumer = None
        if self.settings.is_single_active and not self.rules.replaces_consumers and self.consumers:
            consumer = None
        if consumer is None:
            first = mode[1] if mode[0] == "credited" and isinstance(mode[1], int) else 0
            consumer = QuorumConsumer(identity[0], identity[1], mode, is_once, priority, given, delivery_count=first)
            if self.settings.is_single_active and not self.rules.replaces_consumers and not self.consumers:
                self.consumers[key] = consumer
        else:
            if self.rules.replaces_consumers:
                consumer.mode, consumer.priority, consumer.status, consumer.before = mode, priority, UP, ""
            consumer.is_once, consumer.credit = is_once, max(0, given - len(consumer.held))
        if self.settings.is_single_active and self.consumers.get(key) is not consumer:
            self._wait(key, consumer)
        else:
            self._update(key, consumer)

    def _every_consumer(self) -> list[QuorumConsumer]:
        """Return the consumers that have a place, and those that wait to be the active one."""
        return [*self.consumers.values(), *(one for _key, one in self.waiting)]

    def _wait(self, key: Any, consumer: QuorumConsumer) -> None:
        """Add a consumer to those that wait to be the active one, or replace it there."""
        rows = [(own, consumer if own == key else one) for own, one in self.waiting]
        self._sort_waiting(rows if key in dict(rows) else [*rows, (key, consumer)])

    def _sort_waiting(self, rows: list[tuple[Any, QuorumConsumer]]) -> None:
        """Sort by priority, credit and key, those that are up first."""

        def rank(row: tuple[Any, QuorumConsumer]) -> tuple[Any, ...]:
            own, one = row
            is_ranked = one.status == UP and self.rules.is_active_by_priority
            return (one.status != UP, -one.priority, -one.credit, key_order(own)) if is_ranked else (one.status != UP,)

        self.waiting = sorted(rows, key=rank)

    def _active(self) -> tuple[Any, QuorumConsumer] | None:
        """Return the single active consumer, which may be about to end."""
        return next((row for row in self.consumers.items() if row[1].is_active), None)

    def _activate_after(self, event: str) -> None:
        """Give the queue its single active consumer, if the version does that after a command, or after `AT_REMOVAL`."""
        if event in self.rules.activated_by:
            self._activate()

    def _activate(self) -> None:
        """Give a queue with a single active consumer its next one; a higher priority takes over from an idle one."""
        if not self.settings.is_single_active or not self.waiting or self.waiting[0][1].status != UP:
            return
        key, consumer = self.waiting[0]
        active = self._active()
        if active is not None and (not self.rules.is_active_by_priority or consumer.priority <= active[1].priority):
            return
        if active is not None and active[1].held:
            active[1].status, active[1].before = QUIESCING, ""
            return
        self.waiting.pop(0)
        existing = self.consumers.get(key)
        if existing is not None and self.rules.replaces_consumers:  # cancelled, it still holds messages
            existing.mode, existing.is_once, existing.priority = consumer.mode, consumer.is_once, consumer.priority
            consumer = existing
        self.consumers[key] = consumer
        self._queue(key, consumer)
        if active is not None:
            del self.consumers[active[0]]
            self._wait(*active)

    def _dequeue(self, time_ms: int, identity: Any, *, is_settled: bool) -> None:
        """Apply `basic.get`: a consumer that takes one message and vanishes with it."""
        if self.settings.is_single_active or self.count_ready() == 0 or self._find(identity) is not None:
            return
        once = ("simple_prefetch", 1)
        self._update(identity, QuorumConsumer(identity[0], identity[1], once, True, 0, 1))
        if not self._checkout_one(time_ms):
            self.consumers.pop(identity, None)
        elif is_settled:
            self._settle(0, time_ms, (None, identity, [0]))
            self.checkout(time_ms)
        else:
            self._monitor(identity[1])

    def _cancel_by_id(self, identity: Any, *, is_removal: bool) -> bool:
        key = self._key_of(identity, -1, is_new_form=True)
        if key == -1:
            return False
        consumer = self.consumers.get(key)
        if consumer is None:
            self.waiting = [row for row in self.waiting if row[0] != key]
            return True
        if is_removal:
            self._return_all(key, consumer, is_failed=False)
            self.consumers.pop(key, None)
        else:
            consumer.is_once, consumer.credit, consumer.status, consumer.before = True, 0, CANCELLED, ""
            self._update(key, consumer)
        self._activate_after(AT_REMOVAL)
        return True

    def _purge(self, _index: int, _time_ms: int, _command: Any) -> bool:
        for part in self.lists():
            part.clear()
        self.returns.clear()
        self.taken = self.ready_bytes = 0
        return False

    def _down(self, _index: int, time_ms: int, command: Any) -> bool:
        if command[2] == "noconnection" and self.rules.keeps_after_disconnect:
            for consumer in self._every_consumer():
                if consumer.pid == command[1]:
                    consumer.suspect()
            self._sort_waiting(self.waiting)
            self.checkout(time_ms)
            return False
        elif command[2] == "noconnection":
            self._disconnected(node_of(command[1]))
            self._activate_after(AT_REMOVAL)
        else:
            self._process_down(command[1])
        return True

    def _disconnected(self, node: str) -> None:
        """Return what the consumers of a node hold; they may come back."""
        for key, consumer in sorted(self.consumers.items(), key=lambda row: key_order(row[0])):
            if node_of(consumer.pid) == node and (consumer.status == UP or self.settings.is_single_active):
                consumer.status = SUSPECTED
                self._return_all(key, consumer, is_failed=True)
                if self.settings.is_single_active and self.consumers.pop(key, None) is not None:
                    self._wait(key, consumer)
        for key, consumer in list(self.waiting):
            if node_of(consumer.pid) == node:
                consumer.status = SUSPECTED
                self._wait(key, consumer)

    def _process_down(self, pid: Any) -> None:
        self.enqueuers.pop(pid, None)
        self._add_early(pid)
        self.waiting = [row for row in self.waiting if row[1].pid != pid]
        for key in sorted((key for key, one in self.consumers.items() if one.pid == pid), key=key_order):
            self._return_all(key, self.consumers[key], is_failed=True)
            self.consumers.pop(key, None)
            self._activate_after(AT_REMOVAL)

    def _purge_nodes(self, _index: int, _time_ms: int, command: Any) -> bool:
        nodes = {str(node) for node in command[1]} if isinstance(command[1], list) else set()
        pids = [*self.enqueuers, *(one.pid for one in self.consumers.values()), *(one.pid for _key, one in self.waiting)]
        for pid in dict.fromkeys(pids):
            if node_of(pid) in nodes:
                self._process_down(pid)
        return False

    def _node_up(self, _index: int, _time_ms: int, command: Any) -> bool:
        for key, consumer in sorted(self.consumers.items(), key=lambda row: key_order(row[0])):
            is_revived = consumer.before != "" if self.rules.keeps_after_disconnect else consumer.status != CANCELLED
            if is_revived and node_of(consumer.pid) == command[1]:
                consumer.revive()  # before version 8, up: also the active consumer that was to hand over to another one
                self._update(key, consumer)
        for _key, consumer in self.waiting:
            if consumer.status == SUSPECTED and node_of(consumer.pid) == command[1]:
                consumer.revive()
        self._sort_waiting(self.waiting)
        return True

    def _update_config(self, _index: int, _time_ms: int, command: Any) -> bool:
        if isinstance(command[1], dict):
            self.settings = Settings.of(command[1])
            if command[1].get(Atom("delayed_retry"), _DISABLED) != _DISABLED:
                self.unknown = "delayed_retry"
            if not self.rules.can_reject:
                self._drop_head()
            if self.settings.dead_letters != AT_LEAST_ONCE:
                self.dead = DeadLetters()
        return True

    def _timeout(self, _index: int, time_ms: int, command: Any) -> bool:
        name = command[1]
        if isinstance(name, tuple) and len(name) == 2 and name[0] == "consumer_disconnected_timeout":
            return self._gone(name[1])
        if name in ("expire_msgs", ("expire_msgs", "shallow")):
            self._expire_lists(time_ms)
        elif self.rules.keeps_after_disconnect:
            self.unknown = f"timeout {name}"
        return True

    def _gone(self, key: Any) -> bool:
        """Return what a consumer holds that was not heard of for a while; a cancelled one ends, another one may wait."""
        consumer = self.consumers.get(key)
        if consumer is None or not consumer.before:
            return False
        self._return_all(key, consumer, is_failed=False)
        is_left = self.settings.is_single_active and self.consumers.pop(key, None) is not None
        if is_left and consumer.before != CANCELLED:
            consumer.before = UP
            self.waiting.append((key, consumer))
        self._activate()
        return True

    def _dlx(self, _index: int, _time_ms: int, command: Any) -> bool:
        inner, dead = command[1], self.dead
        if self.settings.dead_letters == AT_LEAST_ONCE and isinstance(inner, tuple) and inner:
            if inner[0] == "settle" and len(inner) == 2:
                for number in message_ids(inner[1]):
                    dead.held.pop(number, None)
            elif inner[0] == "checkout" and len(inner) == 3 and isinstance(inner[2], int):
                if dead.pid != inner[1]:
                    dead.waiting.extendleft(dead.held[number] for number in sorted(dead.held, reverse=True))
                    dead.held, dead.next_id = {}, 0
                dead.pid, dead.prefetch = inner[1], inner[2]
        return True

    # Delivery

    def checkout(self, time_ms: int) -> None:
        """Drop expired messages, give messages to consumers, apply the limits; each round takes a message or a consumer."""
        while self._checkout_one(time_ms):
            pass
        dead = self.dead
        while dead.pid is not None and dead.waiting and len(dead.held) < dead.prefetch:
            dead.held[dead.next_id] = dead.waiting.popleft()
            dead.next_id += 1
        self._apply_limits()

    def _checkout_one(self, time_ms: int) -> bool:
        self._expire(time_ms)
        while True:
            first = self._first_in_service()
            consumer = None if first is None else self.consumers.get(first[1])
            is_gone = consumer is None and self.rules.has_consumer_priority  # such a one leaves without a message, too
            if first is None or (self._next() is None and not is_gone):
                return False
            first[0].popleft()
            if consumer is not None and consumer.credit > 0 and consumer.status == UP:
                self._deliver(first[1], consumer)
                return True

    def _deliver(self, key: Any, consumer: QuorumConsumer) -> None:
        message = self._take()
        if message is not None:
            consumer.held[consumer.next_id] = message
            consumer.next_id += 1
            consumer.credit -= 1
            consumer.delivery_count += 1
            self.ready_bytes -= message.size
            self._update(key, consumer)

    def _expire(self, time_ms: int) -> None:
        while (message := self._next()) is not None and message.is_expired(time_ms):
            self._drop("expired", self._take())
            self._expire_lists(time_ms)

    def _expire_lists(self, time_ms: int) -> None:
        """Drop expired messages at the head of every list, also those that are not next, if the version does that."""
        if not self.rules.expires_every_list:
            return
        while self.returns and self.returns[0].is_expired(time_ms):
            self._drop("expired", self.returns.popleft())
        for part in self.lists():
            while (message := part.first) is not None and message.is_expired(time_ms):
                self._drop("expired", part.popleft())

    def _drop(self, reason: str, message: QuorumContent | None) -> None:
        if message is not None:
            self.ready_bytes -= message.size
            self._dead_letter(reason, message)

    def _apply_limits(self) -> None:
        while self.settings.drops_head and self._is_over_limit() and self.count_ready():
            self._drop("maxlen", self._take())

    def _is_over_limit(self) -> bool:
        length, size = self.settings.max_length, self.settings.max_bytes
        if length is not None and self.count_ready() + len(self.dead.waiting) + len(self.dead.held) > length:
            return True
        return size is not None and self.ready_bytes + sum(message.size for _reason, message in self.dead.every()) > size

    def _dead_letter(self, reason: str, message: QuorumContent) -> None:
        self.dropped[message.index] = reason
        if self.settings.dead_letters == AT_LEAST_ONCE:
            self.dead.waiting.append((reason, message))

    # Consumers

    def _add_credit(self, consumer: QuorumConsumer, count: int) -> None:
        if consumer.is_once or consumer.mode[0] != "simple_prefetch":
            return
        limit = consumer.mode[1]
        is_capped = limit and self.rules.caps_credit
        consumer.credit = min(limit, consumer.credit + count) if is_capped else consumer.credit + count

    def _update(self, key: Any, consumer: QuorumConsumer) -> None:
        if consumer.is_once and consumer.credit == 0:
            if consumer.held:
                self.consumers[key] = consumer
            else:
                self.consumers.pop(key, None)
            return
        if consumer.status == QUIESCING and not consumer.held:
            consumer.status = UP
            self.consumers.pop(key, None)
            self._wait(key, consumer)
            return
        self.consumers[key] = consumer
        self._queue(key, consumer)

    def _queue(self, key: Any, consumer: QuorumConsumer) -> None:
        if consumer.credit > 0 and consumer.status == UP and not any(key in part for part in self.service.values()):
            self.service.setdefault(consumer.priority, deque()).append(key)

    def _first_in_service(self) -> tuple[deque[Any], Any] | None:
        for priority in sorted(self.service, reverse=True):
            if self.service[priority]:
                return self.service[priority], self.service[priority][0]
        return None


def _priority(meta: Any) -> int:
    """Return the consumer's priority: in 4.0 a field, before an argument of the consumer."""
    found = meta.get(Atom("priority")) if isinstance(meta, dict) else None
    if isinstance(found, int):
        return found
    arguments = meta.get(Atom("args")) if isinstance(meta, dict) else None
    for row in arguments if isinstance(arguments, list) else []:
        if isinstance(row, tuple) and len(row) == 3 and row[0] == b"x-priority" and isinstance(row[2], int):
            return row[2]
    return 0


def _from_reply_mode(command: Any, reply_mode: Any) -> tuple[Any, Any]:
    """Return process and number of a version-4 enqueue; without a process it has no number either."""
    has_pid = isinstance(reply_mode, tuple) and len(reply_mode) == 3 and reply_mode[0] == "notify"
    return (reply_mode[2], command[1]) if has_pid else (UNDEFINED, UNDEFINED)


_ENQUEUES: dict[tuple[str, int], Callable[[Any, Any], tuple[Any, Any]]] = {
    ("e", 4): _from_reply_mode,
    ("enqueue", 4): lambda command, _reply: (command[1], command[2]),
}
_WITHOUT_EFFECT = ("garbage_collection", "nodedown", "machine_version")
_COMMANDS: dict[tuple[str, int], Callable[[Machine, int, int, Any], bool]] = {
    ("register_enqueuer", 2): Machine._register,
    ("checkout", 4): Machine._checkout,
    ("settle", 3): Machine._settle,
    ("return", 3): Machine._return,
    ("discard", 3): Machine._discard,
    ("modify", 6): Machine._modify,
    ("requeue", 6): Machine._requeue,
    ("credit", 5): Machine._credit,
    ("purge", 1): Machine._purge,
    ("purge_nodes", 2): Machine._purge_nodes,
    ("update_config", 2): Machine._update_config,
    ("down", 3): Machine._down,
    ("nodeup", 2): Machine._node_up,
    ("timeout", 2): Machine._timeout,
    ("dlx", 2): Machine._dlx,
}
_CONVERSIONS: dict[int, Callable[[Machine], None]] = {
    1: Machine._drop_head,
    2: Machine._keep_indexes,
    3: Machine._cap_credit,
    4: Machine._make_two_lists,
    8: Machine._make_strict_lists,
}
