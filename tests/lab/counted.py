"""Count the crash images that were tried; the end of a test run prints the counts."""

from __future__ import annotations

from typing import Any


class Counted:
    """The reports of a test run, by build and part."""

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], Any] = {}

    def report(self, build: str, part: str) -> Any:
        from lab.report import Report

        return self.reports.setdefault((build, part), Report())

    @property
    def images(self) -> int:
        return sum(report.images for report in self.reports.values())

    def lines(self) -> list[str]:
        lines = [f"{self.images} crash images opened and checked"]
        for (build, part), report in self.reports.items():
            lines += ["", f"{part}, {build} kernels: {report.table()}"]
        return lines


COUNTED = Counted()
