"""A Celery application on a folder, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CELERY = [sys.executable, "-m", "celery", "--app", "jobs"]


class Site:
    """A folder with the application `jobs`, its store and its processes, each in a process group of its own."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        (folder / "jobs.py").write_text(source)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `celery worker WORDS`."""
        self._started += 1
        name = f"w{self._started}"
        return self.start_command("worker", "--loglevel", "warning", "--hostname", f"{name}@here", *words, log=f"{name}.log")

    def start_command(self, *words: str, log: str) -> subprocess.Popen[bytes]:
        """Start `celery WORDS`, which ends with the site."""
        with (self.folder / log).open("wb") as file:
            worker = subprocess.Popen(
                [*CELERY, *words], cwd=self.folder, env=self._environment, stdout=file, stderr=file, start_new_session=True
            )
        self.workers.append(worker)
        return worker

    def invoke(self, *words: str) -> str:
        """Return what `celery WORDS` prints."""
        return self._run([*CELERY, *words]).stdout

    def run(self, program: str, *arguments: object) -> Any:
        """Run a program with the application's module; return `found`, which it sets."""
        whole = f"import json, sys, time, jobs\n{program}\nprint(json.dumps(found))"
        ran = self._run([sys.executable, "-c", whole, *map(str, arguments)])
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )

    def ran(self) -> list[int]:
        """Return the numbers of the tasks that ran to their end."""
        with contextlib.suppress(FileNotFoundError):
            return [int(line) for line in (self.folder / "ran.txt").read_text().split()]
        return []

    def kill(self, worker: subprocess.Popen[bytes], how: str) -> None:
        """Kill a worker's main process, or its whole group."""
        with contextlib.suppress(ProcessLookupError):
            if how == "main":
                os.kill(worker.pid, signal.SIGKILL)
            else:
                os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(20)
        self.workers.remove(worker)

    def stop(self) -> None:
        """Stop all processes as SIGTERM does."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait(20)


def pool_processes(worker: subprocess.Popen[bytes]) -> list[int]:
    """Return the ids of the processes of a worker's pool."""
    return [int(one) for one in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]


def processor_s(worker: subprocess.Popen[bytes]) -> float:
    """Return the processor time that a worker's main process used."""
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
