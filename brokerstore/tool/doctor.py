"""`doctor`: what this installation is made of."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from storebytes.builds import build_name, kernel_builds, wants_plain

from .codes import CLEAN, PROBLEM
from .output import emit_json, fields, say

PACKAGES = ("brokerstore", "numpy", "crcmod", "click", "rich", "pyarrow", "lz4", "zstandard", "cython")


def installed(package: str) -> str | None:
    """The version of a distribution, None when it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def examine(as_json: bool) -> int:
    """A stale or half-built installation is a problem."""
    builds = kernel_builds()
    stale = [build.module for build in builds if build.is_stale]
    name = build_name()
    facts: dict[str, Any] = {
        "ok": not stale and name != "mixed",
        "build": name,
        "plain_wanted": wants_plain(),
        "kernels": [{"module": build.module, "compiled": build.is_compiled, "stale": build.is_stale} for build in builds],
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "byte_order": sys.byteorder,
        "packages": {package: installed(package) for package in PACKAGES},
    }
    if as_json:
        emit_json(facts)
    else:
        _show(facts)
    for module in stale:
        say(f"brokerstore: {module} was compiled from another text than the one beside it; build again")
    if name == "mixed":
        plain = ", ".join(build.module for build in builds if not build.is_compiled)
        say(f"brokerstore: only a part of the kernels is compiled; plain: {plain}")
    return CLEAN if facts["ok"] else PROBLEM


def _show(facts: dict[str, Any]) -> None:
    wanted = " (BROKERSTORE_PURE=1)" if facts["plain_wanted"] else ""
    packages = {name: found or "not installed" for name, found in facts["packages"].items()}
    fields(
        {
            "Kernels": f"{facts['build']}{wanted}, {len(facts['kernels'])} modules",
            "Python": f"{facts['python']} ({facts['implementation']})",
            "Platform": f"{facts['platform']}, {facts['byte_order']}-endian",
            **packages,
        }
    )
