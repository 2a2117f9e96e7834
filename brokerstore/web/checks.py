"""`verify` and `recover` of whole folders, each in a process of its own that runs the tool, so that no page waits for them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

ANSWER_MAX = 8 << 20  # bytes of JSON that a page takes in; a greater answer is left to the command line
VERBS = ("verify", "recover")


class Check:
    """One run of a verb; `facts` is its answer, None while it runs, and if it is too large or an error."""

    def __init__(self, verb: str, words: list[str]) -> None:
        """Start the process of the verb."""
        self.began_ms, self.seconds, self.error = int(time.time() * 1000), 0.0, ""
        self.facts: dict[str, Any] | None = None
        self._out, self._talk = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - until `stop`
        self._began, self._is_read = time.monotonic(), False
        command = [sys.executable, "-m", "brokerstore", verb, "--json", "--quiet", *words]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._talk)

    @property
    def is_running(self) -> bool:
        """Whether the process runs; when it has ended, its answer is read once."""
        if self._is_read:
            return False
        is_running, self.seconds = self._process.poll() is None, time.monotonic() - self._began
        if not is_running:
            self._is_read = True
            self._out.seek(0)
            self._talk.seek(0)
            found = self._out.read(ANSWER_MAX + 1)
            if len(found) > ANSWER_MAX:
                self.error = f"The answer has more than {ANSWER_MAX >> 20} MiB; the command line shows all of it."
            elif found:
                self.facts = json.loads(found)
            else:
                self.error = self._talk.read(4096).decode("utf-8", "replace")
        return is_running

    def stop(self) -> None:
        """End the process, if it runs still."""
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._talk.close()
