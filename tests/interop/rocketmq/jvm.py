"""JVMs that run RocketMQ's own jars, controlled by JSON lines.  Jars and classes are kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
VERSION = "5.3.3"
CLIENT_LEAST = 5  # major version that has all clients of the drivers; an older broker gets those of `VERSION`
CLIENT_PARTS = {"5.5.1": "5.5.0"}  # name server and clients, where they cannot be resolved in the broker's version
BROKER_SOURCES = ("Broker.java", "Lines.java", "Stores.java")
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brokerstore"
MAVEN_PATIENCE_S = 240
ANSWER_PATIENCE_S = 120
STOP_PATIENCE_S = 120
SMALL_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
OPTIONS = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Dfile.encoding=UTF-8",  # for bodies and properties
    "-Dsun.jnu.encoding=UTF-8",  # for folder names in any locale
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
]


def why_not() -> str:
    """Return why no real RocketMQ can run here; an empty text if it can."""
    if os.environ.get("BROKERSTORE_INTEROP") != "1":
        return "set BROKERSTORE_INTEROP=1 to start a real RocketMQ"
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Java 17 and Maven are needed)"
    return ""


def prepare_or_skip(*versions: str) -> None:
    """Prepare the jars of brokers; skip the test with the reason if that fails."""
    try:
        for version in versions or (VERSION,):
            prepare(version)
    except RuntimeError as error:
        pytest.skip(str(error))


def prepare(version: str = VERSION) -> str:
    """Return the class path; resolve the jars and compile changed drivers if necessary.

    Raises RuntimeError if Maven cannot resolve the jars.
    """
    is_broker_only = int(version.split(".")[0]) < CLIENT_LEAST
    names = BROKER_SOURCES if is_broker_only else None
    return prepared(HERE / "pom.xml", HERE / "java", version, names)


def prepared(pom: Path, folder: Path, version: str = VERSION, names: Collection[str] | None = None) -> str:
    """Return the class path of the drivers in a folder, or of some of them, with the jars that a pom names."""
    cache, jars = CACHES / f"rocketmq-{version}", jars_of(pom, version)
    sources = sorted(path for path in folder.glob("*.java") if names is None or path.name in names)
    classes = cache / f"classes-{digest([*sources, HERE / 'logback.xml'])}"
    if not classes.is_dir():
        made = classes.with_name(f"{classes.name}-{os.getpid()}")
        command = ["javac", "-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(made)]
        subprocess.run([*command, *map(str, sources)], check=True, capture_output=True)
        shutil.copy(HERE / "logback.xml", made)
        take_name(made, classes)
    return f"{classes}:{jars}/*"


def jars_of(pom: Path, version: str = VERSION) -> Path:
    """Return the folder of the jars that a pom names; resolve them if necessary."""
    jars = CACHES / f"rocketmq-{version}" / f"lib-{digest([pom])}"
    if not jars.is_dir():
        _resolve(jars, pom, version)
    return jars


def digest(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _resolve(jars: Path, pom: Path, version: str) -> None:
    """Copy the jars into a temporary folder and rename it when complete."""
    made = jars.with_name(f"{jars.name}-{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={made}", "-DincludeScope=runtime", f"-Drocketmq.version={version}"]
    command += [f"-Drocketmq.client.version={CLIENT_PARTS.get(version, version)}"]
    if int(version.split(".")[0]) < CLIENT_LEAST:
        command.append("-Pbroker-4")  # what the drivers need
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_PATIENCE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Maven cannot resolve RocketMQ {version}: {done.stdout[-300:]}")
    take_name(made, jars)


def take_name(made: Path, name: Path) -> None:
    """Rename a complete folder; if another process was first, keep that one's."""
    try:
        made.rename(name)
    except OSError:
        if not name.is_dir():
            raise
        shutil.rmtree(made)


class Refused(Exception):
    """The process answered with an error or not at all."""


class LineProcess:
    """A process that takes commands as lines of JSON and answers each with one."""

    def __init__(self, command: list[str], errors: Path) -> None:
        """Start it; its stderr goes to the file `errors`."""
        self._errors = errors
        with errors.open("ab") as stream:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stream)

    def invoke(self, do: str, **arguments: Any) -> Any:
        """Send a command and return its answer."""
        self.tell(do, **arguments)
        return self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a command without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, patience_s: float = ANSWER_PATIENCE_S) -> Any:
        """Return the next answer; raise Refused if it is an error or missing."""
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], patience_s)[0] or self.process.stdout.peek(1)  # type: ignore[attr-defined]
        line = self.process.stdout.readline() if ready else b""
        if not line.endswith(b"\n"):
            raise Refused(f"no answer; stderr ends with {self._errors.read_text()[-2000:]}")
        found = json.loads(line)
        if isinstance(found, dict) and "error" in found:
            raise Refused(f"{found['error']}\n{self._errors.read_text()[-3000:]}")
        return found

    def stop(self) -> None:
        """Send SIGTERM, which RocketMQ treats as a clean stop, and wait."""
        self.process.terminate()
        self.process.wait(STOP_PATIENCE_S)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill the process and close the pipes."""
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Jvm(LineProcess):
    """One JVM that runs one of the drivers in `java/`."""

    def __init__(
        self, main: str, arguments: list[str], errors: Path, *, heap: str = "512m", options: list[str] | None = None,
        version: str = VERSION,
    ) -> None:  # fmt: skip
        """Start the JVM; the file `errors` is the only place that RocketMQ's own logs go to."""
        path = prepare(version)
        logback = path.split(":")[0] + "/logback.xml"
        own = [f"-Drmq.logback.configurationFile={logback}", f"-Dlogback.configurationFile={logback}"]
        own += [f"-Duser.home={errors.parent}", f"-Drocketmq.home.dir={errors.parent}"]
        command = ["java", f"-Xmx{heap}", *OPTIONS, *(SMALL_JVM if options is None else options), *own, "-cp", path, main]
        if int(version.split(".")[0]) < CLIENT_LEAST:  # such a broker demands the file
            (errors.parent / "conf").mkdir(exist_ok=True)
            (errors.parent / "conf" / "logback_broker.xml").write_text("<configuration/>")
        super().__init__([*command, *arguments], errors)
