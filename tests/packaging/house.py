"""The source files, room by room."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Who may import whom: arrows only go down.
BELOW: dict[str, set[str]] = {
    "storageio": set(),
    "storebytes": set(),
    "commitlog": {"storageio", "storebytes"},
    "consumequeue": {"commitlog", "storageio", "storebytes"},
    "indexfile": {"commitlog", "storageio", "storebytes"},
    "messagestore": {"commitlog", "consumequeue", "indexfile", "storageio", "storebytes"},
    "rabbitstore": {"storageio", "storebytes"},
    "sparkstore": {
        "brokerstore",
        "commitlog",
        "consumequeue",
        "indexfile",
        "messagestore",
        "rabbitstore",
        "storageio",
        "storebytes",
    },
    "brokerstore": {"commitlog", "consumequeue", "indexfile", "messagestore", "rabbitstore", "storageio", "storebytes"},
}
ROOMS = [room for room in BELOW if (ROOT / room).is_dir()]


def sources(*rooms: str) -> list[Path]:
    """The Python files of some rooms."""
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py")) if (ROOT / room).is_dir()]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports, at its top or inside a function; not its own room's relative ones."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))
