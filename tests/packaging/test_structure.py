"""Which package may import which, and which may do what.  Each test names all files that offend."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.packaging.packages import BELOW, PACKAGES, PUBLIC_MODULES, ROOT, imports, inner_imports, name_of, sources, tree

ENGINES = [package for package in PACKAGES if package not in ("storageio", "brokerstore", "sparkstore")]
SYSTEM = {"mmap", "fcntl", "ctypes", "shutil", "tempfile", "glob", "socket", "subprocess", "signal", "io", "select", "pathlib"}
BEFORE_INSTALLATION = {"storebytes/builds.py"}  # setup.py runs it by its path
THREADS = {"messagestore", "rabbitstore", "rocketlink"}
# An export compresses one batch while it makes the next; the others are what engines and the tool start threads with.
STARTS_THREADS = {"brokerstore/tool/export_forms.py", "storageio/ahead.py", "storageio/background.py"}
PRINTS = {"print", "sys.stdout.write", "sys.stderr.write"}
OF_THE_PROCESS = {"os.getpid", "os.register_at_fork", "os.environ.get", "os.cpu_count"}
OF_NAMES = {"os.fspath", "os.fsencode", "os.fsdecode"}
# Sub-packages of messagestore from the lowest to the highest; ARCHITECTURE.md has the same order.
MESSAGESTORE = (
    "rocksdb", "broker.config", "timers", "derive", "write", "broker.services", "read", "recovery", "repair", "shared",
)  # fmt: skip
# Names of properties, and the rebuild of timer files, which opening, copies and timers share with repair.
PATH_CALLS = {"exists", "isfile", "isdir", "islink", "getsize", "getmtime", "realpath", "samefile"}


def calls(path: Path) -> list[tuple[int, str]]:
    """Return the line and the dotted name of every call in a file."""
    return [(node.lineno, _dotted(node.func)) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]


def _dotted(function: ast.expr) -> str:
    """Return `os.path.exists` for such an expression, and an empty string for one that is not a chain of names."""
    if isinstance(function, ast.Attribute):
        return f"{owner}.{function.attr}" if (owner := _dotted(function.value)) else ""
    return function.id if isinstance(function, ast.Name) else ""


def test_imports_only_go_down() -> None:
    """A package imports from the packages below it and from no others."""
    wrong = [
        f"{name_of(path)} imports {name}"
        for package in PACKAGES
        for path in sources(package)
        for name in imports(path)
        if (top := name.partition(".")[0]) in BELOW and top not in BELOW[package] | {package}
    ]
    assert wrong == []


def test_cimports_only_go_down() -> None:
    """The declarations of the kernels keep the same order."""
    wrong = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.pxd")):
            found = re.findall(r"^\s*(?:from\s+(\w+)[\w.]*\s+cimport|cimport\s+(\w+))", path.read_text(), re.MULTILINE)
            tops = {first or second for first, second in found} & set(BELOW)
            wrong += [f"{name_of(path)} cimports {top}" for top in tops - BELOW[package] - {package}]
    assert wrong == []


def test_no_import_cycle_in_the_tool() -> None:
    """Modules of the tool import each other in one direction, with imports in functions and for types counted."""
    tuple(TopologicalSorter(inner_imports("brokerstore/tool")).static_order())  # raises `CycleError` with the modules


def test_other_packages_import_only_public_modules() -> None:
    """A package is imported through its `__init__` or a module of `PUBLIC_MODULES`, which lists no other ones."""
    inner = {
        (path, name)
        for package in PACKAGES
        for path in sources(package)
        for name in imports(path)
        if (top := name.partition(".")[0]) in BELOW and top not in (package, name)
    }
    used = {(path, name) for path, name in inner if not (path.stem.endswith("_cy") and name.endswith("_cy"))}
    public = {f"{package}.{module}" for package, modules in PUBLIC_MODULES.items() for module in modules.split()}
    assert [f"{name_of(path)} imports {name}" for path, name in used if name not in public] == []
    assert public - {name for _, name in used} == set(), "no other package imports these"


def test_sub_packages_of_messagestore_only_import_lower_ones() -> None:
    """`MESSAGESTORE` is their order; modules beside them are files that all read, or join the sub-packages to a store."""
    wrong = [
        f"{module} imports {name}"
        for module, names in inner_imports("messagestore").items()
        if (position := _position(module)) is not None
        for name in names
        if (_position(name) or 0) > position
    ]
    assert wrong == []


def _position(module: str) -> int | None:
    """Return the place of a module's sub-package in `MESSAGESTORE`, None for a module beside them."""
    found = [position for position, part in enumerate(MESSAGESTORE) if f"{module}.".startswith(f"messagestore.{part}.")]
    assert found or module.count(".") < 2, f"{module} is in no listed sub-package"
    return found[0] if found else None


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycle(package: str) -> None:
    """Modules of a package import each other in one direction, with imports in functions and for types counted."""
    tuple(TopologicalSorter(inner_imports(package)).static_order())  # raises `CycleError` with the modules


