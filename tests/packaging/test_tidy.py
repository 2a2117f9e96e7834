"""Sizes that keep the source readable."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.packaging.house import ROOMS, ROOT, name_of, sources, tree

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X:")
EVERYTHING = [*sources(*ROOMS, "tests", "scripts", "bench", "fuzz", "examples"), ROOT / "setup.py"]
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    """No file above 800 lines, no function above 70, no line left for later."""
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES_MAX
    for function in functions(path):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{function.name} has {lines} lines"
    assert not [marker for marker in MARKERS if marker in text]


@pytest.mark.parametrize("path", sources(*ROOMS), ids=name_of)
def test_public_things_have_docstrings(path: Path) -> None:
    """Modules, classes, functions and methods whose name has no underscore before it."""
    module = tree(path)
    assert not module.body or ast.get_docstring(module), "the module has none"
    for node in [module, *[found for found in ast.walk(module) if isinstance(found, ast.ClassDef)]]:
        for child in node.body:
            is_public = isinstance(child, Documented) and not child.name.startswith("_")
            owner_is_public = not isinstance(node, ast.ClassDef) or not node.name.startswith("_")
            if isinstance(child, Documented) and is_public and owner_is_public:
                assert ast.get_docstring(child), f"{child.name} has none"


@pytest.mark.parametrize("path", [path for path in sources("tests") if path.name.startswith("test_")], ids=name_of)
def test_every_test_says_what_it_shows(path: Path) -> None:
    """In one line."""
    for function in functions(path):
        if function.name.startswith("test_"):
            assert ast.get_docstring(function), f"{function.name} says nothing"


@pytest.mark.parametrize("path", [path for path in sources(*ROOMS) if path.stem.endswith("_cy")], ids=name_of)
def test_every_kernel_has_declarations(path: Path) -> None:
    """They contain the mark by which a stale build is found."""
    assert "_bytes_cy" in path.with_suffix(".pxd").read_text()
