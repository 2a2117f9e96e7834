"""What Cython does not check: declarations against sources, and builds against sources."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storebytes import builds
from tests.builds import World

ROOT = Path(__file__).resolve().parents[2]
KERNELS = builds.kernel_modules(ROOT)
MODULE_VARIABLE = re.compile(
    r"^cdef (?!class|inline|extern)(?:readonly |public )?[\w\[\]]+ \*?(?P<names>\w+(?:, *\w+)*)$", re.M
)
CLASS = re.compile(r"^cdef class (\w+)(?:\(\w+\))?:\n((?:    .*\n?|\n)+)", re.M)
ATTRIBUTE = re.compile(r"^    cdef (?:public |readonly )?\w+ (?P<names>\w+(?:, *\w+)*)$", re.M)


def sources(module: str) -> tuple[ast.Module, str]:
    text = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(text.read_text()), text.with_suffix(".pxd").read_text()


def names_of(found: re.Match[str]) -> list[str]:
    return [name.strip() for name in found["names"].split(",")]


def assigned(tree: ast.Module) -> set[str]:
    """Return the names bound at module level, and those that a function binds by `global`."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
            bound |= {name.id for name in names if isinstance(name, ast.Name)}
    return bound


@pytest.mark.parametrize("module", KERNELS)
def test_every_c_variable_of_a_declaration_is_assigned(module: str) -> None:
    """An unassigned variable would be 0 in the compiled build only."""
    tree, declaration = sources(module)
    declared = {name for found in MODULE_VARIABLE.finditer(declaration) for name in names_of(found)}
    in_c = {"_TABLES"} if module.endswith("_crc_cy") else set()  # filled by _fill_tables
    assert declared - in_c - assigned(tree) == set()
    assert declared or module.endswith(("_message_cy", "_check_cy", "_gate_cy")) or module.startswith("rabbitstore.")


@pytest.mark.parametrize("module", KERNELS)
def test_slots_are_the_declared_attributes(module: str) -> None:
    """The plain class has the same attributes as the compiled one."""
    tree, declaration = sources(module)
    slots = {
        node.name: {ast.literal_eval(item) for item in statement.value.elts}
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "__slots__"  # type: ignore[attr-defined]
        if isinstance(statement.value, ast.Tuple)
    }
    declared = {
        name: {attribute for found in ATTRIBUTE.finditer(body) for attribute in names_of(found)}
        for name, body in CLASS.findall(declaration)
    }
    assert slots == declared


def test_no_kernel_is_older_than_its_source(world: World) -> None:
    """This fails for an extension that was built from another source."""
    stale = [build.module for build in builds.kernel_builds() if build.is_stale]
    assert stale == [], "run: make .venv/.kernels"
    for name in KERNELS:
        kernel = world.module(name)
        assert builds.compiled_hash(kernel) == (builds.source_hash(ROOT, name) if builds.is_compiled(kernel) else 0)


def test_changed_source_or_declaration_makes_a_build_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One changed byte in the kernel, or in any declaration that it cimports, suffices."""
    for package in builds.PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    name = "commitlog._scan_cy"
    seen = {builds.source_hash(tmp_path, name)}
    assert seen == {builds.source_hash(ROOT, name)}
    for changed in ("commitlog/_scan_cy.py", "storebytes/_crc_fold.pxd"):
        path = tmp_path / changed
        path.write_text(path.read_text() + "# changed\n")
        seen.add(builds.source_hash(tmp_path, name))
    assert len(seen) == 3
    monkeypatch.setattr(builds, "source_hash", lambda _root, _name: 1)
    assert all(build.is_stale == build.is_compiled for build in builds.kernel_builds())


@pytest.mark.parametrize("pure", ["0", "1"])
def test_the_environment_can_forbid_compiled_kernels(pure: str) -> None:
    """A separate process with the variable set runs plain kernels even if compiled ones exist."""
    script = "import commitlog\nfrom storebytes import builds\nprint(builds.build_name())"
    found = subprocess.run(
        [sys.executable, "-c", script], env={"BROKERSTORE_PURE": pure}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    is_built = any((ROOT / "storebytes").glob("_crc_cy.*.so"))
    assert found.stdout.strip() == ("compiled" if pure == "0" and is_built else "plain")


@pytest.mark.parametrize("package", builds.PACKAGES)
def test_a_package_imported_alone_has_kernels_of_one_build(package: str) -> None:
    """The first import of a process decides: if it selects the plain build, all kernels are plain."""
    requested = f"import {package}; from storebytes.builds import build_name; print(build_name())"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", requested],
        env=os.environ | {"BROKERSTORE_PURE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("plain\n", "")
