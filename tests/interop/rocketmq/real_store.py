"""The real rocketmq-store in a JVM of its own, asked by JSON lines.  Jars and classes are kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSION = "5.3.3"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brokerstore" / f"rocketmq-{VERSION}"
MAVEN_PATIENCE_S = 240
ANSWER_PATIENCE_S = 120
SMALL_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
OPTIONS = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
]


def why_not() -> str:
    """Why there can be no real store here; empty when there can."""
    if os.environ.get("BROKERSTORE_INTEROP") != "1":
        return "set BROKERSTORE_INTEROP=1 to start a real RocketMQ store"
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Java 17 and Maven are needed)"
    return ""


def prepare() -> str:
    """Resolve the jars once and compile the driver once a change; the class path.  `RuntimeError` where Maven cannot."""
    jars = CACHE / "lib"
    if not jars.is_dir():
        _resolve(jars)
    source = HERE / "Driver.java"
    classes = CACHE / f"classes-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not classes.is_dir():
        made = classes.with_name(f"{classes.name}-{os.getpid()}")
        command = ["javac", "-nowarn", "-proc:none", "-cp", f"{jars}/*", "-d", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        shutil.copy(HERE / "logback.xml", made)
        _take_name(made, classes)
    return f"{classes}:{jars}/*"


def _resolve(jars: Path) -> None:
    """Into a folder beside, renamed when whole."""
    made = jars.with_name(f"lib-{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={made}", "-DincludeScope=runtime"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_PATIENCE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Maven cannot resolve rocketmq-store {VERSION}: {done.stdout[-300:]}")
    _take_name(made, jars)


def _take_name(made: Path, name: Path) -> None:
    """A whole folder at once; another process may have been first."""
    try:
        made.rename(name)
    except OSError:
        if not name.is_dir():
            raise
        shutil.rmtree(made)


class Refused(Exception):
    """The driver answered with an error."""


class RealStores:
    """One JVM with any number of stores in it."""

    def __init__(self, errors: Path, heap: str = "512m", options: list[str] | None = None) -> None:
        """`errors`: a file for what the JVM prints on stderr."""
        path = prepare()
        logback = path.split(":")[0] + "/logback.xml"
        quiet = [f"-Drmq.logback.configurationFile={logback}", f"-Dlogback.configurationFile={logback}"]
        command = ["java", f"-Xmx{heap}", *OPTIONS, *(SMALL_JVM if options is None else options), *quiet, "-cp", path, "Driver"]
        self._errors = errors
        self._numbers = iter(range(1, 1 << 30))
        with errors.open("ab") as stream:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream)

    def ask(self, do: str, **arguments: Any) -> Any:
        """One command, one answer."""
        self.tell(do, **arguments)
        return self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        """A command alone."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next line."""
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], ANSWER_PATIENCE_S)[0] or self.process.stdout.peek(1)  # type: ignore[attr-defined]
        line = self.process.stdout.readline() if ready else b""
        if not line.endswith(b"\n"):
            raise Refused(f"no answer from the JVM; its stderr ends with {self._errors.read_text()[-2000:]}")
        found = json.loads(line)
        if isinstance(found, dict) and "error" in found:
            raise Refused(f"{found['error']}\n{self._errors.read_text()[-3000:]}")
        return found

    def open(self, folder: Path, clock_ms: int = 0, **settings: Any) -> RealStore:
        """Load and start the store in a folder; `Refused` when load() says no.  A clock of 0 is the real one."""
        number = next(self._numbers)
        told = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
        found = self.ask("open", id=number, dir=str(folder), set=told, clock=clock_ms)
        if not found["load"]:
            raise Refused(f"load() refused {folder}")
        return RealStore(self, number, found)

    def close(self, stores: list[RealStore]) -> None:
        """Shut stores down cleanly, all at once, since each shutdown sleeps."""
        self.ask("close", ids=[store.number for store in stores])

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """No process and no pipe is left."""
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class RealStore:
    """One open store of the JVM."""

    def __init__(self, jvm: RealStores, number: int, opened: dict[str, Any]) -> None:
        """Made by `RealStores.open`."""
        self.jvm = jvm
        self.number = number
        self.opened = opened

    def ask(self, do: str, **arguments: Any) -> Any:
        return self.jvm.ask(do, id=self.number, **arguments)

    def close(self) -> None:
        self.jvm.close([self])
