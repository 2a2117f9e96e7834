"""RocketMQ's store in a JVM of its own, controlled by JSON lines."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MADE = HERE / "target"
HEAP = "3g"
JVM = [
    "-server", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30", "-XX:MaxDirectMemorySize=15g", "-XX:-UseLargePages", "-XX:+AlwaysPreTouch",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", f"-Drmq.logback.configurationFile={MADE}/classes/logback.xml",
    f"-Dlogback.configurationFile={MADE}/classes/logback.xml", "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
]  # fmt: skip


def why_not() -> str:
    """Return why this peer cannot run here; an empty text if it can."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed (Java 17 and Maven wanted)" if missing else ""


def build() -> None:
    """Fetch the jars once, and compile the classes if the source is newer."""
    jars, classes, source = MADE / "lib", MADE / "classes", HERE / "java" / "PeerStore.java"
    if not jars.is_dir():
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"], check=True)
    made = classes / "PeerStore.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["javac", "-nowarn", "-proc:none", "-cp", f"{jars}/*", "-d", str(classes), str(source)], check=True)
        shutil.copy(HERE / "java" / "logback.xml", classes)


class JavaStores:
    """A JVM, which ends with the `with` block."""

    def __init__(self) -> None:
        """Compile what is needed and start the JVM."""
        build()
        command = ["java", *JVM, "-cp", f"{MADE}/classes:{MADE}/lib/*", "PeerStore"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._numbers = itertools.count(1)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)

    def __enter__(self) -> JavaStores:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the JVM's process."""
        self.process.kill()
        self.process.communicate()
        self._errors.close()

    def invoke(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        found = json.loads(line) if line else {"error": "the JVM is gone"}
        if "error" in found:
            self._errors.seek(0)
            raise RuntimeError(f"{found['error']}\n{self._errors.read()[-3000:].decode(errors='replace')}")
        return dict(found)

    def open(self, folder: Path, mode: str = "async", **settings: Any) -> JavaStore:
        """Open a store and wait until queues and index have caught up; `seconds` is how long that took."""
        number = next(self._numbers)
        measured = self.invoke(
            "open", id=number, dir=str(folder), mode=mode, set={name: str(value) for name, value in settings.items()}
        )
        return JavaStore(self, number, measured["seconds"])


class JavaStore:
    """One open store with the methods of `OwnStore`."""

    def __init__(self, jvm: JavaStores, number: int, seconds: float) -> None:
        self._jvm = jvm
        self._number = number
        self.seconds = seconds

    def put(self, topic: str, count: int, body: int, threads: int = 1, *, is_timed: bool = False) -> dict[str, Any]:
        """Put one message a call."""
        return self._invoke("put", topic=topic, count=count, body=body, threads=threads, timed=is_timed)

    def put_batch(self, topic: str, count: int, body: int, size: int) -> dict[str, Any]:
        """Call putMessages with `size` messages a call."""
        return self._invoke("batch", topic=topic, count=count, body=body, size=size)

    def scan(self, topic: str, *, is_decoded: bool) -> dict[str, Any]:
        """Read every message of four queues, 32 a call."""
        return self._invoke("scan", topic=topic, decoded=is_decoded)

    def probe(self, topic: str, what: str, count: int, messages: int) -> dict[str, Any]:
        """Look up random messages by `what`."""
        return self._invoke("probe", topic=topic, what=what, count=count, messages=messages)

    def close(self) -> None:
        """Shut the store down cleanly."""
        self._invoke("close")

    def _invoke(self, do: str, **arguments: Any) -> dict[str, Any]:
        return self._jvm.invoke(do, id=self._number, **arguments)
