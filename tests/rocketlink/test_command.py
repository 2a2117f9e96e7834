"""`brokerstore replicate` against a master of ours, and `brokerstore serve`."""

from __future__ import annotations

import functools
import json
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool import main
from messagestore import MessageStore
from rocketlink.remoting.client import RemotingClient
from tests.brokerstore.schema import check_schema
from tests.processes import running
from tests.rocketlink.test_replica import CONFIG, Master, bodies, put


def test_a_folder_is_replicated_up_to_the_end_that_the_master_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0, the last line has no lag, and the folder can be read."""
    with Master(tmp_path / "m") as master:
        put(master.store, 300)
        end = master.tell()
        address = f"127.0.0.1:{master.broker.port}"
        assert main(["replicate", address, str(tmp_path / "s"), "--from-start", "--until-current", "--json"]) == 0
        expected = bodies(master.store)
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    check_schema("replicate", facts)
    assert facts == {"log_end": end, "durable_end": end, "lag_bytes": 0, "is_connected": True}
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert bodies(store) == expected


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":1", "localhost:0", "localhost:65536", "localhost:x"])
def test_an_address_without_host_or_port_is_wrong_use(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what is expected."""
    assert main(["replicate", address, str(tmp_path / "s")]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


def test_an_unreachable_broker_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is created for it."""
    assert main(["replicate", "127.0.0.1:1", str(tmp_path / "s")]) == 1
    *_, error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("brokerstore: PeerGone: 127.0.0.1:1: ")
    assert hint.startswith("brokerstore: start what serves 127.0.0.1:1, ")
    assert not (tmp_path / "s").exists()


def test_the_log_of_another_store_is_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is a new folder, not a repair of this one."""
    with MessageStore.open(tmp_path / "s", "a", CONFIG) as store:
        store.put("T", b"mine")
    with Master(tmp_path / "m") as master:
        put(master.store, 300)
        master.tell()
        assert main(["replicate", f"127.0.0.1:{master.broker.port}", str(tmp_path / "s"), "--from-start"]) == 1
    *_, error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("brokerstore: MasterDiffers: ")
    assert hint == "brokerstore: run: brokerstore replicate HOST:PORT NEW_DIR --from-start"


def test_a_port_that_is_taken_is_no_failing_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hint shows how to find who has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path / "s"), "--listen", f"127.0.0.1:{port}"]) == 5
    *_, error, hint = capsys.readouterr().err.splitlines()
    assert f"127.0.0.1:{port}: listen failed" in error
    assert hint.startswith("brokerstore: run: ss -ltnp ")


def test_a_folder_of_another_kind_is_not_changed(tmp_path: Path) -> None:
    """As every command that writes."""
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["replicate", "127.0.0.1:1", str(tmp_path)]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def started(*arguments: str) -> AbstractContextManager[subprocess.Popen[Any]]:
    """Start the tool with SIGINT as a terminal sets it; a background job ignores it."""
    reset = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return running([sys.executable, "-m", "brokerstore", *arguments], stdout=subprocess.PIPE, text=True, preexec_fn=reset)


def test_a_port_of_zero_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clients could not find a port that is chosen freely."""
    assert main(["serve", str(tmp_path / "s"), "--listen", "127.0.0.1:0"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


@SIGNALS
def test_a_folder_is_served_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """The address is printed, a client can send, and the store is closed cleanly."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with started("serve", str(tmp_path / "s"), "--listen", f"127.0.0.1:{port}", "--json") as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        with RemotingClient("127.0.0.1", port) as client:
            client.invoke(310, {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0"}, b"body")
        process.send_signal(number)
        assert process.wait(60) == 130
    assert not (tmp_path / "s" / "abort").exists()
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert bodies(store) == [b"body"]
    check_schema("serve", facts)


@SIGNALS
@pytest.mark.deep
def test_a_replica_that_is_stopped_is_closed_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """It has everything, and no mark of an unclean stop."""
    with Master(tmp_path / "m") as master:
        put(master.store, 300)
        end = master.tell()
        with started("replicate", f"127.0.0.1:{master.broker.port}", str(tmp_path / "s"), "--from-start", "--json") as process:
            assert process.stdout is not None
            assert any(json.loads(line)["durable_end"] == end for line in process.stdout)
            process.send_signal(number)
            assert process.wait(60) == 130
        expected = bodies(master.store)
    assert not (tmp_path / "s" / "abort").exists()
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert bodies(store) == expected


def test_certificate_needs_its_key_and_a_grpc_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The options are given together."""
    (tmp_path / "cert.pem").write_bytes(b"")
    assert main(["serve", str(tmp_path / "s"), "--grpc-cert", str(tmp_path / "cert.pem")]) == 2
    assert "give both, with --grpc" in capsys.readouterr().err


def test_grpc_port_without_the_extra_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for every optional package."""
    for name in [name for name in sys.modules if name.startswith("rocketlink.grpc.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main(["serve", str(tmp_path / "s"), "--listen", f"127.0.0.1:{port}", "--grpc", f"127.0.0.1:{port}"]) != 0
    assert "brokerstore[grpc]" in capsys.readouterr().err
