"""The complete answer of each command on the stores that real systems wrote, on a pipe and on a terminal.

`python -m tests.brokerstore.golden_cases` renews the files in `golden/`; every change is reviewed.  The files were compared
with the manifests, which the real RocketMQ and RabbitMQ made with their own readers.  The tests at the end repeat this for each
figure that a manifest has.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool import main
from brokerstore.tool.commands import NAMES
from tests.brokerstore.golden_cases import ALONE, GOLDEN, RABBITMQ, ROCKETMQ, answer, cases, file_of, unpack, writes
from tests.brokerstore.test_golden import expected
from tests.brokerstore.tool import Ran

pty = pytest.importorskip("pty")
CASES = cases()
HAVE_BARS = ("verify", "recover", "rebuild", "copy", "import", "bench", "export", "stats", "diff")
ON_TERMINAL = ("none", "plain", "rabbitmq-v2")  # the deep tier takes the other folders
BENCH = "none: bench NEW --messages 1000"  # its figures vary by machine, and a terminal draws other columns


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def folder_of(case: str, folders: dict[str, Path], above: Path) -> Path:
    """Return a folder that is unpacked once for all cases that only read."""
    name = case.split(": ")[0]
    if name not in folders and not writes(case):
        folders[name] = unpack(name, above)
    return folders[name] if not writes(case) else unpack(name, above)


@pytest.mark.parametrize("case", CASES)
def test_output_equals_the_golden_file(
    case: str, folders: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Exit code, stdout and stderr are equal."""
    folder = folder_of(case, folders, tmp_path if writes(case) else tmp_path_factory.mktemp("golden"))
    assert answer(case, folder, tmp_path / "new") == file_of(case).read_text()


def on_terminal(*arguments: object) -> Ran:
    """Run with both streams on a pseudo-terminal; remove colours and drawing."""
    out, talk = _Terminal(), _Terminal()
    with redirect_stdout(out.stream), redirect_stderr(talk.stream):
        code = main([str(argument) for argument in arguments])
    return Ran(code, out.text(), talk.text())


