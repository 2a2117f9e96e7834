"""Compile the kernels where a C compiler is found; pyproject.toml describes everything else.

BROKERSTORE_PURE=1 forbids compiling.  BROKERSTORE_REQUIRE_COMPILED=1 makes a failed compilation an error; without it the
Python source of a kernel runs where its extension could not be built.
"""

import os
import runpy
from itertools import count
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILDS = runpy.run_path(str(ROOT / "storebytes" / "builds.py"))
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": True,  # docs/howto/workers.md#free-threaded-python
    "auto_pickle": False,  # `_message_cy.py` switches it on for messages
}
# Loops over bytes and columns, which gain from -O3.  The others run as fast with -O2 and compile in two thirds of the time.
HOT = (
    "storebytes._crc_cy",
    "commitlog._record_cy",
    "commitlog._rows_cy",
    "commitlog._scan_cy",
    "commitlog._tally_cy",
    "consumequeue._units_cy",
    "indexfile._filter_cy",
    "indexfile._index_cy",
    "indexfile._match_cy",
    "messagestore.read._lookup_cy",
    "messagestore.derive._dispatch_cy",
    "rabbitstore.format.content_cy",
    "rabbitstore.quorum.command_cy",
)
PROGRESS = next((number for number in (3, 2) if os.isatty(number)), None)  # make redirects 1 and 2 to a log, and opens 3


def report(text: str) -> None:
    """Rewrite the progress line of a terminal."""
    if PROGRESS is not None:
        os.write(PROGRESS, f"\r  {text:<76}".encode())


class BuildKernels(build_ext):
    """Compile on all processors and show the progress on a terminal."""

    def finalize_options(self) -> None:
        """Take all processors unless -j says otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        """Count the kernels that are done."""
        self.done = count(1)
        super().build_extensions()
        report("")

    def build_extension(self, ext: Extension) -> None:
        """Compile one kernel."""
        super().build_extension(ext)
        report(f"compiled {next(self.done)} of {len(self.extensions)} kernels: {ext.name}")


def extension(module: str) -> Extension:
    """Describe one kernel, which carries the hash of its sources."""
    level = "-O3" if module in HOT else "-O2"
    is_tuned_outside = "CFLAGS" in os.environ  # a sanitizer or a debugger needs the symbols
    return Extension(
        module,
        [f"{module.replace('.', '/')}.py"],
        extra_compile_args=[] if is_tuned_outside else [level, "-g0"],
        extra_link_args=[] if is_tuned_outside else ["-Wl,-s"],
        define_macros=[("SOURCE_HASH", str(BUILDS["source_hash"](ROOT, module)))],
    )


def extensions() -> list[Extension]:
    """Return all kernels, translated to C; none where compiling is forbidden or Cython is absent."""
    required = os.environ.get("BROKERSTORE_REQUIRE_COMPILED") == "1"
    if BUILDS["is_plain_requested"]():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if required:
            raise
        return []
    modules = [extension(module) for module in BUILDS["kernel_modules"](ROOT)]
    report(f"translating {len(modules)} kernels to C")
    made = cythonize(modules, compiler_directives=DIRECTIVES, build_dir="build/c", nthreads=os.cpu_count() or 1)
    for module in made:
        module.optional = not required  # cythonize drops the attribute, and without it a missing compiler is an error
        module.depends = [path.relative_to(ROOT).as_posix() for path in BUILDS["kernel_sources"](ROOT, module.name)]
    return made


if __name__ == "__main__":  # the workers of cythonize may import this file
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels})
