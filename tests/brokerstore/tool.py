"""Running the tool inside the test process."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

from brokerstore.tool import main


class Ran(NamedTuple):
    """The result of one command."""

    code: int
    out: str
    talk: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: object) -> Ran:
    """Run `brokerstore ARGUMENTS` as its console script does."""
    out, talk = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(talk):
        code = main([str(argument) for argument in arguments])
    assert "Traceback" not in talk.getvalue()
    return Ran(code, out.getvalue(), talk.getvalue())
