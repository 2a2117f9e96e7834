"""What every put looks at before all else."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from storebytes._bytes_cy import SOURCE_HASH, Bool


class Gate:
    """`accepts_puts` is set by the running flags, `is_idle` by the dispatcher: it sleeps and wants to be woken."""

    __slots__ = ("accepts_puts", "is_idle")

    def __init__(self) -> None:
        """Shut."""
        self.accepts_puts: Bool = False
        self.is_idle: Bool = False


def is_compiled() -> bool:
    """Which build runs."""
    return cython.compiled


def source_hash() -> int:
    """Of the source this was built from; 0 when plain."""
    return SOURCE_HASH
