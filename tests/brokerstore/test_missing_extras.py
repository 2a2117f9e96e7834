"""Without an optional package the error names the package and the command that installs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from brokerstore import MessageStore, MissingExtra, StoreConfig
from tests.brokerstore.tool import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a store of one message."""
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small(mapped_file_size_commit_log=1 << 20)) as store:
        store.put("T", b"x")
    return tmp_path / "s"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a package and its parts impossible to import."""

    def hide(package: str) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def test_columns_without_pyarrow_raise_missing_extra(folder: Path, absent: Any) -> None:
    """The error is an `ImportError` with the package's name, too."""
    absent("pyarrow")
    with MessageStore.open(folder, "r") as store, pytest.raises(MissingExtra) as caught:
        store.read_columns("T", 0)
    assert str(caught.value) == "pyarrow is not installed: pip install 'brokerstore[arrow]'"
    assert isinstance(caught.value, ImportError) and caught.value.name == "pyarrow"


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("pyarrow", "arrow", ["export", "{folder}", "--to", "parquet", "--out", "{folder}.parquet"]),
        ("pyarrow", "arrow", ["import", "{folder}/x.parquet", "--to", "{folder}.new"]),
        ("jinja2", "report", ["report", "{folder}"]), ("starlette", "web", ["web", "{folder}"]),
        ("uvicorn", "web", ["web", "{folder}"]),
    ],
)  # fmt: skip
def test_commands_without_an_extra_print_how_to_install_it(
    folder: Path, absent: Any, package: str, extra: str, arguments: list[str]
) -> None:
    """The command ends with one line, and nothing on stdout."""
    (folder / "x.parquet").write_bytes(b"PAR1")
    absent(package)
    ran = run(*(word.format(folder=folder) for word in arguments))
    assert ran.code != 0 and ran.out == ""
    assert f"{package} is not installed: pip install 'brokerstore[{extra}]'" in ran.talk


@pytest.mark.parametrize("name", ["plain", "rabbitmq-clean"])
def test_csv_needs_no_extra(fixture_store: Any, absent: Any, name: str) -> None:
    """The standard library writes it: the rows are those of the export with every package."""
    fixture = fixture_store(name)
    folder = fixture.store if fixture.store.exists() else fixture.folder.parent / "vhost"
    whole = run("export", "--to", "csv", folder)
    absent("pyarrow")
    absent("pandas")
    assert run("export", "--to", "csv", folder) == whole
    assert len(whole.out.splitlines()) > 100


def test_doctor_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside each package that is not installed."""
    doctor = sys.modules.get("brokerstore.tool.commands.doctor") or __import__(
        "brokerstore.tool.commands.doctor", fromlist=["doctor"]
    )
    monkeypatch.setattr(doctor, "installed", lambda package: None if package in ("pyarrow", "lz4", "cython") else "1.0")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in run("doctor").out.splitlines()}
    assert lines["pyarrow"] == "not installed: pip install 'brokerstore[arrow]'"
    assert lines["lz4"] == "not installed: pip install 'brokerstore[compression]'"
    assert (lines["cython"], lines["numpy"]) == ("not installed", "1.0")
