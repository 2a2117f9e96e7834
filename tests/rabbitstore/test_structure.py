"""The packages of rabbitstore: dependencies only go down."""

from __future__ import annotations

import ast
from pathlib import Path

import rabbitstore

ROOT = Path(rabbitstore.__file__).parent
LAYERS = [  # each imports from itself and from those before it
    {"format"},
    {"errors", "settings", "files", "declarations", "stop_checksums", "folder_lock", "staging"},
    {"read"},
    {"folder", "stream", "quorum", "khepri"},
    {"declared", "definitions"},
    {"node_folder"},
    {"cluster"},
    {"repair"},
    {"engine"},
    {"metrics"},
    {"store"},
    {"__init__"},
]


def part_of(path: Path) -> str:
    """Return the package, or the module beside the packages, that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py").removesuffix(".pxd")


def imported(path: Path) -> set[str]:
    """Return the parts of rabbitstore that a file imports."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = [*base, *(node.module or "").split(".")] if node.module else [*base, *(name.name for name in node.names)]
            found.add(names[1])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rabbitstore."):
            found.add((node.module or "").split(".")[1])
    return found


def test_every_file_imports_only_from_its_own_layer_and_lower_ones() -> None:
    """`format` knows no disk, `read` no engine, and the engine no `RabbitStore`."""
    level = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    files = [path for path in ROOT.rglob("*.py") if path.name != "__init__.py" or path.parent == ROOT]
    assert {part_of(path) for path in files} == level.keys(), "each part has a layer"
    wrong = [
        f"{path.relative_to(ROOT)} imports {part}"
        for path in files
        for part in imported(path)
        if level[part] > level[part_of(path)]
    ]
    assert wrong == []


def test_the_format_package_opens_no_file() -> None:
    """Its readers take bytes."""
    for path in (ROOT / "format").glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not names & {"Disk", "REAL_DISK", "Mode", "File"}, path.name