class _Terminal:
    """A stream that is a terminal, and what arrives on its other side."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.stream = io.TextIOWrapper(io.FileIO(theirs, "w"), encoding="utf-8", write_through=True)
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._ours, 65536):
                self._parts.append(part)
        except OSError:  # the other side is gone
            pass

    def text(self) -> str:
        self.stream.close()
        self._reader.join()
        os.close(self._ours)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(self._parts).decode().replace("\r\n", "\n"))


def words(text: str) -> list[str]:
    """Return lines as words, because drawn tables have other spaces and a removed bar leaves a line's beginning."""
    lines = [" ".join(line.rpartition("\r")[2].split()) for line in text.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize(
    "case",
    [
        case if case.partition(":")[0] in ON_TERMINAL else pytest.param(case, marks=pytest.mark.deep)
        for case in CASES
        if "report" not in case and case != BENCH
    ],
)
def test_the_same_answer_on_a_terminal(
    case: str,
    folders: dict[str, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The words are equal, and JSON is identical."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERM", "xterm")
    folder = folder_of(case, folders, tmp_path if writes(case) else tmp_path_factory.mktemp("golden"))
    line = case.split(": ", 1)[1]
    quiet = " -q" if line.split()[0] in HAVE_BARS else ""
    found = answer(f"{case}{quiet}", folder, tmp_path / "new", on_terminal)
    golden = file_of(case).read_text()
    assert words(found) == words(golden)
    if "--json" in case:
        assert found == golden


def test_every_command_has_golden_answers() -> None:
    """Every golden file belongs to a case.  Rates change, three commands wait, and servers' exports judge `definitions`."""
    named = {case.split(": ")[1].split()[0] for case in CASES}
    without = {
        "top",
        "replicate",
        "serve",
        "web",
        "definitions",
    }
    assert set(NAMES) - without <= named
    assert set(GOLDEN.rglob("*.txt")) == {file_of(case) for case in CASES}
    assert len({file_of(case) for case in CASES}) == len(CASES)
    assert ALONE


def golden(case: str) -> Any:
    """Return the exit code and the objects of the golden answer."""
    text = file_of(case).read_text()
    body = text.partition("--- stdout\n")[2].partition("--- stderr\n")[0]
    return int(text.split()[1]), [json.loads(line) for line in body.splitlines()]


def manifest(name: str, above: Path) -> Any:
    folder = unpack(name, above)
    requested = "before.json" if name.startswith("crash") else "manifest.json"
    return json.loads(next(path for path in sorted(above.rglob(requested)) if folder).read_text())


@pytest.mark.parametrize("name", [name for name in ROCKETMQ if not name.startswith("crash")])
def test_golden_figures_are_those_of_the_real_store(name: str, tmp_path: Path) -> None:
    """Offsets, queues, messages, bytes and blanks equal the counts of its own readers."""
    listing = manifest(name, tmp_path)
    code, (info,) = golden(f"{name}: info STORE --json")
    assert (code, info["min_offset"], info["max_offset"]) == (0, listing["minPhyOffset"], listing["maxPhyOffset"])
    code, (verified,) = golden(f"{name}: verify STORE --json")
    counts = verified["counts"]
    assert (code, verified["ok"], verified["problems"]) == (0, True, [])
    assert (counts["records"], counts["blanks"]) == (listing["messageCount"], len(listing["blankRecords"]))
    code, (stats,) = golden(f"{name}: stats STORE --json")
    assert (code, stats["total"]["messages"]) == (0, listing["messageCount"])
    assert stats["total"]["size_bytes"] == sum(message["storeSize"] for message in listing["messages"])
    code, (listed,) = golden(f"{name}: ls STORE --json")
    ends = {(row["topic"], row["queue_id"]): row["max_offset"] for row in listed["queues"]}
    known = {(queue["topic"], queue["queueId"]): queue["maxOffset"] for queue in listing["queues"]}
    assert {lane: end for lane, end in ends.items() if lane in known} == {lane: known[lane] for lane in ends if lane in known}
    assert known.keys() & ends.keys()


def test_golden_messages_are_those_of_the_real_store(tmp_path: Path) -> None:
    """Every message in a golden answer about `plain` is equal field by field."""
    listing = {message["physicalOffset"]: expected(message) for message in manifest("plain", tmp_path)["messages"]}
    seen = 0
    for case in [case for case in CASES if case.startswith("plain: ") and case.endswith("--json") and "put " not in case]:
        for one in golden(case)[1]:
            if "body_base64" in one:
                seen += 1
                assert one == listing[one["physical_offset"]], case
    assert seen > 8
    hot = [one for one in listing.values() if one["topic"] == "HotTopic" and "hot-1" in one["keys"]]
    assert sorted(one["physical_offset"] for one in golden("plain: query STORE HotTopic hot-1 --json")[1]) == sorted(
        one["physical_offset"] for one in hot
    )
    assert golden("plain: tail STORE -n 3 --json")[1] == list(listing.values())[-3:]


@pytest.mark.parametrize("name", ["crash-torn", "crash-lost-cq"])
def test_golden_recovery_keeps_what_the_real_store_kept(name: str, tmp_path: Path) -> None:
    """`recovered.json` is RocketMQ's account after it recovered the same folder."""
    unpack(name, tmp_path)
    kept = json.loads(next(tmp_path.rglob("recovered.json")).read_text())
    code, (plan,) = golden(f"{name}: recover STORE --json")
    assert (code, plan["applied"]) == (1, False)
    code, (done,) = golden(f"{name}: recover STORE --apply --json")
    assert done["applied"] is True
    assert (done["plan"]["valid_end"], done["plan"]["records_kept"]) == (kept["maxPhyOffset"], kept["messageCount"])
    assert code == (6 if done["plan"]["records_dropped"] else 7)


@pytest.mark.parametrize("name", RABBITMQ)
def test_golden_queues_are_those_of_the_real_server(name: str, tmp_path: Path) -> None:
    """Persistent messages equal those of the restarted server; version 1 has all of its index."""
    listing = manifest(name, tmp_path)
    code, (listed,) = golden(f"{name}: ls STORE --json")
    rows = {row["queue"]: row for row in listed["queues"]}
    recovered = {queue: held.get("messages_after_recovery") for queue, held in listing["queues"].items()}
    requested = {queue: count for queue, count in recovered.items() if count is not None and queue in rows}
    assert (code, {queue: rows[queue]["persistent"] for queue in requested}) == (0, requested)
    assert len(requested) > 9
    indexed = {queue: sum(not one["acked"] for one in held["messages"]) for queue, held in listing["queues"].items()}
    if name == "rabbitmq-clean":
        del requested["q.prio"]  # its messages are listed by priority there
        assert {queue: rows[queue]["messages"] for queue in requested} == {queue: indexed[queue] for queue in requested}
    code, (verified,) = golden(f"{name}: verify STORE --json")
    assert (code, verified["ok"], verified["counts"]["records"]) == (0, True, len(listing["rdq_records"]))
