"""Index folders on both builds, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK
from storageio.testing import CountingDisk
from tests.builds import World
from tests.stores import index_record


class ClockDisk(CountingDisk):
    """A disk whose clock returns the local times in `moments` one after the other, and then the last one."""

    def __init__(self, *moments: str) -> None:
        super().__init__(REAL_DISK)
        self.moments = list(moments)

    def now_ms(self) -> int:
        text = self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]
        return round(datetime.strptime(text + "000", "%Y%m%d%H%M%S%f").timestamp() * 1000)


@pytest.fixture
def clock_disk() -> type[ClockDisk]:
    return ClockDisk


@pytest.fixture
def index(tmp_path: Path, world: World) -> Callable[..., Any]:
    """Open the files in `tmp_path/index`, by default with seven slots and ten items."""

    def make(slots: int = 7, items: int = 10, writable: bool = True, disk: Any = REAL_DISK, folder: Path | None = None) -> Any:
        position = str(folder or tmp_path / "index")
        made = world.indexfile.IndexFiles(disk, position, writable=writable, slots=slots, items=items)
        made.build = partial(index_record, made)
        return made

    return make
