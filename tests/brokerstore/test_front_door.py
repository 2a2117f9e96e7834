"""Detection of the kind of a folder, the public names, and the cost of an import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brokerstore
from brokerstore.identify import FolderKind, identify
from storageio import UnknownStore
from tests.brokerstore.damage import Log
from tests.brokerstore.tool import run

HEAVY = {"numpy", "pyarrow", "rich", "crcmod", "click", "commitlog", "messagestore", "rabbitstore", "importlib.metadata"}
COSTLY = {"typing", "re", "dataclasses", "logging", "pathlib"}  # 1 to 5 ms each
NOT_IN_INFO = {
    "numpy", "pyarrow", "rich", "importlib.metadata", "asyncio", "concurrent.futures", "shutil", "pathlib", "pkgutil",
    "_hashlib", "messagestore.engine", "commitlog.commit_log", "rabbitstore.store", "rabbitstore.node_folder",
    "storebytes.builds",
}  # fmt: skip


def test_a_rocketmq_store(fixture_store: Any) -> None:
    """Its commitlog folder identifies it."""
    folder = identify(fixture_store("plain").store)
    assert folder.kind is FolderKind.ROCKETMQ
    assert folder.log_folders == [f"{fixture_store('plain').store}/commitlog"]


def test_a_log_folder_is_identified_by_its_records(fixture_store: Any) -> None:
    """The files of a queue have the same kind of name."""
    store = fixture_store("plain").store
    assert identify(store / "commitlog").kind is FolderKind.LOG
    with pytest.raises(UnknownStore):
        identify(store / "consumequeue" / "HotTopic" / "0")


def test_a_rabbitmq_virtual_host(fixture_store: Any) -> None:
    """Its `.vhost` file identifies it; a folder above gets a hint."""
    folder = fixture_store("rabbitmq-clean").folder.parent
    vhost = next(path.parent for path in sorted(folder.rglob(".vhost")))
    assert identify(vhost).kind is FolderKind.RABBITMQ


def test_rocksdb_queues_are_named_not_called_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log beside them is readable, also without the package that reads them."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    log = Log(tmp_path)
    (log.store / "consumequeue_rocksdb").mkdir()
    (log.store / "consumequeue_rocksdb" / "CURRENT").write_text("MANIFEST-000001\n")
    assert identify(log.store).kind is FolderKind.ROCKSDB
    with pytest.raises(UnknownStore, match="RocksDB"):
        brokerstore.open(log.store)
    assert run("info", "--json", log.store).json["kind"] == "rocketmq-rocksdb"
    assert run("verify", log.store).code == 0


def test_a_dledger_log_is_named(tmp_path: Path) -> None:
    """It is read, and not written to."""
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    assert identify(tmp_path).kind is FolderKind.DLEDGER
    assert run("verify", tmp_path).code == 0
    ran = run("put", tmp_path, "T", "body")
    assert ran.code == 3
    assert "DLedger" in ran.talk


def test_the_error_for_a_folder_without_a_store_lists_the_expected_files(tmp_path: Path) -> None:
    """The error also hints at where the store may be; a store without its log is one."""
    Log(tmp_path)
    with pytest.raises(UnknownStore) as caught:
        identify(tmp_path)
    for word in ("commitlog", ".vhost", "dledger", f"did you mean {tmp_path}/store"):
        assert word in str(caught.value)
    (tmp_path / "odd" / "consumequeue").mkdir(parents=True)
    assert identify(tmp_path / "odd").kind is FolderKind.ROCKETMQ
    assert "without its commitlog folder" in run("info", tmp_path / "odd").talk


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    """Folders of a store are often on other disks."""
    log = Log(tmp_path)
    moved = tmp_path / "disk"
    log.folder.rename(moved)
    log.folder.symlink_to(moved)
    (tmp_path / "link").symlink_to(log.store)
    assert run("verify", tmp_path / "link").code == 0


def test_an_empty_log_folder_is_an_empty_store(tmp_path: Path) -> None:
    """The store was created and never written to."""
    (tmp_path / "commitlog").mkdir()
    assert run("verify", tmp_path).code == 0
    assert run("info", "--json", tmp_path).json["files"] == 0
    assert run("ls", "--json", tmp_path).json == {"queues": [], "topics": []}
    assert run("dump", "--json", tmp_path).out == ""
    assert run("get", "--at", 0, tmp_path).code == 1


def test_a_log_of_zeros_is_an_empty_log(tmp_path: Path) -> None:
    """The file was created ahead and never used."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(65536))
    assert run("verify", tmp_path).code == 0
    assert run("info", "--json", tmp_path).json["max_offset"] == 0


def test_public_names_are_those_of_their_packages() -> None:
    """Each comes from its package, and is the same object every time."""
    import commitlog
    import storageio

    assert brokerstore.Message is commitlog.Message
    assert brokerstore.PutStatus is commitlog.PutStatus
    for name in ("StoreError", "StoreCorrupt", "UnknownStore", "PutRejected", "StoreLocked"):
        assert getattr(brokerstore, name) is getattr(storageio, name)
        assert issubclass(getattr(brokerstore, name), storageio.StoreError)
    assert set(brokerstore.__all__) <= set(dir(brokerstore))


