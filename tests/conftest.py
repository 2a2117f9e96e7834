"""Fixtures for every test, and the tiers that tests belong to."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("BROKERSTORE_CHECK", "1")  # before storageio is imported

from tests import archives
from tests.amounts import IS_NIGHT
from tests.builds import BUILDS, World, is_compiled_here, load
from tests.lab.counted import COUNTED

LAB_LINES: list[str] = []  # from the worker processes of pytest-xdist
DATA = Path(__file__).parent / "data"


# Tests of these folders and files are deep, in a Spark session or against a real broker, whatever else they are marked with.
TIERS = {
    "tests/lab/": "deep",
    "tests/faults/": "deep",
    "tests/fuzz/": "deep",
    "tests/mutants/": "deep",
    "tests/sparkstore/": "spark",
    "tests/packaging/test_spark_pages.py": "spark",
    "tests/interop/": "interop",
}
# Their kernels have tests of their own on both builds; `make test-plain` runs the engines themselves on the plain build.
ENGINE_TESTS = (
    "tests/messagestore/",
    "tests/rabbitstore/",
    "tests/brokerstore/",
    "tests/lab/",
    "tests/faults/",
    "tests/interop/",
)


# Files that take long run first: a worker that starts one of them last would keep the others waiting.
LONG_FILES = (
    "tests/lab/",
    "tests/sparkstore/",
    "tests/faults/",
    "tests/fuzz/",
    "tests/packaging/test_spark_pages.py",
    "tests/packaging/test_documents.py",
    "tests/brokerstore/test_damage_table.py",
    "tests/brokerstore/test_golden_outputs.py",
    "tests/shared/",
    "tests/brokerstore/test_crash_images.py",
    "tests/brokerstore/test_export_resumed.py",
    "tests/rabbitstore/test_store_killed.py",
    "tests/messagestore/test_pool.py",
    "tests/messagestore/test_recover.py",
    "tests/messagestore/test_processes.py",
    "tests/messagestore/test_follower.py",
    "tests/rabbitstore/test_damage.py",
    "tests/rabbitstore/test_variable_queue.py",
    "tests/consumequeue/test_append.py",
)


# Tests that need the disk's own answer to a sync, such as ENOSPC, and measurements.
REAL_SYNCS = ("tests/storageio/", "tests/faults/test_full_disk.py", "tests/interop/", "bench/")


def _sync_nothing(descriptor: int) -> None:
    os.fstat(descriptor)  # a closed descriptor is an error still


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Leave out this process's syncs: a store makes thirty of them from open to close, and no test cuts the power.

    Which syncs are made, and in which order, is tested on the lab's disks, and by recorded system calls of other processes.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not item.nodeid.startswith(REAL_SYNCS):
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, _sync_nothing)
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test's tier; leave out tests of the night, and the plain build of engine tests where the compiled one runs."""
    kept = []
    for item in items:
        for folder, tier in TIERS.items():
            if item.nodeid.startswith(folder) and not item.get_closest_marker("default"):
                item.add_marker(tier)
        if not _is_repeated(item) and (IS_NIGHT or not item.get_closest_marker("night")):
            kept.append(item)
    kept_ids = set(map(id, kept))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept_ids])
    items[:] = sorted(kept, key=_rank)  # a stable sort


def _rank(item: pytest.Item) -> int:
    """Return the place of a test's file among LONG_FILES; other files keep their order after these."""
    return next((position for position, name in enumerate(LONG_FILES) if item.nodeid.startswith(name)), len(LONG_FILES))


def _is_repeated(item: pytest.Item) -> bool:
    """Return whether an engine test asks for the plain build although this installation has the compiled one."""
    callspec = getattr(item, "callspec", None)
    is_plain = callspec is not None and "plain" in (callspec.params.get("world"), callspec.params.get("build"))
    is_of_kernel = item.get_closest_marker("both_builds") is not None
    return is_plain and not is_of_kernel and item.nodeid.startswith(ENGINE_TESTS) and is_compiled_here()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape surrogates, which names of damaged files contain and a worker process cannot send."""
    report = yield
    return _escaped(report)


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_escaped, value))
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the crash lab's figures from a worker process to the one that prints them."""
    if hasattr(session.config, "workeroutput") and COUNTED.reports:
        session.config.workeroutput["lab"] = COUNTED.lines()


@pytest.hookimpl(optionalhook=True)  # a hook of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    """Keep the figures of a worker process."""
    LAB_LINES.extend(getattr(node, "workeroutput", {}).get("lab", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the crash lab's figures last."""
    lines = LAB_LINES or (COUNTED.lines() if COUNTED.reports else [])
    if lines:
        terminalreporter.section("reliability lab")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(params=BUILDS)
def world(request: pytest.FixtureRequest) -> World:
    """Load the packages, once compiled and once plain; an installation without compiled kernels tests the plain build alone."""
    if request.param == "compiled" and not is_compiled_here():
        pytest.skip("the kernels are not compiled here")
    return load(request.param)


class Fixture:
    """A store that a real system wrote, with the manifest of its content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"

    def expected(self, name: str = "manifest.json") -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="session")
def _unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture
def fixture_store(_unpacked: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return `fixture_store(name)`: the store, unpacked once and read-only, or with `own=True` a private copy."""

    def unpack(name: str, own: bool = False) -> Fixture:
        if own or name not in _unpacked:
            folder = tmp_path_factory.mktemp(name)
            archives.unpack(DATA / f"{name}.tar.xz", folder)
            if own:
                return Fixture(folder / name)
            _unpacked[name] = folder / name
        return Fixture(_unpacked[name])

    return unpack


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out of reports, which take half a second to draw."""
    monkeypatch.setattr("brokerstore.report.page.pictures", lambda _facts: [])


@pytest.fixture
def quiet() -> Iterator[None]:
    """Discard the log lines of stores, which report damage, while the test runs."""
    loggers = [logging.getLogger("brokerstore")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
