"""Counts of what a run of the lab tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """Crash images: how many were opened and checked, and where they came from."""

    images: int = 0
    again: int = 0  # including crashes of recoveries
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)  # (operation, kind of file that was unsettled)
    _seen: set[int] = field(default_factory=set)

    def is_new(self, key: int) -> bool:
        """Return whether no image with this content was seen before."""
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def count(self, operation: str, kinds: set[str]) -> None:
        """Count one more image."""
        for kind in kinds:
            self.by_kind[operation, kind] += 1

    def table(self) -> str:
        """Return operations by kinds of file, as text."""
        operations = sorted({operation for operation, _ in self.by_kind})
        kinds = sorted({kind for _, kind in self.by_kind})
        lines = [" ".join(["operation".ljust(14), *(kind.rjust(10) for kind in kinds)])]
        for operation in operations:
            counts = (str(self.by_kind[operation, kind]).rjust(max(10, len(kind))) for kind in kinds)
            lines.append(" ".join([operation.ljust(14), *counts]))
        return "\n".join([f"{self.images} crash images opened and checked, {self.again} of them of recoveries", *lines])
