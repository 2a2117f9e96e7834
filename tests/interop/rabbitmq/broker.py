"""A temporary RabbitMQ node on loopback with its own home, cookie, data, logs and ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

BIN = Path("/usr/lib/rabbitmq/bin")
AMQP_PORT, DISTRIBUTION_PORT, MAPPER_PORT = 5681, 25681, 4381
_PATIENCE_S = 90


def why_not() -> str:
    """Return why no broker can run here; an empty text if it can."""
    if os.environ.get("BROKERSTORE_INTEROP") != "1":
        return "set BROKERSTORE_INTEROP=1 to start a real RabbitMQ"
    if not (BIN / "rabbitmq-server").exists():
        return "rabbitmq-server is not installed (tests/interop/rabbitmq/install.sh)"
    return ""


class Broker:
    """A node; `vhost` is the folder of its virtual host "/"."""

    def __init__(self, base: Path, *lines: str) -> None:
        """Prepare the node; `lines` go into rabbitmq.conf."""
        self.base = base
        self.vhost = base / "data" / "brokerstore@localhost" / "msg_stores" / "vhosts" / "628WB79CIFDYO9LJI6DKMI09L"
        self._pid_file = base / "pid"
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("home", "data", "log"):
            (base / name).mkdir(parents=True)
        (base / "enabled_plugins").write_text("[].\n")
        (base / "advanced.config").write_text("[].\n")
        (base / "environment.conf").write_text("")
        settings = [f"listeners.tcp.1 = 127.0.0.1:{AMQP_PORT}", "disk_free_limit.absolute = 50MB", *lines]
        (base / "rabbitmq.conf").write_text("\n".join(settings) + "\n")

    @property
    def _environment(self) -> dict[str, str]:
        base = self.base
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(base / "home"),
            "LANG": "C.UTF-8",
            "ERL_CRASH_DUMP": "/dev/null",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(MAPPER_PORT),
            "RABBITMQ_NODENAME": "brokerstore@localhost",
            "RABBITMQ_MNESIA_BASE": str(base / "data"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(base / "environment.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(DISTRIBUTION_PORT),
            "RABBITMQ_PID_FILE": str(self._pid_file),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def start(self) -> None:
        """Start the node and wait until it accepts connections."""
        with (self.base / "log" / "console").open("ab") as console:
            command = [str(BIN / "rabbitmq-server")]
            self._process = subprocess.Popen(
                command, cwd=self.base, env=self._environment, stdout=console, stderr=console, stdin=subprocess.DEVNULL
            )
        for _ in range(_PATIENCE_S * 10):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", AMQP_PORT)) == 0:
                    return
            assert self._process.poll() is None, (self.base / "log" / "console").read_text()[-2000:]
            time.sleep(0.1)
        raise AssertionError("the broker did not come up")

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl and return its output."""
        command = [str(BIN / "rabbitmqctl"), "-q", *arguments]
        return subprocess.run(command, env=self._environment, check=True, capture_output=True, text=True).stdout

    def stop(self) -> None:
        """Stop the node cleanly."""
        self.control("stop")
        self._wait()

    def kill(self) -> None:
        """Send SIGKILL to the node's process."""
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(_PATIENCE_S)
        self._process = None

    def log(self) -> str:
        """Return the node's log."""
        return "".join(path.read_text(errors="replace") for path in sorted((self.base / "log").glob("*.log")))

    def end(self) -> None:
        """Stop the node and its port mapper."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        mapper = shutil.which("epmd")
        if mapper:
            subprocess.run(
                [mapper, "-port", str(MAPPER_PORT), "-kill"], env=self._environment, capture_output=True, check=False
            )
