"""Parts of the state of a queue machine: consumers, limits, and messages that arrive or wait for dead-lettering."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..format.terms import UNDEFINED, Atom
from .messages import QuorumContent

UP, SUSPECTED, CANCELLED, QUIESCING = "up", "suspected_down", "cancelled", "quiescing"


@dataclass
class MessageInfo:
    """What the machine needs of an enqueued message."""

    size: int = 0
    ttl_ms: int | None = None
    priority: int | None = None
    delivery_count: int = 0
    properties_size: int = 0


@dataclass
class QuorumConsumer:
    """A consumer and the messages that it holds, by message id.

    From version 8 on, `before` is the status of one that is suspected to be down.
    """

    tag: Any
    pid: Any
    mode: tuple[Any, ...]
    is_once: bool
    priority: int
    credit: int
    status: str = UP
    before: str = ""
    next_id: int = 0
    held: dict[int, QuorumContent] = field(default_factory=dict)
    delivery_count: int = 0

    @property
    def is_active(self) -> bool:
        """Whether it may be the single active one, perhaps about to end, or with a lost connection."""
        return (self.before or self.status) in (UP, QUIESCING)

    def suspect(self) -> None:
        """Keep the status for the time when the node is up again; the server loses it if this happens twice."""
        is_lost = self.status == SUSPECTED and self.before != ""
        self.status, self.before = SUSPECTED, "" if is_lost else self.status

    def revive(self) -> None:
        """Take the status before."""
        self.status, self.before = self.before or UP, ""


@dataclass
class Settings:
    """The limits of a queue; None for no limit."""

    max_length: int | None = None
    max_bytes: int | None = None
    delivery_limit: int | None = None
    msg_ttl: int | None = None
    drops_head: bool = True
    is_single_active: bool = False
    dead_letters: str | None = None

    @classmethod
    def of(cls, config: dict[Any, Any]) -> Settings:
        """Return the settings in a `config` or in an `update_config` command."""
        handler = config.get(Atom("dead_letter_handler"))
        limit = _number(config.get(Atom("delivery_limit")))
        return cls(
            _number(config.get(Atom("max_length"))),
            _number(config.get(Atom("max_bytes"))),
            None if limit is not None and limit < 0 else limit,
            _number(config.get(Atom("msg_ttl"))),
            config.get(Atom("overflow_strategy")) != "reject_publish",
            config.get(Atom("single_active_consumer_on")) == "true",
            handler if isinstance(handler, str) else "at_most_once" if isinstance(handler, tuple) else None,
        )

    def put_into(self, config: dict[Any, Any]) -> dict[Any, Any]:
        """Return a `config` with these limits."""
        names = ("max_length", "max_bytes", "delivery_limit", "msg_ttl")
        limits = ((name, getattr(self, name)) for name in names)
        found = {Atom(name): UNDEFINED if limit is None else limit for name, limit in limits}
        return config | found | {Atom("overflow_strategy"): Atom("drop_head" if self.drops_head else "reject_publish")}


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


@dataclass
class DeadLetters:
    """Messages that wait for at-least-once dead-lettering, each with its reason."""

    waiting: deque[tuple[str, QuorumContent]] = field(default_factory=deque)
    held: dict[int, tuple[str, QuorumContent]] = field(default_factory=dict)
    next_id: int = 0
    pid: Any = None
    prefetch: int = 0

    def every(self) -> list[tuple[str, QuorumContent]]:
        """Return all of them, those that the dead-lettering process holds first."""
        return [*self.held.values(), *self.waiting]
