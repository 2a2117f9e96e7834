"""Find the kernels, hash their sources, and report which build of each one runs.

`setup.py` runs this file by its path before anything is installed, so it imports the standard library alone.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import zlib
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PACKAGES = ("storebytes", "commitlog", "consumequeue", "indexfile", "messagestore", "rabbitstore")
ENDING = "_cy"
HEADER_ONLY = "storebytes._bytes_cy"  # inline C functions: nothing to compile on its own
CIMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+cimport\b|cimport[ \t]+([.\w]+))", re.M)
HASH_MARK = re.compile(rb"storebytes source hash (\d+)")  # written by `_bytes_cy.pxd`


class KernelBuild(NamedTuple):
    """One kernel as it runs in this process."""

    module: str
    is_compiled: bool
    is_stale: bool  # its sources changed after it was compiled


def is_plain_requested() -> bool:
    """Return whether the environment forbids compiled kernels."""
    return os.environ.get("BROKERSTORE_PURE") == "1"


def kernel_modules(root: Path) -> list[str]:
    """Return the dotted names of all kernels below `root`, the folder that holds the packages."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob(f"*{ENDING}.py"))]
    modules = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    return [module for module in modules if module != HEADER_ONLY]


def kernel_sources(root: Path, module: str) -> list[Path]:
    """Return the files that an extension is made from: its .py, its .pxd, and every .pxd that these cimport."""
    declarations: set[Path] = set()
    to_read = [module]
    while to_read:
        name = to_read.pop()
        path = root.joinpath(*name.split(".")).with_suffix(".pxd")
        if path not in declarations and path.exists():
            declarations.add(path)
            to_read += _cimports(path, name)
    return [root.joinpath(*module.split(".")).with_suffix(".py"), *sorted(declarations)]


def _cimports(path: Path, module: str) -> list[str]:
    """Return the dotted names of the modules of our packages that a declaration file cimports."""
    found = []
    for from_name, name in CIMPORT.findall(path.read_text()):
        target = from_name or name
        dots = len(target) - len(target.lstrip("."))
        base = module.split(".")[:-dots] if dots else []
        absolute = ".".join([*base, target.lstrip(".")])
        if absolute.partition(".")[0] in PACKAGES:
            found.append(absolute)
    return found


def source_hash(root: Path, module: str) -> int:
    """Return the CRC-32 of a kernel's sources, never 0."""
    return zlib.crc32(b"".join(path.read_bytes() for path in kernel_sources(root, module))) or 1


def is_compiled(module: ModuleType) -> bool:
    """Return whether an imported kernel runs as an extension."""
    return not str(module.__file__).endswith(".py")


def compiled_hash(module: ModuleType) -> int:
    """Return the hash of the sources that an imported kernel was compiled from; 0 for a plain one."""
    return _hash_in(str(module.__file__)) if is_compiled(module) else 0


@cache
def _hash_in(extension: str) -> int:
    mark = HASH_MARK.search(Path(extension).read_bytes())
    return int(mark[1]) if mark else 0


def kernel_builds() -> list[KernelBuild]:
    """Import every kernel and return which build of it runs."""
    root = Path(__file__).resolve().parent.parent
    builds = []
    for name in kernel_modules(root):
        module = importlib.import_module(name)
        compiled = is_compiled(module)
        builds.append(KernelBuild(name, compiled, compiled and compiled_hash(module) != source_hash(root, name)))
    return builds


def build_name() -> str:
    """Return `compiled`, `plain`, or `mixed` for a partly compiled installation."""
    compiled = {build.is_compiled for build in kernel_builds()}
    return "mixed" if len(compiled) > 1 else "compiled" if True in compiled else "plain"


class PlainFinder:
    """An import finder that loads a kernel from its source although a compiled module lies beside it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Return a spec of the .py file for one of our kernels, None for any other module."""
        if path is None or name.partition(".")[0] not in PACKAGES or not name.endswith(ENDING):
            return None
        for folder in path:
            file = Path(folder) / f"{name.rpartition('.')[2]}.py"
            if file.exists():
                return spec_from_file_location(name, file)
        return None

    @classmethod
    def install(cls) -> None:
        """Put this finder before all others."""
        if cls not in sys.meta_path:
            sys.meta_path.insert(0, cls)

    @classmethod
    def remove(cls) -> None:
        """Take this finder out again, so that compiled modules are found."""
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)
