"""The installation that the tests run in."""

from __future__ import annotations

import os
import subprocess
import sys

from storebytes.builds import build_name, kernel_builds, kernel_modules, source_hash
from tests.packaging.house import ROOT


def test_no_kernel_is_stale() -> None:
    """Tests of a build of another text would say nothing."""
    assert not [build.module for build in kernel_builds() if build.is_stale]


def test_all_kernels_are_of_one_build() -> None:
    """Never a part of them."""
    assert build_name() in ("compiled", "plain")


def test_the_environment_can_demand_the_plain_text() -> None:
    """Whatever is compiled beside it."""
    code = "from storebytes.builds import build_name; print(build_name())"
    env = {**os.environ, "BROKERSTORE_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "plain\n"


def test_a_changed_declaration_makes_every_kernel_stale(tmp_path: os.PathLike[str]) -> None:
    """Its bytes are in each one's hash."""
    import shutil

    copy = f"{tmp_path}/tree"
    for room in {module.partition(".")[0] for module in kernel_modules(ROOT)}:
        shutil.copytree(ROOT / room, f"{copy}/{room}", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    from pathlib import Path

    before = [source_hash(Path(copy), module) for module in kernel_modules(ROOT)]
    assert before == [source_hash(ROOT, module) for module in kernel_modules(ROOT)]
    declaration = Path(copy) / "storebytes" / "_bytes_cy.pxd"
    declaration.write_text(declaration.read_text() + "\n")
    after = [source_hash(Path(copy), module) for module in kernel_modules(ROOT)]
    assert all(old != new for old, new in zip(before, after, strict=True))
