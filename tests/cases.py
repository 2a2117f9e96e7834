"""Folders that operators reported, rebuilt from real brokers and servers.

`tests/data/cases/README.md` lists them.  Each archive has one folder `store` (RocketMQ) or `node` (RabbitMQ), and
`expected.json`: the report it is built after, and what each command must give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.archives import unpack

CASES = Path(__file__).parent / "data" / "cases"
ROCKETMQ_CASES = sorted(
    path.name.removesuffix(".tar.xz") for path in CASES.glob("*.tar.xz") if not path.name.startswith("rabbit-")
)
RABBITMQ_CASES = sorted(path.name.removesuffix(".tar.xz") for path in CASES.glob("rabbit-*.tar.xz"))


class Case(NamedTuple):
    """One unpacked case and its report."""

    folder: Path  # the store or node, which a test may change
    expected: dict[str, Any]


def unpack_case(name: str, target: Path) -> Case:
    """Unpack a case below an empty folder and return its store and what it must give."""
    unpack(CASES / f"{name}.tar.xz", target)
    root = target if (target / "expected.json").exists() else target / name
    expected = json.loads((root / "expected.json").read_text("utf-8"))
    return Case(root / ("node" if name.startswith("rabbit-") else "store"), expected)
