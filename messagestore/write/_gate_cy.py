"""What every put and every look-up looks at before all else."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool

NOTHING = -1


class Gate:
    """`accepts_puts` is set by the running flags, `is_closed` by the engine.

    The dispatcher sets `dispatched`, the physical offset before which all is in queues and index, and `is_idle`: it sleeps
    and wants to be woken.  A store without one, which reads beside a writer, has dispatched nothing (-1).
    """

    __slots__ = ("accepts_puts", "dispatched", "is_closed", "is_idle")

    def __init__(self) -> None:
        """Shut."""
        self.accepts_puts: Bool = False
        self.is_closed: Bool = False
        self.is_idle: Bool = False
        self.dispatched: I64 = NOTHING
