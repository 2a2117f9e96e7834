"""The mutation run inside one pytest: tests are collected once, and each mutant gets a forked child of that process.

The child replaces the changed function's code object in every loaded copy of the module.  Then it runs the tests that reach
the changed line until one fails: those of the default tier first, and in each tier the fastest first.  No source file is
written.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.generate import Mutant, changed, lines_of

KILLED, SURVIVED, TIMED_OUT, UNREACHED, INVALID = "killed", "survived", "timed out", "unreached", "invalid"
EXITS = {1: KILLED, 0: SURVIVED, 3: INVALID}
WALL_S = 45.0  # in addition to ten times the tests' time; a deadlock costs this wait
MEMORY_BYTES = 6 << 30
FILE_BYTES = 1 << 30
GIVEN_UP = signal.SIGKILL


class Timed(NamedTuple):
    """A test and its duration."""

    item: Any
    seconds: float

    @property
    def tier(self) -> str:
        """Return `default` for a test of `make test`, and `deep` for others."""
        return "deep" if any(self.item.get_closest_marker(name) for name in ("deep", "spark", "interop")) else "default"


class Running(NamedTuple):
    """A running child and its deadline."""

    mutant: Mutant
    until: float
    folder: str
    printed: str  # the file with the id of the test that the child runs
    tiers: dict[str, str]  # of its tests


class MutantRun:
    """A pytest plugin that replaces the loop over tests."""

    def __init__(
        self,
        root: Path,
        sources: dict[str, str],
        expected: list[Mutant],
        done: Path,
        profile: Path,
        *,
        budget_s: float,
        jobs: int,
    ) -> None:
        """Set up a run that tries `expected` in order and appends each outcome to `done` as a line."""
        self.root = root
        self.sources = sources
        self.expected = expected
        self.done = done
        self.profile = profile
        self.budget_s = budget_s
        self.jobs = jobs
        self.reached: dict[tuple[str, int], list[Timed]] = {}
        self.functions: dict[tuple[str, str, int], list[types.FunctionType]] = {}
        self.running: dict[int, Running] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure the tests once, then try every mutant."""
        self.session = session
        if not self.profile.exists():
            self._in_child(self._measure)
        self._read_profile()
        self._warm()
        for mutant in self.expected:
            while len(self.running) >= self.jobs:
                self._reap()
            self._begin(mutant)
        while self.running:
            self._reap()
        return True

    # Measuring

    def _in_child(self, work: Any) -> None:
        """Run `work` in a child, so that side effects of tests stay out of this process."""
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException as error:
                print(f"measuring failed: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit("the tests could not be measured")

    def _measure(self) -> None:
        """Run every test once, unchanged, and record its time, the lines that it reaches, and the imported modules.

        A test that takes longer than the budget is dropped, since no mutant has time for it.
        """
        import coverage

        signal.signal(signal.SIGPROF, _too_long)

        files = [str(self.root / file) for file in self.sources]
        measured = coverage.Coverage(data_file=None, include=files, config_file=False)
        tests: dict[str, float] = {}
        measured.start()
        for item in self.session.items:
            measured.switch_context(item.nodeid)
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, 2 * self.budget_s)  # coverage doubles the time
            is_quick = _passes(item)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if is_quick:
                tests[item.nodeid] = time.process_time() - began
        measured.stop()
        data = measured.get_data()
        lines = {os.path.relpath(file, self.root): dict(data.contexts_by_lineno(file)) for file in data.measured_files()}
        self.profile.write_text(json.dumps({"tests": tests, "lines": lines, "modules": sorted(sys.modules)}))

    def _read_profile(self) -> None:
        found = json.loads(self.profile.read_text())
        items = {item.nodeid: item for item in self.session.items}
        for file, lines in found["lines"].items():
            for line, names in lines.items():
                tests = [Timed(items[name], found["tests"][name]) for name in names if name in items and name in found["tests"]]
                self.reached[file, int(line)] = sorted(tests, key=lambda test: test.seconds)
        self.modules = found["modules"]

    # Changing

    def _warm(self) -> None:
        """Import what the tests import, and find every function that may be changed."""
        from tests.builds import load

        load("plain")
        for name in self.modules:
            if not name.startswith(("_pytest", "pytest", "__")) and name not in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        files = {str(self.root / file): file for file in self.sources}
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__code__.co_filename in files:
                code = found.__code__
                position = files[code.co_filename], code.co_qualname, code.co_firstlineno
                self.functions.setdefault(position, []).append(found)
        gc.freeze()

    def _plant(self, mutant: Mutant) -> bool:
        """Replace the function's code; return whether the function was found."""
        path = str(self.root / mutant.file)
        made = compile(changed(mutant, self.sources[mutant.file]), path, "exec", dont_inherit=True)
        was = compile(self.sources[mutant.file], path, "exec", dont_inherit=True)
        old = {(code.co_qualname, code.co_firstlineno): code for code in _codes(was)}
        planted = False
        for code in _codes(made):
            position = code.co_qualname, code.co_firstlineno
            for function in self.functions.get((mutant.file, *position), ()):
                if old.get(position) != code:
                    function.__code__ = code
                    planted = True
        return planted

    # Trying

    def _begin(self, mutant: Mutant) -> None:
        tests = self._chosen(mutant)
        if not tests:
            self._write(mutant, UNREACHED)
            return
        seconds = sum(test.seconds for test in tests)
        folder = tempfile.mkdtemp(prefix="mutant-")
        printed = os.path.join(folder, "said")
        child = os.fork()
        if child == 0:
            self._be_child(mutant, tests, seconds, folder, printed)
        tiers = {test.item.nodeid: test.tier for test in tests}
        self.running[child] = Running(mutant, time.monotonic() + WALL_S + 10 * seconds, folder, printed, tiers)

    def _chosen(self, mutant: Mutant) -> list[Timed]:
        """Return the fastest tests that reach the line, as many as the budget allows, the default tier's first."""
        chosen, spent = [], 0.0
        for test in self.reached.get((mutant.file, mutant.line), []):
            if chosen and spent + test.seconds > self.budget_s:
                break
            chosen.append(test)
            spent += test.seconds
        return sorted(chosen, key=lambda test: (test.tier == "deep", test.seconds))

    def _be_child(self, mutant: Mutant, tests: list[Timed], seconds: float, folder: str, printed: str) -> None:
        """Run the tests on the mutant and exit with the outcome's code."""
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        cpu_s = int(20 + 10 * seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        self.session.config._tmp_path_factory._basetemp = Path(folder)  # type: ignore[attr-defined]
        code = 3
        try:
            if self._plant(mutant):
                code = 0
                for test in tests:
                    Path(printed).write_text(test.item.nodeid)
                    if not _passes(test.item):
                        code = 1
                        break
        except BaseException:
            if code == 0:  # a mutant may raise anything, also in a fixture's teardown
                code = 1
        finally:
            os._exit(code)

    def _reap(self) -> None:
        """Record the outcome of one child that ended or is over its time; otherwise wait 10 ms."""
        for child, running in list(self.running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            is_late = time.monotonic() > running.until
            if not ended and not is_late:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            if not ended:
                os.waitpid(child, 0)
                outcome = TIMED_OUT
            elif os.WIFSIGNALED(status):
                outcome = TIMED_OUT if os.WTERMSIG(status) in (signal.SIGXCPU, GIVEN_UP) else KILLED
            else:
                outcome = EXITS.get(os.WEXITSTATUS(status), KILLED)
            is_noticed = outcome in (KILLED, TIMED_OUT) and os.path.exists(running.printed)
            test = Path(running.printed).read_text() if is_noticed else ""
            shutil.rmtree(running.folder, ignore_errors=True)
            del self.running[child]
            self._write(running.mutant, outcome, test, running.tiers.get(test, ""))
            return
        time.sleep(0.01)

    def _write(self, mutant: Mutant, outcome: str, test: str = "", tier: str = "") -> None:
        before, after = lines_of(mutant, self.sources[mutant.file])
        row = {
            "key": mutant.key, "file": mutant.file, "line": mutant.line, "function": mutant.function, "kind": mutant.kind,
            "before": before, "after": after, "outcome": outcome, "test": test, "tier": tier,
        }  # fmt: skip
        with self.done.open("a") as out:
            out.write(json.dumps(row) + "\n")
        if outcome == SURVIVED:
            print(f"{mutant.file}:{mutant.line} {mutant.function}: {before}  ->  {after}", file=sys.__stdout__, flush=True)


def _too_long(_signal: int, _frame: Any) -> None:
    raise TimeoutError("longer than the budget")


def _passes(item: Any) -> bool:
    """Set up, call and tear down one test; return whether it passed."""
    return all(report.passed or report.skipped for report in runtestprotocol(item, log=False, nextitem=None))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all code objects within it."""
    yield code
    for found in code.co_consts:
        if isinstance(found, types.CodeType):
            yield from _codes(found)
