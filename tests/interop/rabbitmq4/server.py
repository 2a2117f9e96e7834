"""A temporary RabbitMQ node in a chroot of `install.sh`, on loopback, with its own data, cookie and ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

HOMES = Path(os.environ.get("BROKERSTORE_RABBITMQ_SERVERS") or Path.home() / ".cache/brokerstore")
HOME = Path(os.environ.get("BROKERSTORE_RABBITMQ4") or HOMES / "rabbitmq-4.0")
AMQP_PORT = int(os.environ.get("BROKERSTORE_RABBITMQ4_PORT") or 5783)  # another one for each run at the same time
DISTRIBUTION_PORT, MAPPER_PORT = AMQP_PORT + 20000, AMQP_PORT - 1400
_PATIENCE_S = 120


def home_of(suite: str) -> Path:
    """Return where `install.sh` puts the server of a Debian release."""
    return HOME if suite == "trixie" else HOMES / f"rabbitmq-{suite}"


def why_not(home: Path = HOME) -> str:
    """Return why no server can run here; an empty text if it can."""
    if os.environ.get("BROKERSTORE_INTEROP") != "1":
        return "set BROKERSTORE_INTEROP=1 to start a real RabbitMQ 4"
    if os.geteuid() != 0:
        return "RabbitMQ 4 runs in a chroot, which needs root"
    if not (home / "version").exists():
        return f"no RabbitMQ is installed in {home} (tests/interop/rabbitmq4/install.sh)"
    return ""


class Server:
    """A node; `node` is its data folder as seen from outside of the chroot."""

    def __init__(
        self,
        name: str,
        *,
        node_name: str = "interop",
        shift: int = 0,
        plugins: str = "",
        advanced: str = "",
        settings: str = "",
        home: Path = HOME,
    ) -> None:
        """Prepare the node; its folder /srv/`name` in the chroot is recreated.

        `shift` is added to all ports.  `plugins` and `advanced` are Erlang terms, `settings` lines of `rabbitmq.conf`.
        """
        self.home = home
        self.node_name = f"{node_name}@localhost"
        self.port, self._distribution_port, self.mapper_port = (
            AMQP_PORT + shift,
            DISTRIBUTION_PORT + shift,
            MAPPER_PORT + shift,
        )
        self.inside = f"/srv/{name}"
        self.outside = home / "root" / "srv" / name
        shutil.rmtree(self.outside, ignore_errors=True)
        for folder in ("mnesia", "log"):
            (self.outside / folder).mkdir(parents=True)
        (self.outside / "enabled_plugins").write_text(f"[{plugins}].\n")
        (self.outside / "advanced.config").write_text(f"[{advanced}].\n")
        (self.outside / "environment.conf").write_text("")
        (self.outside / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 50MB\n"
            f"vm_memory_calculation_strategy = erlang\n{settings}"  # 3.8 does not start without /proc otherwise
        )
        self.node = self.outside / "mnesia" / self.node_name
        self._pid_file = self.outside / "pid"
        self._process: subprocess.Popen[bytes] | None = None

    def _command(self, *words: str) -> list[str]:
        version = (self.home / "version").read_text().strip()
        base = self.inside
        settings = {
            "HOME": base,
            "PATH": f"/usr/lib/rabbitmq/lib/rabbitmq_server-{version}/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "ERL_CRASH_DUMP": "/dev/null",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.mapper_port),
            "RABBITMQ_NODENAME": self.node_name,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": f"{base}/mnesia",
            "RABBITMQ_MNESIA_DIR": f"{base}/mnesia/{self.node_name}",  # `rabbitmqctl` of 3.8 does not derive these
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{base}/mnesia/{self.node_name}-feature_flags",
            "RABBITMQ_LOG_BASE": f"{base}/log",
            "RABBITMQ_CONFIG_FILE": f"{base}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{base}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{base}/enabled_plugins",
            "RABBITMQ_CONF_ENV_FILE": f"{base}/environment.conf",
            "RABBITMQ_PID_FILE": f"{base}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
        }
        return [
            "chroot",
            str(self.home / "root"),
            "env",
            "-i",
            *(f"{name}={value}" for name, value in settings.items()),
            *words,
        ]

    def control(self, *words: str) -> str:
        """Run rabbitmqctl for the node; return an empty text, or why it failed."""
        ran = subprocess.run(self._command("rabbitmqctl", "-q", *words), capture_output=True, text=True, check=False)
        return "" if not ran.returncode else (ran.stderr + ran.stdout) or "failed"

    def start(self) -> None:
        """Start the node and wait until it accepts connections."""
        self._pid_file.unlink(missing_ok=True)
        with (self.outside / "log" / "console").open("ab") as console:
            self._process = subprocess.Popen(
                self._command("rabbitmq-server"), stdout=console, stderr=console, stdin=subprocess.DEVNULL
            )
        for _ in range(_PATIENCE_S * 10):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0 and self._pid_file.exists():
                    return
            assert self._process.poll() is None, (self.outside / "log" / "console").read_text()[-2000:]
            time.sleep(0.1)
        raise AssertionError("the server did not come up")

    def end(self, how: signal.Signals) -> None:
        """Signal the node's process: SIGTERM stops it cleanly, SIGKILL is a crash.

        A server that does not stop is killed, and `TimeoutExpired` raised: 3.10.8 hangs if queues have crashed.
        """
        if self._process is None:
            return
        pid = int(self._pid_file.read_text())  # a server that stops removes it
        os.kill(pid, how)
        try:
            self._process.wait(_PATIENCE_S / 2)
        except subprocess.TimeoutExpired:
            os.kill(pid, signal.SIGKILL)
            self._process.wait(_PATIENCE_S)
            raise
        finally:
            self._process = None

    def abandon(self) -> None:
        """Forget a process that ended while it started; kill it if it hangs."""
        if self._process is not None and self._process.poll() is None:
            if self._pid_file.exists():
                os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait(_PATIENCE_S)
        self._process = None

    def close(self) -> None:
        """Stop the node and its port mapper and delete its data."""
        self.end(signal.SIGKILL)
        subprocess.run(self._command("epmd", "-port", str(self.mapper_port), "-kill"), capture_output=True, check=False)
        shutil.rmtree(self.outside, ignore_errors=True)
