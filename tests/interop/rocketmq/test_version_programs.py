"""Random programs on one folder with the stores of all years: that version's own store delivers what the log has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagestore.broker_versions import BROKER_VERSIONS, BY_NAME
from messagestore.checkpoint import read_checkpoint
from storageio import REAL_DISK
from tests.amounts import amount
from tests.stores import problem_kinds

from .jvm import prepare_or_skip, why_not
from .programs import HIDDEN, MOST_STEPS, TOPIC, Program, by_key, by_tag, of_log
from .real_store import RealStore, RealStores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
PROGRAMS = int(os.environ.get("BROKERSTORE_PROGRAMS", amount(3, 100)))
SEED = int(os.environ.get("BROKERSTORE_SEED", "1"))
OPEN_AT_ONCE = 20
QUERY_MOST = 64  # what the driver asks for


@pytest.fixture(params=[version.name for version in BROKER_VERSIONS])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, RealStores]]:
    """Start one JVM for all programs of a version."""
    prepare_or_skip(request.param)
    jvm = RealStores(tmp_path / "stderr", main="Stores", version=request.param, heap="768m")
    yield request.param, jvm
    jvm.end()


class StoreProgram(Program):
    """The real system is a store in the JVM, which the caller closes after each step together with those of other programs."""

    def __init__(self, seed: int, version: str, root: Path, jvm: RealStores) -> None:
        super().__init__(seed, version, root)
        self.jvm = jvm
        self.opened: RealStore | None = None
        self.is_accelerated = BY_NAME[version].has_logics_offset and self.random.random() < 0.5

    def open(self) -> RealStore:
        """Open the folder in the real store; it stays open until the end of the step."""
        self.starts += 1
        settings = dict(self.settings)
        if self.is_accelerated and self._has_logics_offset():
            settings["enableAcceleratedRecovery"] = True
        self.opened = self.jvm.open(self.folder, **settings)
        return self.opened

    def _has_logics_offset(self) -> bool:
        """Return whether the checkpoint has the offset; else such a store refuses what a kill left, its own folder too."""
        path = self.folder / "checkpoint"
        return path.exists() and read_checkpoint(REAL_DISK, str(path)).values.logics_physical_offset > 0

    def send(self) -> None:
        """Let the real store put messages."""
        self._put_real(self.open())

    def send_and_kill(self) -> None:
        """Let the real store put messages, and go on with what a kill leaves, often with queues behind the log."""
        self._put_real(self.open(), settle=self.random.random() < 0.5)
        self.folder = self.copy_as_killed()

    def _put_real(self, real: RealStore, *, settle: bool = True) -> None:
        messages = [
            one | {"properties": {"TAGS": one["tags"], "KEYS": one["keys"][0], "WAIT": "true"}} for one in self.messages()
        ]
        real.invoke("put", messages=messages, settle=settle)

    def judge(self) -> None:
        """Compare what the real store delivers and finds with the log."""
        is_killed = (self.folder / "abort").exists()  # then it deletes the index, and indexes only what it recovers
        expected = {topic: offsets for topic, offsets in of_log(self.folder).items() if not topic.startswith(HIDDEN)}
        real = self.open()
        found = real.invoke("consumed", requested=list(expected))
        assert {topic: sorted(set(offsets)) for topic, offsets in found.items()} == expected, str(self)
        requests: list[tuple[str, Any]] = [("queries", {f"k{number}": by_key for number in range(7)})]
        if BY_NAME[self.version].has_tag_items:
            requests.append(("tags", dict.fromkeys("ab", by_tag)))
        for do, names in requests:
            answers = real.invoke(do, requested=[[TOPIC, name] for name in names])
            for (name, model), answer in zip(names.items(), answers, strict=True):
                latest = model(self.folder, TOPIC, name)[-QUERY_MOST:]
                assert answer == latest or (is_killed and set(answer) <= set(latest)), f"{do} {name}: {self}"


def close(jvm: RealStores, programs: list[StoreProgram]) -> None:
    """Close what a step has opened, all together: each shutdown sleeps for seconds."""
    jvm.close([program.opened for program in programs if program.opened is not None])
    for program in programs:
        program.opened = None


def test_the_store_of_each_version_delivers_what_random_programs_left(
    stores: tuple[str, RealStores], tmp_path: Path
) -> None:  # fmt: skip
    """BROKERSTORE_PROGRAMS sets how many: puts and kills of both sides, and cuts that we repair."""
    version, jvm = stores
    for first in range(SEED, SEED + PROGRAMS, OPEN_AT_ONCE):
        programs = []
        for seed in range(first, min(first + OPEN_AT_ONCE, SEED + PROGRAMS)):
            root = tmp_path / str(seed)
            root.mkdir()
            programs.append(StoreProgram(seed, version, root, jvm))
        for turn in range(MOST_STEPS):
            running = [program for program in programs if turn < len(program.steps)]
            for program in running:
                program.steps[turn]()
            close(jvm, running)
            for program in running:
                program.repair(program.steps[turn].__name__)
        for program in programs:
            program.judge()
        close(jvm, programs)
        for program in programs:
            assert problem_kinds(program.folder) <= ({"missing_item"} if program.kills else set()), str(program)
            print(program, flush=True)
            shutil.rmtree(program.root)
