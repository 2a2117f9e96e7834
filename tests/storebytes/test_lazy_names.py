"""Packages that import their public names on first use."""

from __future__ import annotations

import ast
import importlib

import pytest

from tests.packaging.packages import ROOT, tree

LAZY = ["brokerstore", "commitlog", "consumequeue", "messagestore", "rabbitstore"]
BESIDE_SPARK = ["sparkstore", "sparkstore.jobs"]  # an import of their names needs pyspark
SUBMODULE = {"aio"}  # an attribute of `brokerstore` that is not among its public names


def checked_names(package: str) -> set[str]:
    """Return the names that a type checker sees: those of the block `if TYPE_CHECKING`."""
    module = tree(ROOT.joinpath(*package.split("."), "__init__.py"))
    block = next(node for node in module.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    declared = {ast.unparse(node.target) for node in block.body if isinstance(node, ast.AnnAssign)}
    return (imported | declared) - {"Any"}


def lazy_lists(package: str) -> dict[str, list[str]]:
    """Return what the package gives to `lazy_names`."""
    module = tree(ROOT.joinpath(*package.split("."), "__init__.py"))
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_names"]
    lists: dict[str, list[str]] = ast.literal_eval(calls[0].args[1])
    return lists


@pytest.mark.parametrize("package", [*LAZY, *BESIDE_SPARK])
def test_a_type_checker_sees_the_names_that_are_imported_lazily(package: str) -> None:
    """The lists of a package name the same: what is checked, what is imported, and `__all__`."""
    lazy = [name for names in lazy_lists(package).values() for name in names]
    public = set(importlib.import_module(package).__all__)
    assert len(lazy) == len(set(lazy))
    assert set(lazy) == public - {"__version__"}
    assert checked_names(package) - SUBMODULE == public


@pytest.mark.parametrize("package", LAZY)
def test_every_public_name_is_found_and_listed(package: str) -> None:
    """Each is imported from its module, and `dir` has exactly the public names."""
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert dir(module) == sorted(module.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The message names the package, as that of an ordinary module does."""
    with pytest.raises(AttributeError, match=r"^module 'commitlog' has no attribute 'nothing'$"):
        importlib.import_module("commitlog").nothing  # noqa: B018
