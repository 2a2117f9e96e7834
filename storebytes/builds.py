"""Which kernels there are and which build of each runs.

`setup.py` runs this file by its path before anything is installed, so it imports the standard library alone.
"""

from __future__ import annotations

import importlib
import os
import sys
import zlib
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("storebytes", "commitlog", "consumequeue", "indexfile", "messagestore", "rabbitstore")
ENDING = "_cy"
HEADER_ONLY = "storebytes._bytes_cy"  # inline C functions: nothing to compile on its own


class KernelBuild(NamedTuple):
    """One kernel as it runs in this process."""

    module: str
    is_compiled: bool
    is_stale: bool  # compiled from another text than the one beside it


def wants_plain() -> bool:
    """Whether the environment forbids compiled kernels."""
    return os.environ.get("BROKERSTORE_PURE") == "1"


def kernel_modules(root: Path) -> list[str]:
    """The dotted names of all kernels below `root`, the folder that holds the packages."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob(f"*{ENDING}.py"))]
    found = [".".join(path.relative_to(root).with_suffix("").parts) for path in files]
    return [module for module in found if module != HEADER_ONLY]


def source_hash(root: Path, module: str) -> int:
    """Of all that an extension is made from: its text and every .pxd."""
    declarations = [path for package in PACKAGES for path in sorted((root / package).rglob("*.pxd"))]
    text = root.joinpath(*module.split(".")).with_suffix(".py")
    return zlib.crc32(b"".join(path.read_bytes() for path in (text, *declarations))) or 1


def kernel_builds() -> list[KernelBuild]:
    """Every kernel, imported, with its build."""
    root = Path(__file__).resolve().parent.parent
    builds = []
    for name in kernel_modules(root):
        module = importlib.import_module(name)
        compiled = module.is_compiled()
        builds.append(KernelBuild(name, compiled, compiled and module.source_hash() != source_hash(root, name)))
    return builds


def build_name() -> str:
    """`compiled`, `plain`, or `mixed` (an install that broke half way)."""
    compiled = {build.is_compiled for build in kernel_builds()}
    return "mixed" if len(compiled) > 1 else "compiled" if True in compiled else "plain"


class PlainFinder:
    """Loads a kernel from its text whatever compiled module lies beside it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """A spec of the text for a kernel of ours, nothing for anything else."""
        package = name.partition(".")[0]
        if package not in PACKAGES or not name.endswith(ENDING) or path is None:
            return None
        for folder in path:
            file = Path(folder) / f"{name.rpartition('.')[2]}.py"
            if file.exists():
                return spec_from_file_location(name, file)
        return None

    @classmethod
    def install(cls) -> None:
        """Ask this finder before all others."""
        if cls not in sys.meta_path:
            sys.meta_path.insert(0, cls)

    @classmethod
    def remove(cls) -> None:
        """Back to what is installed."""
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)


assert PathFinder in sys.meta_path  # compiled modules are found by the ordinary way
