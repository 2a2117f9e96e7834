"""The versions of a classic queue's index, as far as anything outside of the modules that read and write one knows them.

A new version is a row here, and a class in `READERS` and in `ENGINES` (ARCHITECTURE.md#where-to-change-what).
"""

from __future__ import annotations

from typing import NamedTuple

from .layout import V2_SEGMENT_ENTRIES


class IndexVersion(NamedTuple):
    """What the code must know of one version."""

    number: int
    endings: tuple[str, ...]  # of its files: `N.<ending>`, the index first
    name_line: bytes  # the end of `.queue_name`
    segment_entries: int | None  # None: `.config` has the number
    is_later: bool  # messages are containers, and a clean stop is that of RabbitMQ 4


VERSIONS = {
    one.number: one
    for one in (
        IndexVersion(1, ("idx",), b"\n", None, False),
        IndexVersion(2, ("qi", "qs"), b"\nINDEX: v2\n", V2_SEGMENT_ENTRIES, True),
    )
}
