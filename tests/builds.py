"""Both builds of all packages in one process.

`load("plain")` imports the packages a second time, with the source of every kernel instead of its extension, and restores the
ordinary modules.  Its classes are not those of the other build.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType

from storebytes.builds import HEADER_ONLY, PACKAGES, PlainFinder, is_compiled, kernel_builds

BUILDS = ("compiled", "plain")
OURS = (*PACKAGES, "brokerstore", "lab", "storageio")


class World:
    """The packages of one build: `world.module("commitlog.layout")`, `world.commitlog`."""

    def __init__(self, build: str, modules: dict[str, ModuleType]) -> None:
        self.build = build
        self._modules = modules

    def __repr__(self) -> str:
        return self.build

    def module(self, name: str) -> ModuleType:
        return self._modules[name]

    def __getattr__(self, name: str) -> ModuleType:
        if name not in self._modules:
            raise AttributeError(name)  # Hypothesis probes fixtures for attributes
        return self._modules[name]


def _is_ours(name: str) -> bool:
    # storageio has no kernels; one copy gives both builds the same error classes and lock table
    return name.partition(".")[0] in OURS and not name.startswith("storageio")


def _import_all() -> dict[str, ModuleType]:
    from pathlib import Path

    from storebytes.builds import kernel_modules

    kit = [f"lab.{path.stem}" for path in (Path(__file__).parent.parent / "lab").glob("[a-z]*.py")]
    for name in [
        *PACKAGES,
        *kernel_modules(Path(__file__).parent.parent),
        "brokerstore.migrate",
        "commitlog.verify",
        "messagestore.repair.recover",
        "messagestore.repair.verification",
        *kit,
    ]:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            getattr(module, public)  # some modules are imported at first use, which must happen now
    return {name: module for name, module in sys.modules.items() if _is_ours(name)}


@cache
def load(build: str) -> World:
    """Load the `compiled` or the `plain` build; fail if a kernel is not of that build."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)} if build == "plain" else {}
    if build == "plain":
        PlainFinder.install()
    try:
        modules = _import_all()
    finally:
        if build == "plain":
            PlainFinder.remove()
            for name in [name for name in sys.modules if _is_ours(name)]:
                del sys.modules[name]
            sys.modules.update(kept)
    wrong = [
        name
        for name, module in modules.items()
        if name.endswith("_cy") and name != HEADER_ONLY and is_compiled(module) != (build == "compiled")
    ]
    if wrong:
        raise ImportError(f"wanted the {build} build of {wrong}")
    return World(build, modules)


@cache
def is_compiled_here() -> bool:
    """Return whether this installation has compiled kernels."""
    return all(build.is_compiled for build in kernel_builds())
