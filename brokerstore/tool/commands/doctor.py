"""`doctor`: the state of this installation."""

from __future__ import annotations

import importlib
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import storebytes
from storebytes.builds import build_name, is_plain_requested, kernel_builds, kernel_modules

from ..codes import CLEAN, PROBLEM
from ..escapes import quote
from ..options import JSON, plain_command
from ..output import Answer, emit_json, print_line, show

PACKAGES = (
    "brokerstore", "numpy", "crcmod", "click", "rich", "pyarrow", "jinja2", "starlette", "uvicorn", "lz4",
    "zstandard", "cramjam", "opentelemetry-api", "kombu", "pyspark", "cython",
)  # fmt: skip
EXTRAS = {
    "click": "cli", "rich": "cli", "pyarrow": "arrow", "jinja2": "report", "starlette": "web", "uvicorn": "web",
    "lz4": "compression", "zstandard": "compression", "cramjam": "compression", "opentelemetry-api": "otel", "kombu": "kombu",
    "pyspark": "spark",
}  # fmt: skip
ROOT = Path(storebytes.__file__).resolve().parent.parent


def installed(package: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@plain_command("doctor", "doctor", "doctor --json")
@JSON
def doctor(as_json: bool) -> int:
    """Show which build of the kernels runs, versions and platform."""
    return examine(as_json)


def examine(as_json: bool) -> int:
    """Report a stale or incomplete build, and kernels that cannot be loaded."""
    broken = _broken()
    if broken:
        return _show_broken(broken, as_json)
    builds = kernel_builds()
    stale = [build.module for build in builds if build.is_stale]
    name = build_name()
    facts: dict[str, Any] = {
        "ok": not stale and name != "mixed",
        "build": name,
        "plain_wanted": is_plain_requested(),
        "kernels": [{"module": build.module, "compiled": build.is_compiled, "stale": build.is_stale} for build in builds],
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "byte_order": sys.byteorder,
        "packages": {package: installed(package) for package in PACKAGES},
    }
    show(Answer(facts, [_fields(facts)]), as_json)
    for module in stale:
        print_line(f"brokerstore: {module} was compiled from other source than the file beside it; rebuild it")
    if stale:
        print_line(f"brokerstore: run: {_build_command()}")
    if name == "mixed":
        plain = ", ".join(build.module for build in builds if not build.is_compiled)
        print_line(f"brokerstore: only some of the kernels are compiled; plain: {plain}")
        print_line(f"brokerstore: run: {_build_command()}")
    return CLEAN if facts["ok"] else PROBLEM


def _broken() -> dict[str, str]:
    """Return the kernels that cannot be loaded, with the error: compiled against other kernels, or for another Python."""
    found = {}
    for module in kernel_modules(ROOT):
        try:
            importlib.import_module(module)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            found[module] = str(error)
    return found


def _show_broken(broken: dict[str, str], as_json: bool) -> int:
    for module, why in broken.items():
        print_line(f"brokerstore: {module} cannot be loaded: {why}; rebuild it")
    print_line(f"brokerstore: run: {_build_command()}")
    if as_json:
        emit_json(
            {"ok": False, "build": "broken", "kernels": [{"module": module, "error": broken[module]} for module in broken]}
        )
    return PROBLEM


def _build_command() -> str:
    """Return the command that builds a source tree, or reinstalls an installation."""
    python = quote(sys.executable)
    if (ROOT / "setup.py").exists():
        return f"cd {quote(str(ROOT))} && {python} setup.py build_ext --inplace --force"
    return f"{python} -m pip install --force-reinstall --no-deps --no-cache-dir brokerstore"


def _absent(package: str) -> str:
    extra = EXTRAS.get(package)
    return "not installed" if extra is None else f"not installed: pip install 'brokerstore[{extra}]'"


def _fields(facts: dict[str, Any]) -> dict[str, object]:
    is_chosen = " (BROKERSTORE_PURE=1)" if facts["plain_wanted"] else ""
    packages = {name: found or _absent(name) for name, found in facts["packages"].items()}
    return {
        "Kernels": f"{facts['build']}{is_chosen}, {len(facts['kernels'])} modules",
        "Python": f"{facts['python']} ({facts['implementation']})",
        "Platform": f"{facts['platform']}, {facts['byte_order']}-endian",
        **packages,
    }