def test_the_import_alone_loads_nothing_heavy() -> None:
    """A fresh process imports no heavy module."""
    before, loaded = imported("pass"), imported("import brokerstore")
    assert "brokerstore" in loaded
    assert not loaded & HEAVY
    assert not (loaded - before) & COSTLY


def test_info_imports_neither_the_engine_nor_the_charts(fixture_store: Any) -> None:
    """These imports would delay the first answer, for each kind of folder."""
    vhost = next(path.parent for path in sorted(fixture_store("rabbitmq-clean").folder.parent.rglob(".vhost")))
    found = []
    for folder in (fixture_store("plain").store, vhost, fixture_store("rabbitmq4-clean").folder.parent / "node"):
        found.append(imported(f"from brokerstore.tool import main; main(['info', '--json', {str(folder)!r}])"))
        assert not found[-1] & NOT_IN_INFO
    assert "commitlog.walk" in found[0] - found[1]
    assert "rabbitstore.read.vhost_folder" in found[1] - found[0]
    assert not found[1] & {"decimal", "ipaddress", "urllib.parse"}


def test_an_export_to_parquet_loads_no_pandas(fixture_store: Any, tmp_path: Path) -> None:
    """Several functions of pyarrow import pandas if it is installed."""
    words = ["export", "--to", "parquet", "--out", str(tmp_path / "out"), str(fixture_store("plain").store)]
    loaded = imported(f"from brokerstore.tool import main; main({words!r})")
    assert "pyarrow.parquet" in loaded
    assert "pandas" not in loaded


def test_an_open_and_served_store_loads_no_numpy(tmp_path: Path) -> None:
    """It takes 80 ms and 11 MiB, of which a server for small machines has 60."""
    code = "from messagestore import MessageStore; from rocketlink import BrokerServer\n"
    code += f"with MessageStore.open({str(tmp_path / 's')!r}) as store, BrokerServer(store): store.put('T', b'1')"
    loaded = imported(code)
    assert "rocketlink.server.broker" in loaded
    assert "numpy" not in loaded


def imported(code: str) -> set[str]:
    """Return the modules that a fresh process has imported after running some code.

    -S leaves out what the path files of this environment import; what BROKERSTORE_PURE needs is left out as well.
    """
    code += "\nsys.stderr.write('\\n'.join(sys.modules))"
    paths = f"import sys; sys.path[:] = {sys.path!r}\n"
    root, command = Path(__file__).parents[2], [sys.executable, "-S", "-c", paths + code]
    environment = {name: value for name, value in os.environ.items() if name != "BROKERSTORE_PURE"}
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def test_doctor_prints_the_active_build() -> None:
    """It is the build of this source."""
    from storebytes.builds import build_name, kernel_builds

    ran = run("doctor", "--json")
    assert (ran.code, ran.json["ok"], ran.json["build"]) == (0, True, build_name())
    assert [kernel["module"] for kernel in ran.json["kernels"]] == [build.module for build in kernel_builds()]
    assert run("doctor").out.startswith("Kernels")


def test_doctor_refuses_a_stale_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel was compiled from other source than the file beside it."""
    from brokerstore.tool.commands import doctor
    from storebytes.builds import KernelBuild

    monkeypatch.setattr(doctor, "kernel_builds", lambda: [KernelBuild("commitlog._append_cy", True, True)])
    ran = run("doctor", "--json")
    assert (ran.code, ran.json["ok"]) == (1, False)
    assert "rebuild it" in ran.talk
    assert "setup.py build_ext --inplace --force" in ran.talk


def test_doctor_refuses_half_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some kernels are compiled and some are not."""
    from brokerstore.tool.commands import doctor

    monkeypatch.setattr(doctor, "build_name", lambda: "mixed")
    assert run("doctor", "--json").code == 1


def test_the_error_for_a_kernel_that_cannot_be_loaded_suggests_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names `doctor`, which lists each such kernel and the command that rebuilds it."""
    from brokerstore import tool

    def fail(_arguments: object) -> int:
        raise ImportError("commitlog.Reader size changed, may indicate binary incompatibility")

    monkeypatch.setattr(tool, "_run", fail)
    ran = run("info", ".")
    assert (ran.code, "internal error" in ran.talk) == (1, False)
    assert "run: brokerstore doctor" in ran.talk
    monkeypatch.setitem(sys.modules, "commitlog._scan_cy", None)
    for as_json in ([], ["--json"]):
        ran = run("doctor", *as_json)
        assert (ran.code, "commitlog._scan_cy cannot be loaded" in ran.talk) == (1, True)
        assert "setup.py build_ext --inplace --force" in ran.talk
        assert not as_json or ran.json["kernels"][0]["module"] == "commitlog._scan_cy"


def test_an_installation_without_its_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without setup.py, the hint is to reinstall with pip."""
    from brokerstore.tool.commands import doctor
    from storebytes.builds import KernelBuild

    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "kernel_builds", lambda: [KernelBuild("commitlog._append_cy", True, True)])
    assert "-m pip install --force-reinstall" in run("doctor").talk
