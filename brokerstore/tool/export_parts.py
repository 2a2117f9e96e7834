"""An export into a file that can be interrupted and goes on where it stopped.

What is exported goes into parts beside the file: `OUT.part-1`, `OUT.part-2`, ...  A part is closed ("sealed") after SEAL_SIZE
bytes of the folder, and when SIGINT or SIGTERM asks to stop; then the note `OUT.part.json` says how far all sealed parts come.
The same command again goes on from there.  A part that was not sealed (a killed process, a full disk) is written anew.  In the
end the parts become the file, which stands there only when it is whole: a single part by renaming, several by joining them.
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

from .export_forms import PARTS, Part, join
from .output import say

SEAL_SIZE = 4 << 30
NOTE_VERSION = 2


class Parts:
    """The parts of one export.

    `about` says what is exported, in JSON's types; a note about anything else is refused with `InvalidMessage`.  `position` is
    where to go on, in the exporter's own terms: 0 at the beginning, then what `write` was told last.  `rows`: the
    messages of all parts.
    """

    def __init__(self, out: str, form: str, about: dict[str, Any]) -> None:
        """Reads the note, if there is one."""
        self._out, self._form = out, form
        self._about = {"version": NOTE_VERSION, "form": form, **about}
        self._note = f"{out}.part.json"
        self._open: Part | None = None
        self._unsealed = 0
        self.position = self.sealed = self.problems = self.rows = 0
        self._read_note()

    def _read_note(self) -> None:
        try:
            with open(self._note, encoding="utf-8") as file:
                said = json.load(file)
            names = ("position", "parts", "problems", "rows")
            self.position, self.sealed, self.problems, self.rows = (int(said.pop(name)) for name in names)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InvalidMessage(f"{self._note}: not a progress file of an export: {error}; remove it to restart") from error
        is_ours = said == json.loads(json.dumps(self._about))
        if (
            is_ours and not self._has_parts() and os.path.exists(self._out)
        ):  # it ended between the file's place and the note's end
            self.position = self.sealed = self.problems = self.rows = 0
            return
        if not is_ours or not self._has_parts():
            raise InvalidMessage(f"{self._note} belongs to another export; remove it to start again, or choose another --out")
        say(f"brokerstore: continuing the interrupted export at {self.position}")

    def _has_parts(self) -> bool:
        return all(os.path.exists(part) for part in self._names())

    def _names(self) -> list[str]:
        return [f"{self._out}.part-{number}" for number in range(1, self.sealed + 1)]

    def write(self, item: Any, position: int, size_bytes: int, rows: int) -> None:
        """What comes next, where to go on behind it, how many bytes of the folder it was, and how many messages it has."""
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
        """Close the part that is open, and note that it counts."""
        if self._open is None:
            return
        self._open.close()
        self._open, self._unsealed = None, 0
        self.sealed += 1
        about = {**self._about, "position": self.position, "parts": self.sealed, "problems": self.problems, "rows": self.rows}
        with open(f"{self._note}.new", "w", encoding="utf-8") as file:
            json.dump(about, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{self._note}.new", self._note)

    def finish(self) -> None:
        """The file in its place, and nothing beside it."""
        self.seal()
        names = self._names()
        if len(names) > 1:
            join(self._form, names, f"{self._out}.part")
            os.replace(f"{self._out}.part", self._out)
        else:
            os.replace(names.pop(), self._out)
        for name in (*names, self._note):
            os.unlink(name)

    def drop_open(self) -> None:
        """Forget what is not sealed."""
        if self._open is not None:
            with contextlib.suppress(Exception):
                self._open.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._out}.part-{self.sealed + 1}")
            self._open = None


@contextlib.contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came: they are looked at between two writes, so that a part is never half written."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt  # asked twice: at once
        came.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_parts(parts: Parts, items: Iterator[tuple[Any, int, int, int]], problems: list[Any]) -> None:
    """Write all items; after a signal, seal the part and raise `KeyboardInterrupt`, so that the next run continues.

    `problems` grows while the items are read.
    """
    before = parts.problems
    try:
        with stop_asked() as is_asked:
            for item in items:
                parts.problems = before + len(problems)
                parts.write(*item)
                if is_asked():
                    parts.seal()
                    say("brokerstore: interrupted; run the same command to continue")
                    raise KeyboardInterrupt
            parts.finish()
    except BaseException:
        parts.drop_open()
        raise
