"""Every source file is short enough to read, and documented.  Each test names all files that offend."""

from __future__ import annotations

import ast
import re

from tests.packaging.packages import PACKAGES, ROOT, functions, name_of, sources, tree

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X:")
PRODUCT = sources(*PACKAGES)
EVERYTHING = [*PRODUCT, *sources("tests", "scripts", "bench", "fuzz", "lab", "examples"), ROOT / "setup.py"]
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def test_files_are_short() -> None:
    """No file has more than 800 lines."""
    lengths = {name_of(path): path.read_text().count("\n") for path in EVERYTHING}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    """No function has more than 70 lines."""
    lengths = {
        f"{name_of(path)}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in EVERYTHING
        for function in functions(path)
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_no_comment_marks_unfinished_work() -> None:
    """No comment marks unfinished work."""
    assert [name_of(path) for path in EVERYTHING if any(marker in path.read_text() for marker in MARKERS)] == []


def test_public_definitions_have_docstrings() -> None:
    """Modules, and classes, functions and methods whose name and owner start with no underscore; an overload has none."""
    missing = []
    for path in PRODUCT:
        module = tree(path)
        if module.body and not ast.get_docstring(module):
            missing.append(name_of(path))
        owners = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for child in [child for node in [module, *owners] for child in node.body]:
            if "overload" in map(ast.unparse, getattr(child, "decorator_list", ())):
                continue
            if isinstance(child, Documented) and not child.name.startswith("_") and not ast.get_docstring(child):
                missing.append(f"{name_of(path)}:{child.name}")
    assert missing == []


def test_every_test_has_a_docstring() -> None:
    """The tests read as a catalogue of what holds."""
    tests = [path for path in sources("tests") if path.name.startswith("test_")]
    found = [(path, function) for path in tests for function in functions(path) if function.name.startswith("test_")]
    assert [f"{name_of(path)}:{function.name}" for path, function in found if not ast.get_docstring(function)] == []


def test_every_kernel_has_declarations() -> None:
    """They contain the mark by which a stale build is found."""
    kernels = [path for path in PRODUCT if path.stem.endswith("_cy")]
    assert [name_of(path) for path in kernels if "_bytes_cy" not in path.with_suffix(".pxd").read_text()] == []


def test_every_logger_is_below_that_of_the_library() -> None:
    """One line of configuration reaches all of them."""
    calls = [call for path in PRODUCT for call in re.findall(r"getLogger\((.*)\)", path.read_text()) if call]
    assert calls
    assert [call for call in calls if not call.startswith(('"brokerstore', 'f"brokerstore.'))] == []
