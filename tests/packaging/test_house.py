"""Who may call whom, and who may do what."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.packaging.house import BELOW, ROOMS, ROOT, imports, name_of, sources, tree

ENGINES = [room for room in ROOMS if room not in ("storageio", "brokerstore", "sparkstore")]
SYSTEM = {"mmap", "fcntl", "ctypes", "shutil", "tempfile", "glob", "socket", "subprocess", "signal", "io", "select"}
# setup.py runs it by its path, before anything is installed
EXEMPT = {"storebytes/builds.py"}
THREADS = {"messagestore", "rabbitstore"}


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_only_go_down(room: str) -> None:
    """A room imports from the rooms below it and from no others."""
    ours = set(BELOW)
    for path in sources(room):
        wrong = {name for name in imports(path) if (top := name.partition(".")[0]) in ours and top not in BELOW[room] | {room}}
        assert not wrong, f"{name_of(path)} imports {wrong}"


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_of_the_kernels_only_go_down(room: str) -> None:
    """Their `cimport`s too."""
    for path in sorted((ROOT / room).rglob("*.pxd")):
        names = re.findall(r"^\s*(?:from\s+(\w+)[\w.]*\s+cimport|cimport\s+(\w+))", path.read_text(), re.MULTILINE)
        tops = {first or second for first, second in names} & set(BELOW)
        assert tops <= BELOW[room] | {room}, f"{name_of(path)} cimports {tops}"


@pytest.mark.parametrize("room", ENGINES)
def test_only_storageio_touches_the_operating_system(room: str) -> None:
    """Engines take a `Disk`; of `os` they use names of paths and the environment's size of things, never a call on files."""
    for path in sources(room):
        if name_of(path) in EXEMPT:
            continue
        tops = {name.partition(".")[0] for name in imports(path)}
        assert not tops & (SYSTEM | {"pathlib"}), f"{name_of(path)} imports {tops & SYSTEM}"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                assert not _is_system_call(node.func), f"{name_of(path)}:{node.lineno} calls {ast.unparse(node.func)}"


def _is_system_call(function: ast.expr) -> bool:
    """`open(...)`, `os.x(...)` but for those that touch nothing, `os.path.x(...)` that looks at files."""
    text = ast.unparse(function)
    if text.startswith("os.path."):
        return text.rpartition(".")[2] in {"exists", "isfile", "isdir", "islink", "getsize", "getmtime", "realpath", "samefile"}
    return text == "open" or (text.startswith("os.") and text not in {"os.fspath", "os.fsencode", "os.fsdecode", *_PROCESS})


_PROCESS = {"os.getpid", "os.register_at_fork", "os.environ.get", "os.cpu_count"}


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in THREADS | {"sparkstore"}])
def test_only_the_engines_start_threads(room: str) -> None:
    """The rooms below offer work; who owns threads calls it.  An export compresses one batch while it makes the next."""
    for path in sources(room):
        if name_of(path) in {"brokerstore/tool/export_forms.py", "storageio/background.py"}:  # the latter: engines start it
            continue
        text = path.read_text()
        assert "Thread(" not in text, f"{name_of(path)} starts a thread"
        assert "concurrent.futures" not in text, f"{name_of(path)} starts threads"


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "brokerstore"])
def test_only_the_tool_prints(room: str) -> None:
    """A library is silent."""
    for path in sources(room):
        if name_of(path) == "sparkstore/__main__.py":
            continue  # the front door of the jobs
        for node in ast.walk(tree(path)):
            is_print = isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "sys.stdout.write",
                "sys.stderr.write",
            )
            assert not is_print, f"{name_of(path)}:{node.lineno} prints"


def test_every_room_stands_in_the_table_of_the_house() -> None:
    """ARCHITECTURE.md and README.md name each."""
    for page in ("ARCHITECTURE.md", "README.md"):
        text = (ROOT / page).read_text()
        assert all(f"`{room}" in text for room in ROOMS), page


def test_the_rooms_are_what_is_installed() -> None:
    """In pyproject.toml, in the Makefile, and for the type checker."""
    text = (ROOT / "pyproject.toml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for room in ROOMS:
        assert f'"{room}*"' in text, f"{room} is not packaged"
        assert f'  "{room}",' in text, f"{room} is not type-checked"
        assert re.search(rf"^PACKAGES := .*\b{room}\b", makefile, re.MULTILINE), f"{room} is not in the Makefile"
        assert (ROOT / room / "py.typed").exists(), f"{room} has no py.typed"


def test_a_package_with_tests_for_each_room() -> None:
    """tests/<room>/ beside each room that has code."""
    for room in ROOMS:
        code = [path for path in sources(room) if path.stat().st_size > 0]
        assert not code or (ROOT / "tests" / room).is_dir(), f"{room} has no tests"


def test_nothing_names_a_registry_host() -> None:
    """Registries are reached through their ordinary clients, as whoever runs them has set them up."""
    listed = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml", ROOT / "setup.py"]
    hosts = ("pypi" + ".org", "python" + "hosted", "index" + "-url")
    for path in [*listed, *sources(*ROOMS), *Path(ROOT / "scripts").glob("*.py")]:
        assert not [host for host in hosts if host in path.read_text()], path
