"""Run commands of the tool on one folder, in a child process with limits on memory and CPU time."""

from __future__ import annotations

import json
import os
import resource
import traceback
from pathlib import Path
from typing import Any

from tests.brokerstore.tool import run

MEMORY_MAX = 1536 << 20  # private memory; shared maps of files are not counted
CPU_MAX_S = 120
READING = [
    "info", "ls", "dump --limit 50", "dump --json --limit 50", "get --at 0", "tail", "stats", "stats --by hour", "verify",
    "recover", "export", "export --to csv", "query T key", "diff", "report",
]  # fmt: skip
WRITING = ["rebuild all --apply", "put T --body-file -", "recover --apply --skip-bad", "put T body"]


def examine(folder: Path, commands: list[str]) -> dict[str, tuple[int, str]]:
    """Run the commands in a limited child; return the exit code and the end of stderr of each."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(folder, commands, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the process died of {code} in {commands}: {text.decode()}"
    answer: dict[str, tuple[int, str]] = json.loads(text)
    for command, (code, talk) in answer.items():
        assert "internal error" not in talk and "Traceback" not in talk, (command, talk)
        assert code in (0, 1, 2, 3, 5, 6, 7), (command, code, talk)
    return answer


def _run(folder: str, command: str) -> Any:
    name, *options = command.split()
    before = [option for option in options if option.startswith("--")]
    if name in ("query", "put", "rebuild"):
        ran = run(name, folder, *options)
    elif name == "diff":
        ran = run(name, folder, folder)
    else:
        ran = run(name, *options, folder) if before else run(name, folder)
    return ran.code, ran.talk[-500:]


def _data_bytes() -> int:
    """Return the data size that RLIMIT_DATA counts."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def _answer(folder: Path, commands: list[str], pipe: int) -> None:
    """Set the limits, run the commands, write the answers to the pipe and end the child."""
    code = 1
    try:
        limit = _data_bytes() + MEMORY_MAX  # earlier tests may have left memory in the process
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        answer = {command: _run(str(folder), command) for command in commands}
        os.write(pipe, json.dumps(answer).encode())
        code = 0
    except BaseException:
        os.write(pipe, traceback.format_exc()[-4000:].encode())
    finally:
        os._exit(code)
