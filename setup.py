"""Builds the kernels where it can.  All else about the package stands in pyproject.toml.

BROKERSTORE_PURE=1 forbids compiling.  BROKERSTORE_REQUIRE_COMPILED=1 makes a failed compilation an error; without it the
plain text of a kernel runs where its extension could not be built.
"""

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
BUILDS = runpy.run_path(str(ROOT / "storebytes" / "builds.py"))
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}


def extension(module: str) -> Extension:
    """One kernel, with the hash of what it is made from inside."""
    source = module.replace(".", "/") + ".py"
    digest = BUILDS["source_hash"](ROOT, module)
    declarations = [str(path) for package in BUILDS["PACKAGES"] for path in sorted((ROOT / package).rglob("*.pxd"))]
    return Extension(
        module,
        [source],
        extra_compile_args=["-O3"],
        define_macros=[("SOURCE_HASH", f"{digest}u")],
        depends=declarations,  # the hash covers them all, so a change in one makes every build stale
    )


def extensions() -> list[Extension]:
    """All kernels; none where compiling is forbidden or Cython is absent."""
    required = os.environ.get("BROKERSTORE_REQUIRE_COMPILED") == "1"
    if BUILDS["wants_plain"]():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if required:
            raise
        return []
    declarations = sorted(
        path.relative_to(ROOT).as_posix() for package in BUILDS["PACKAGES"] for path in (ROOT / package).rglob("*.pxd")
    )
    modules = [extension(module) for module in BUILDS["kernel_modules"](ROOT)]
    made = cythonize(modules, compiler_directives=DIRECTIVES, build_dir="build/c", nthreads=0)
    for module in made:
        module.optional = not required  # cythonize drops the attribute, and without it a missing compiler is an error
        module.depends = declarations  # the hash of each covers all of them, so each is built again when one changes
    return made


setup(ext_modules=extensions())
