"""CSV cells that a spreadsheet would run: guarded by default, and recoverable."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from brokerstore import RabbitStore
from tests.brokerstore.test_report_of_strangers import write_log
from tests.brokerstore.tool import run

FORMULAS = [
    "=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\x00=1", "\x1b]0;x\x07", "'=1", "=cmd|' /C calc'!A0", "  =1",
    "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x", "a\x07b", "=\\x07", "\u202ea", "-5",
]  # fmt: skip
HARMLESS = ["orders", "a=1", "1-1", "a'b", "a\\x07", "\u65e5\u672c", "a\u3000b", "5", "%RETRY%g", "a\u200db"]
DANGEROUS = re.compile("^\\s*[-=+@\uff1d\uff0b\uff0d\uff20]|[\x00-\x1f\x7f-\x9f\u202a-\u202e]")


def plain(cell: str) -> str:
    """Recover a guarded cell as docs/reference/tool.md describes."""
    if not cell.startswith("'"):
        return cell
    escape = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|([\\trn]))")
    named = {"\\": "\\", "t": "\t", "r": "\r", "n": "\n"}
    return escape.sub(lambda found: named[found[3]] if found[3] else chr(int(found[1] or found[2], 16)), cell[1:])


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("way", ["stdout", "file"])
def test_no_cell_begins_a_formula(tmp_path: Path, way: str) -> None:
    """Topics and keys are recovered unchanged, and harmless ones are written unchanged."""
    names = [*FORMULAS, *HARMLESS]
    write_log(tmp_path / "store", names, [name.replace(" ", "_") for name in names])
    if way == "stdout":
        text = run("export", "--to", "csv", tmp_path / "store").out
    else:
        run("export", "--to", "csv", "--out", tmp_path / "out", tmp_path / "store")
        text = (tmp_path / "out").read_bytes().decode()
    found = rows(text)
    assert not [cell for row in found for name, cell in row.items() if name in ("topic", "keys") and DANGEROUS.search(cell)]
    assert [plain(row["topic"]) for row in found] == names * 3
    assert [plain(row["keys"]) for row in found] == [name.replace(" ", "_") for name in names] * 3
    assert [row["topic"] for row in found[len(FORMULAS) : len(names)]] == HARMLESS
    assert all(row["queue_offset"].isdigit() for row in found)


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    """A spreadsheet does not run a negative number."""
    write_log(tmp_path / "store", ["T"], ["k"])
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[16:20] = (-7).to_bytes(4, "big", signed=True)  # the flag, which no checksum covers
    log.write_bytes(data)
    assert rows(run("export", "--to", "csv", tmp_path / "store").out)[0]["flag"] == "-7"


def test_without_the_guard_the_text_is_exact(tmp_path: Path) -> None:
    """Programs read the exact text with --no-csv-guard."""
    write_log(tmp_path / "store", FORMULAS, ["k"] * len(FORMULAS))
    found = rows(run("export", "--to", "csv", "--no-csv-guard", tmp_path / "store").out)
    assert [row["topic"] for row in found] == FORMULAS * 3


def test_an_interrupted_export_resumes_only_with_the_same_guard_setting(tmp_path: Path) -> None:
    """A file is never guarded in part only."""
    from brokerstore.tool.export_parts import ExportParts
    from storageio import InvalidMessage

    out = str(tmp_path / "out")
    parts = ExportParts(out, "csv-guarded", {})
    parts.write(b"topic\n'=1\n", 1, 1, 1)
    parts.seal()
    with pytest.raises(InvalidMessage, match="belongs to another export"):
        ExportParts(out, "csv", {})
    assert ExportParts(out, "csv-guarded", {}).rows == 1


def test_names_of_rabbitmq_are_guarded(tmp_path: Path) -> None:
    """Names of queues and exchanges are guarded."""
    with RabbitStore.open(tmp_path / "vhost") as store:
        store.declare_queue("=1+1")
        store.publish("=1+1", b"b", exchange="@x", routing_keys=["-k"])
    (row,) = rows(run("export", "--to", "csv", tmp_path / "vhost").out)
    assert (row["queue"], row["exchange"], row["routing_keys"]) == ("'=1+1", "'@x", '["-k"]')
