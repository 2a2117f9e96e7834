"""The small files in `<store>/brokerstore/`: unreadable ones count as missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.services.delay_resume import NAME as DELAYS
from messagestore.broker.services.delay_resume import read_delay_sidecar
from messagestore.clean_stop import CLEAN_NAME, read_clean
from messagestore.index_hint import NAME as INDEX
from messagestore.index_hint import read_hint
from messagestore.paths import OWN_FOLDER
from messagestore.recovery.queue_list import NAME as QUEUES
from messagestore.recovery.queue_list import read_queue_list
from messagestore.sidecar import OWN_FILES
from storageio import REAL_DISK

DAMAGE = {
    "empty": b"",
    "no JSON": b"\0\0[",
    "deep": b"[" * 100_000,
    "a list": b"[1]",
    "a number": b"7",
    "endless": b'{"position": 1e999}',
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("name", "read"), [(DELAYS, read_delay_sidecar), (INDEX, read_hint), (QUEUES, read_queue_list), (CLEAN_NAME, read_clean)]
)
def test_invalid_sidecar_is_ignored(tmp_path: Path, name: str, read: Any, damage: str) -> None:
    """JSON nested a hundred thousand deep in delays.json must not end the open after a crash."""
    folder = tmp_path / OWN_FOLDER
    folder.mkdir()
    (folder / name).write_bytes(DAMAGE[damage])
    assert not read(REAL_DISK, str(tmp_path if read is read_clean else folder))


def test_the_page_lists_each_file_of_our_own() -> None:
    """`docs/formats/store-folder.md` has a row for each name that `verify` and `recover` know, and no other."""
    page = (Path(__file__).parents[2] / "docs/formats/store-folder.md").read_text()
    table = page.partition("| path below `brokerstore/` | what |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall("`([^`]+)`", row)} == set(OWN_FILES)
