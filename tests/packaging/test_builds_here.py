"""The installation that the tests run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from storebytes.builds import PACKAGES, build_name, kernel_builds, kernel_modules, kernel_sources, source_hash
from tests.packaging.packages import ROOT


def test_no_kernel_is_stale() -> None:
    """Tests of kernels compiled from another source would prove nothing."""
    assert not [build.module for build in kernel_builds() if build.is_stale]


def test_all_kernels_are_of_one_build() -> None:
    """Either all kernels are compiled or none."""
    assert build_name() in ("compiled", "plain")


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="not a free-threaded Python, such as 3.13t")
def test_importing_the_kernels_leaves_the_gil_off() -> None:
    """Every compiled kernel is declared for free-threaded Python, and none imports an extension that is not."""
    code = "import brokerstore, sys; from storebytes.builds import kernel_builds; kernel_builds(); print(sys._is_gil_enabled())"
    env = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert build_name() == "compiled" and done.stdout == "False\n"


def test_an_environment_variable_selects_the_pure_python_build() -> None:
    """BROKERSTORE_PURE selects the plain build although kernels are compiled."""
    code = "from storebytes.builds import build_name; print(build_name())"
    env = {**os.environ, "BROKERSTORE_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "plain\n"


def test_a_changed_declaration_makes_its_users_stale(tmp_path: os.PathLike[str]) -> None:
    """The hash of a kernel covers each .pxd that it cimports, directly or through another, and no other .pxd."""
    copy = f"{tmp_path}/tree"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, f"{copy}/{package}", ignore=shutil.ignore_patterns("*.so", "__pycache__"))

    def changed_by(declaration: str) -> set[str]:
        before = {module: source_hash(Path(copy), module) for module in kernel_modules(ROOT)}
        path = Path(copy, *declaration.split(".")).with_suffix(".pxd")
        path.write_text(path.read_text() + "\n")
        return {module for module, old in before.items() if source_hash(Path(copy), module) != old}

    assert [source_hash(Path(copy), module) for module in kernel_modules(ROOT)] == [
        source_hash(ROOT, module) for module in kernel_modules(ROOT)
    ]
    assert changed_by("storebytes._bytes_cy") == set(kernel_modules(ROOT))
    users = changed_by("storebytes._crc_fold")
    assert {"storebytes._crc_cy", "commitlog._record_cy", "commitlog._append_cy"} <= users
    assert not {module for module in users if module.startswith("rabbitstore.format.")}
    assert changed_by("consumequeue._units_cy") == {"consumequeue._units_cy"}


def test_a_kernel_in_a_nested_package_is_found(tmp_path: os.PathLike[str]) -> None:
    """Its relative and absolute cimports are found too."""
    folder = Path(tmp_path, "commitlog", "inner")
    folder.mkdir(parents=True)
    (folder / "_one_cy.py").write_text("")
    (folder / "_one_cy.pxd").write_text("from ._two_cy cimport two\nfrom .._outer_cy cimport outer\ncimport cython\n")
    (folder / "_two_cy.pxd").write_text("from storebytes._bytes_cy cimport (\n    I64,\n)\n")
    (folder.parent / "_outer_cy.pxd").write_text("")
    assert kernel_modules(Path(tmp_path)) == ["commitlog.inner._one_cy"]
    names = [path.relative_to(tmp_path).as_posix() for path in kernel_sources(Path(tmp_path), "commitlog.inner._one_cy")]
    assert names == [
        "commitlog/inner/_one_cy.py",
        "commitlog/_outer_cy.pxd",
        "commitlog/inner/_one_cy.pxd",
        "commitlog/inner/_two_cy.pxd",
    ]
