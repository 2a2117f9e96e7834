"""`brokerstore serve` in a process of its own."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECRET = "a secret"
LOWEST_PORT, HIGHEST_PORT = 15_000, 32_000  # below those that systems give to clients, also while a server is down


class Server:
    """`brokerstore serve --grpc` in a process of its own, on the same ports after a kill."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.errors = folder.with_name(f"{folder.name}-errors")
        self.ports = free_ports(2)
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def start(self) -> None:
        listen, grpc = (f"127.0.0.1:{port}" for port in self.ports)
        command = [sys.executable, "-m", "brokerstore", "serve", str(self.folder), "--listen", listen, "--grpc", grpc, "--json"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "BROKERSTORE_SECRET": SECRET}
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, *self.options], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["grpc"] == grpc

    def kill(self) -> None:
        """Kill it without a chance to close the store."""
        self.process.kill()
        self._end()

    def stop(self) -> None:
        """Let it close the store."""
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for `localhost` that signs itself; return its file and that of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder.mkdir(exist_ok=True)
    found, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(found)]
    subprocess.run(command, check=True, capture_output=True)
    return found, key


def free_ports(count: int) -> list[int]:
    """Return free ports.  A broker also listens on its own port minus 2."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(LOWEST_PORT, HIGHEST_PORT)
        if all(_is_free(port - step) for step in (0, 2)) and not {port, port - 2, port + 2} & set(found):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