def test_only_storageio_touches_the_operating_system() -> None:
    """Engines take a `Disk`; of `os` they use path names and facts about the process."""
    wrong = []
    for path in sources(*ENGINES):
        if name_of(path) in BEFORE_INSTALLATION:
            continue
        tops = {name.partition(".")[0] for name in imports(path)}
        wrong += [f"{name_of(path)} imports {top}" for top in tops & SYSTEM]
        wrong += [f"{name_of(path)}:{line} calls {name}" for line, name in calls(path) if _is_system_call(name)]
    assert wrong == []


def _is_system_call(name: str) -> bool:
    """Return whether a call opens, examines or changes a file."""
    if name.startswith("os.path."):
        return name.rpartition(".")[2] in PATH_CALLS
    return name == "open" or (name.startswith("os.") and name not in OF_NAMES | OF_THE_PROCESS)


def test_only_the_engines_start_threads() -> None:
    """The packages below offer work, and an engine decides which thread does it."""
    wrong = []
    for path in sources(*(package for package in PACKAGES if package not in THREADS | {"sparkstore"})):
        source = path.read_text()
        if name_of(path) not in STARTS_THREADS and ("Thread(" in source or "concurrent.futures" in source):
            wrong.append(name_of(path))
    assert wrong == []


def test_only_the_tool_prints() -> None:
    """The command lines of the tool and of the Spark jobs print; a library never does."""
    paths = sources(*(package for package in PACKAGES if package != "brokerstore"))
    libraries = [path for path in paths if name_of(path) != "sparkstore/__main__.py"]
    assert [f"{name_of(path)}:{line}" for path in libraries for line, name in calls(path) if name in PRINTS] == []


def test_every_package_is_described() -> None:
    """ARCHITECTURE.md and README.md name each."""
    for page in ("ARCHITECTURE.md", "README.md"):
        text = (ROOT / page).read_text()
        assert [package for package in PACKAGES if f"`{package}" not in text] == [], page


def test_every_package_is_installed() -> None:
    """pyproject.toml installs and type-checks each, and the Makefile builds it."""
    settings = (ROOT / "pyproject.toml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for package in PACKAGES:
        assert f'"{package}*"' in settings, f"{package} is not packaged"
        assert f'  "{package}",' in settings, f"{package} is not type-checked"
        assert re.search(rf"^PACKAGES := .*\b{package}\b", makefile, re.MULTILINE), f"{package} is not in the Makefile"
        assert (ROOT / package / "py.typed").exists(), f"{package} has no py.typed"


def test_every_package_has_tests() -> None:
    """They are in tests/<package>/."""
    assert [package for package in PACKAGES if not (ROOT / "tests" / package).is_dir()] == []


def test_no_file_contains_a_registry_host() -> None:
    """Registries are reached through their ordinary clients, with the settings of the machine."""
    listed = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml", ROOT / "setup.py"]
    hosts = ("pypi" + ".org", "python" + "hosted", "index" + "-url")
    paths = [*listed, *sources(*PACKAGES), *Path(ROOT / "scripts").glob("*.py")]
    assert [f"{path}: {host}" for path in paths for host in hosts if host in path.read_text()] == []
