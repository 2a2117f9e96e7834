"""The benchmarks import only what their requirements or the extras install."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {  # pandas requires numpy
    "persistqueue": "persist-queue", "rocketmq": "rocketmq-python-client", "numpy": "pandas",
}  # fmt: skip


def test_the_requirements_cover_every_import_of_bench() -> None:
    """`make bench-peers` failed in a fresh clone because msgspec was missing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for group in extras.values() for line in group]
    lines += (ROOT / "bench" / "peers" / "requirements.txt").read_text().splitlines()
    listed = {name[0] for line in lines if (name := re.match(r"[\w.-]+", line))}
    for path in sorted((ROOT / "bench").rglob("*.py")):
        missing = {name for name in _imports(path) if DISTRIBUTIONS.get(name, name) not in listed}
        assert not missing, f"{path.relative_to(ROOT)} imports {missing}"


def _imports(path: Path) -> set[str]:
    """Return the top-level packages that a module imports, without the standard library and this repository."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return {name for name in names if name not in sys.stdlib_module_names and not (ROOT / name).is_dir()}
