"""Rounds of our code and the baseline in turn, and the table of their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.baseline import BASELINE_MIN, Baseline, scan
from storageio import REAL_DISK, Mode
from tests.builds import BUILDS, World, is_compiled_here, load

ROUNDS = 15
MAP_BYTES = 128 << 20
TOPIC = "BenchTopic"
PROPERTIES = b"KEYS\x01order-17\x02TAGS\x01paid\x02"
TARGETS = {  # for the compiled build with whole-record checksums
    ("append encoded", 100): 4, ("many", 100): 8, ("columns", 100): 15, ("scan", 100): 10,
    ("append encoded", 1024): 2.5, ("many", 1024): 3, ("columns", 1024): 4, ("scan", 1024): 3,
}  # fmt: skip
_TABLE: list[dict[str, Any]] = []


@pytest.fixture(scope="session")
def is_real(request: pytest.FixtureRequest) -> bool:
    """Return whether this run measures; otherwise each benchmark runs once on few records."""
    return not request.config.getoption("benchmark_disable")


@pytest.fixture(params=BUILDS)
def world(request: pytest.FixtureRequest) -> World:
    """Load the compiled and the plain build."""
    if request.param == "compiled" and not is_compiled_here():
        pytest.skip("the kernels are not compiled here")
    return load(request.param)


@pytest.fixture(scope="session")
def maps(tmp_path_factory: pytest.TempPathFactory, is_real: bool) -> Iterator[tuple[memoryview, memoryview]]:
    """Map two real files with every page touched: one for our code, one for the baseline."""
    size = MAP_BYTES if is_real else 1 << 20
    made = []
    for name in ("ours", "baseline"):
        file = REAL_DISK.open(str(tmp_path_factory.mktemp("bench") / name), Mode.CREATE)
        file.allocate(size)
        view = file.map(size, writable=True).view
        view[:] = bytes(size)
        file.close()
        made.append(view)
    yield made[0], made[1]
    made.clear()


class Duel:
    """One benchmark: pytest-benchmark times our code, and the baseline runs right before each round."""

    def __init__(self, benchmark: Any, view: memoryview, is_real: bool) -> None:
        self.benchmark = benchmark
        self.view = view
        self.is_real = is_real

    def count(self, body_size: int, *, plain: bool = False) -> int:
        """Return the number of records per round."""
        if not self.is_real:
            return 20
        return 20_000 if plain else 200_000 if body_size <= 100 else 60_000

    def _baseline(self, count: int, body: bytes, log: Baseline) -> float:
        log.position = log.queue_offset = 0
        append, topic = log.append, TOPIC.encode()
        begin = time.perf_counter()
        for _ in range(count):
            append(topic, 0, body, PROPERTIES)
        return (time.perf_counter() - begin) / count

    def _baseline_scan(self, log: Baseline) -> float:
        begin = time.perf_counter()
        count = scan(log.view, log.position)
        return (time.perf_counter() - begin) / count

    def run(
        self, what: str, world: World, body_size: int, with_crc: bool, count: int, ours: Callable[[], Any],
        reset: Callable[[], None], *, is_scan: bool = False, repeat: int = 1,
    ) -> None:  # fmt: skip
        """Measure both in turn; `ours` handles `count` records `repeat` times."""
        body = b"b" * body_size
        log = Baseline(self.view)
        base_count = min(count, 50_000)
        times: list[float] = []
        self._baseline(base_count, body, log)
        appends: list[float] = []

        def before() -> None:
            reset()
            appends.append(self._baseline(base_count, body, log))
            times.append(self._baseline_scan(log) if is_scan else appends[-1])

        rounds = ROUNDS if self.is_real else 1
        self.benchmark.pedantic(ours, setup=before, rounds=rounds, warmup_rounds=1 if self.is_real else 0)
        if self.benchmark.stats is None:
            return
        mine = [seconds / count / repeat for seconds in self.benchmark.stats.stats.data]
        rounds = list(zip(times[-len(mine) :], mine, appends[-len(mine) :], strict=True))
        counted = [turn for turn in rounds if body_size > 100 or turn[2] <= 1 / BASELINE_MIN] or rounds
        ratios = [base / own for base, own, _ in counted]
        row = {
            "what": what, "build": str(world), "body": body_size, "crc": with_crc, "rate": 1 / statistics.median(mine),
            "ratio": statistics.median(ratios), "min": min(ratios), "max": max(ratios),
            "baseline": 1 / statistics.median(turn[0] for turn in counted), "rounds": len(rounds), "counted": len(counted),
            "baseline_append": 1 / statistics.median(turn[2] for turn in counted),
            "target": TARGETS.get((what, body_size)) if str(world) == "compiled" and with_crc else None,
        }  # fmt: skip
        self.benchmark.extra_info.update(row)
        _TABLE.append(row)


@pytest.fixture
def duel(benchmark: Any, maps: tuple[memoryview, memoryview], is_real: bool) -> Duel:
    """Return a measurement against the baseline."""
    return Duel(benchmark, maps[1], is_real)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of ratios."""
    if not _TABLE:
        return
    write = terminalreporter.write_line
    write("")
    write(
        f"{'':28}{'body':>6}{'crc':>5}{'records/s':>13}{'baseline/s':>12}{'ratio':>8}{'min':>8}{'max':>8}{'rounds':>8}  target"
    )
    for row in _TABLE:
        target = f">= {row['target']}" + ("" if row["ratio"] >= row["target"] else "  MISSED") if row["target"] else ""
        write(
            f"{row['build'] + ' ' + row['what']:28}{row['body']:>6}{'on' if row['crc'] else 'off':>5}{row['rate']:>13,.0f}"
            f"{row['baseline']:>12,.0f}{row['ratio']:>8.2f}{row['min']:>8.2f}{row['max']:>8.2f}"
            f"{row['counted']:>5}/{row['rounds']}  {target}"
        )
    rates = [row["baseline_append"] for row in _TABLE if row["body"] == 100]
    if rates:
        reports = "reached" if min(rates) >= BASELINE_MIN else "NOT REACHED by every row: those ratios do not count"
        write(
            f"baseline appends of 100 B: {statistics.median(rates):,.0f}/s, least {min(rates):,.0f}/s: "
            f"{BASELINE_MIN:,} {reports};"
        )
        write("rounds of 100 B in which it was slower than that are not counted")
