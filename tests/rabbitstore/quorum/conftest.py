"""Quorum queues of the real server, unpacked once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.archives import unpack
from tests.rabbitstore.conftest import DATA

KINDS = ("rabbitmq4-clean", "rabbitmq4-killed", "rabbitmq4-quorum-snapshot", "rabbitmq4-streams", "rabbitmq43-clean")
OTHERS = ("rabbitmq4-young",)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[Any, Any]]]:
    """Map each fixture to its node's folder and the server's own account."""
    found = {}
    for kind in (*KINDS, *OTHERS):
        folder = tmp_path_factory.mktemp(kind)
        unpack(DATA / f"{kind}.tar.xz", folder)
        found[kind] = folder / "node", json.loads((folder / "manifest.json").read_text())
    return found


@pytest.fixture(params=KINDS)
def real(request: pytest.FixtureRequest, folders: dict[str, tuple[Path, dict[Any, Any]]]) -> tuple[Path, dict[str, Any]]:
    return folders[request.param]
