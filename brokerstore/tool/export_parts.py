"""An export into a file that can be interrupted and continued.

The export is written as parts beside the file: `OUT.part-1`, `OUT.part-2`, ...  A part is closed ("sealed") after SEAL_SIZE
bytes of the folder, and when SIGINT or SIGTERM arrives; then the progress file `OUT.part.json` records how far the sealed
parts reach. The same command continues from there.  A part that was not sealed, because the process was killed or the disk was
full, is written again.  At the end the parts become the file, which appears only when it is complete: a single part is
renamed, several are joined.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from storageio import InvalidMessage

from .export_forms import PARTS, ExportPart, join
from .output import print_line

SEAL_SIZE = 4 << 30
PROGRESS_VERSION = 2


class ExportParts:
    """The parts of one export.

    `about` describes the export in JSON's types; a progress file about another export raises `InvalidMessage`.  `position` is
    where to continue, in the exporter's own unit: 0 at the start, then the last one given to `write`.  `rows` counts the
    messages of all parts.
    """

    def __init__(self, out: str, form: str, about: dict[str, Any]) -> None:
        """Read the progress file, if there is one."""
        self._out, self._form = out, form
        self._about = {"version": PROGRESS_VERSION, "form": form, **about}
        self._progress = f"{out}.part.json"
        self._open: ExportPart | None = None
        self._unsealed = 0
        self.position = self.sealed = self.problems = self.rows = 0
        self._read_progress()

    def _read_progress(self) -> None:
        try:
            with open(self._progress, encoding="utf-8") as file:
                found = json.load(file)
            names = ("position", "parts", "problems", "rows")
            self.position, self.sealed, self.problems, self.rows = (int(found.pop(name)) for name in names)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            text = f"{self._progress}: not a progress file of an export: {error}; remove it to start again"
            raise InvalidMessage(text) from error
        is_same = found == json.loads(json.dumps(self._about))
        if is_same and not self._has_parts() and os.path.exists(self._out):  # it stopped after the last rename
            self.position = self.sealed = self.problems = self.rows = 0
            return
        if not is_same or not self._has_parts():
            advice = "remove it to start again, or choose another --out"
            raise InvalidMessage(f"{self._progress} belongs to another export; {advice}")
        print_line(f"brokerstore: continuing the interrupted export at {self.position}")

    def _has_parts(self) -> bool:
        return all(os.path.exists(part) for part in self._names())

    def _names(self) -> list[str]:
        return [f"{self._out}.part-{number}" for number in range(1, self.sealed + 1)]

    def write(self, item: Any, position: int, size_bytes: int, rows: int) -> None:
        """Write an item.

        `position` is where to continue after it, `size_bytes` counts bytes of the folder, `rows` the messages.
        """
        if self._open is None:
            file = open(f"{self._out}.part-{self.sealed + 1}", "wb")  # noqa: SIM115  (the part closes it)
            self._open = PARTS[self._form](file, self.sealed == 0)
        self._open.write(item)
        self.position = position
        self.rows += rows
        self._unsealed += size_bytes
        if self._unsealed >= SEAL_SIZE:
            self.seal()

    def seal(self) -> None:
        """Close the open part and record it in the progress file."""
        if self._open is None:
            return
        self._open.close()
        self._open, self._unsealed = None, 0
        self.sealed += 1
        about = {**self._about, "position": self.position, "parts": self.sealed, "problems": self.problems, "rows": self.rows}
        with open(f"{self._progress}.new", "w", encoding="utf-8") as file:
            json.dump(about, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{self._progress}.new", self._progress)

    def finish(self) -> None:
        """Move the finished file into place and remove everything beside it."""
        self.seal()
        names = self._names()
        if len(names) > 1:
            join(self._form, names, f"{self._out}.part")
            os.replace(f"{self._out}.part", self._out)
        else:
            os.replace(names.pop(), self._out)
        for name in (*names, self._progress):
            os.unlink(name)

    def drop_open(self) -> None:
        """Delete the part that is not sealed."""
        if self._open is not None:
            with contextlib.suppress(Exception):
                self._open.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._out}.part-{self.sealed + 1}")
            self._open = None


@contextlib.contextmanager
def is_stop_requested() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM arrived.

    The caller asks between two writes, so that no part is cut in the middle of one.
    """
    received: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt  # asked twice: stop immediately
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_parts(parts: ExportParts, items: Iterator[tuple[Any, int, int, int]], problems: list[Any]) -> None:
    """Write all items; after a signal, seal the part and raise `KeyboardInterrupt`, so that the next run continues.

    `problems` grows while the items are read.
    """
    before = parts.problems
    try:
        with is_stop_requested() as is_requested:
            for item in items:
                parts.problems = before + len(problems)
                parts.write(*item)
                if is_requested():
                    parts.seal()
                    print_line("brokerstore: interrupted; run the same command to continue")
                    raise KeyboardInterrupt
            parts.finish()
    except BaseException:
        parts.drop_open()
        raise
