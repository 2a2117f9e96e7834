"""`verify` and `recover` of whole folders, each in a process of its own that runs the tool, so that no page waits for them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

ANSWER_MAX = 8 << 20  # bytes of JSON that a page takes in; a greater answer is only downloaded
VERBS = ("verify", "recover")


class Checked(NamedTuple):
    """The state of one check: None in place of `facts` while it runs, and if its answer is too large or was an error."""

    is_running: bool
    seconds: float
    began_ms: int
    facts: dict[str, Any] | None
    error: str
    json: bytes


class Check:
    """One run of a verb of the tool."""

    def __init__(self, verb: str, words: list[str]) -> None:
        """Start the process."""
        self._out, self._talk = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - until `stop`
        self._began, self._began_ms = time.monotonic(), int(time.time() * 1000)
        self._took: float | None = None
        command = [sys.executable, "-m", "brokerstore", verb, "--json", "--quiet", *words]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._talk)

    def state(self) -> Checked:
        """Return how far the check is, and its answer."""
        if self._process.poll() is None:
            return Checked(True, time.monotonic() - self._began, self._began_ms, None, "", b"")
        if self._took is None:
            self._took = time.monotonic() - self._began
        self._out.seek(0)
        self._talk.seek(0)
        found, talk = self._out.read(ANSWER_MAX + 1), self._talk.read(4096).decode("utf-8", "replace")
        facts, error = None, talk
        if len(found) > ANSWER_MAX:
            error = f"The answer has more than {ANSWER_MAX >> 20} MiB; the command line shows all of it."
        elif found:
            facts, error = json.loads(found), ""
        return Checked(False, self._took, self._began_ms, facts, error, found if facts is not None else b"")

    def stop(self) -> None:
        """End the process, if it runs still, and forget its answer."""
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._talk.close()


class Checks:
    """The last check of each verb and folder."""

    def __init__(self) -> None:
        """No check runs yet."""
        self._found: dict[tuple[int, str], Check] = {}

    def start(self, number: int, words: list[str]) -> None:
        """Start every check of a folder anew, unless one runs."""
        if any(self.state(number, verb).is_running for verb in VERBS if (number, verb) in self._found):
            return
        self.forget(number)
        for verb in VERBS:
            self._found[number, verb] = Check(verb, words)

    def state(self, number: int, verb: str) -> Checked:
        """Return the state of a check that was started."""
        return self._found[number, verb].state()

    def states(self, number: int) -> dict[str, Checked]:
        """Return the state of each check of a folder, empty if none was started."""
        return {verb: check.state() for (of, verb), check in self._found.items() if of == number}

    def forget(self, number: int) -> None:
        """Drop the answers of a folder, which a change makes outdated."""
        for key in [key for key in self._found if key[0] == number]:
            self._found.pop(key).stop()

    def stop(self) -> None:
        """End every process."""
        for number, _verb in list(self._found):
            self.forget(number)
