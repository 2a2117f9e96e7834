"""The versions of a classic queue's index, as far as anything outside of the modules that read and write one knows them.

A new version is a row here and the modules that it names (ARCHITECTURE.md#where-to-change-what).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from .layout import V2_SEGMENT_ENTRIES


class IndexVersion(NamedTuple):
    """One version.  `reader` names a class of `read` with the interface `IndexReader`, `engine` one with `Index`."""

    number: int
    endings: tuple[str, ...]  # of its files: `N.<ending>`, the index first
    name_line: bytes  # the end of `.queue_name`
    segment_entries: int | None  # None: `.config` has the number
    is_later: bool  # messages are containers, and a clean stop is that of RabbitMQ 4
    reader_name: str
    engine_name: str

    def reader(self) -> Any:
        """Return the class that reads a folder at rest."""
        return _named(self.reader_name)

    def engine(self) -> Any:
        """Return the class of an open queue's index."""
        return _named(self.engine_name)


def _named(name: str) -> Any:
    """Import a class on its first use: the packages that have it are above this one."""
    module, _, found = name.partition(":")
    return getattr(import_module(module), found)


VERSIONS = {
    one.number: one
    for one in (
        IndexVersion(
            1, ("idx",), b"\n", None, False, "rabbitstore.read.index_v1:IndexV1",
            "rabbitstore.engine.queue_index_cy:QueueIndex",
        ),
        IndexVersion(
            2, ("qi", "qs"), b"\nINDEX: v2\n", V2_SEGMENT_ENTRIES, True, "rabbitstore.read.index_v2:IndexV2",
            "rabbitstore.engine.queue_index_v2:QueueIndexV2",
        ),
    )
}  # fmt: skip
