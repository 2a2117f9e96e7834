"""`make wheel-check`: the distribution builds and installs with a C compiler and without one.

A source archive and two wheels are built from a clean copy of the tree.  Each wheel is installed into an environment of its
own, where a smoke test puts and reads messages and checks which build of the kernels runs.  Required libraries are taken from
the current environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMOKE = ROOT / "scripts" / "smoke.py"
NO_COMPILER = {"CC": "/bin/false", "LDSHARED": "/bin/false", "CXX": "/bin/false"}


def run(*command: str | Path, env: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command and return its output; a failure ends the script."""
    done = subprocess.run(
        [str(part) for part in command], env={**os.environ, **(env or {})}, cwd=folder, text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def clean_copy(target: Path) -> Path:
    """Copy the tree without anything that was built or installed."""
    made = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.egg-info", "*.so", "*.c", "__pycache__", "data", ".*_cache"
    )
    shutil.copytree(ROOT, target, ignore=made)
    return target


def build(tree: Path, out: Path, kind: str, env: dict[str, str]) -> Path:
    """Build one archive with the tools installed here."""
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, tree, env=env)
    (made,) = out.iterdir()
    return made


def check_source_archive(archive: Path) -> None:
    """Assert that the archive contains everything that a build needs."""
    with tarfile.open(archive) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
    wanted = {"LICENSE", "README.md", "pyproject.toml", "setup.py", "commitlog/_append_cy.py", "commitlog/_append_cy.pxd"}
    wanted |= {"storebytes/_bytes_cy.pxd", "storebytes/builds.py", "brokerstore/py.typed"}
    if wanted - names:
        raise SystemExit(f"{archive.name} lacks {sorted(wanted - names)}")
    if built := sorted(name for name in names if name.endswith((".c", ".so"))):
        raise SystemExit(f"{archive.name} has built files in it: {built}")


def check_wheel(wheel: Path, compiled: bool) -> None:
    """Assert that the wheel has all sources, and extensions only if there was a compiler."""
    names = zipfile.ZipFile(wheel).namelist()
    if not any(name.endswith("licenses/LICENSE") for name in names):
        raise SystemExit(f"{wheel.name} has no licence")
    if "commitlog/_append_cy.pxd" not in names or "commitlog/_append_cy.py" not in names:
        raise SystemExit(f"{wheel.name} lacks the kernels' text")
    if any(name.endswith(".so") for name in names) != compiled:
        raise SystemExit(f"{wheel.name}: compiled extensions expected: {compiled}")


def smoke(wheel: Path, folder: Path, build_name: str) -> str:
    """Install the wheel into a new environment and run the smoke test there."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    target = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel)
    libraries = run(sys.executable, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    Path(target, "libraries.pth").write_text(libraries + "\n")
    return run(python, "-P", SMOKE, build_name, target, folder=folder)


def main() -> None:
    """Check the build with a compiler and the one without."""
    with tempfile.TemporaryDirectory(prefix="brokerstore-wheel-") as name:
        folder = Path(name)
        archive = build(clean_copy(folder / "tree-sdist"), folder / "sdist", "sdist", {})
        check_source_archive(archive)
        print(f"{archive.name}: whole")
        has_compiler = shutil.which(os.environ.get("CC", "cc")) is not None
        ways = {"plain": NO_COMPILER, **({"compiled": {"BROKERSTORE_REQUIRE_COMPILED": "1"}} if has_compiler else {})}
        for build_name, env in ways.items():
            with tarfile.open(archive) as members:
                members.extraction_filter = getattr(tarfile, "data_filter", None)  # missing before Python 3.11.4
                members.extractall(folder / build_name)
            (tree,) = (folder / build_name).iterdir()
            wheel = build(tree, folder / f"wheel-{build_name}", "wheel", env)
            check_wheel(wheel, build_name == "compiled")
            print(f"{wheel.name}: {smoke(wheel, folder / f'env-{build_name}', build_name).strip()}")
        if not has_compiler:
            print("no C compiler here: only the plain way was checked")


if __name__ == "__main__":
    main()
