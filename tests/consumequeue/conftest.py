"""Queues in a fresh folder, on both builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK
from tests.builds import World


@pytest.fixture
def queues(tmp_path: Path, world: World) -> Callable[..., Any]:
    """Open the queues in `tmp_path/consumequeue`, by default with files of ten units."""

    def make(units: int = 10, writable: bool = True, disk: Any = REAL_DISK, folder: Path | None = None) -> Any:
        position = folder or tmp_path / "consumequeue"
        return world.consumequeue.ConsumeQueues(disk, str(position), writable=writable, file_size_bytes=units * 20)

    return make
