"""One Spark session for all tests of this folder: starting one takes longer than most of them.

`local[2,3]` runs two tasks at a time and tries each up to three times, so that tests can kill tasks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkstore.jar import jar_path

from .stores import make_forged_store, make_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
JAVA_MIN = 17
# Short jobs gain nothing from the second compiler.  The variable reaches the JVMs of child processes too.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"


def why_not() -> str | None:
    """Return why Spark cannot run here, or None if it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed (extra spark)"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        return "there is no Java"
    reported = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    number = reported.partition('version "')[2].partition(".")[0].partition('"')[0]
    if not number.isdigit() or int(number) < JAVA_MIN:
        return f"Java {JAVA_MIN} or later is wanted, found {reported.splitlines()[0] if reported else 'none'}"
    return None


def quick_home(folder: Path) -> Path:
    """Make a copy of Spark's home without the zip file of its Python package, and return it.

    Workers would import from that file, and modules in a zip file are compiled anew in every process.
    """
    import pyspark

    real, home = Path(pyspark.__file__).parent, folder / "home"
    home.mkdir()
    for name in ("bin", "jars", "sbin"):
        (home / name).symlink_to(real / name)
    return home


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start the session.  Its workers find the source through the Python path, as users' workers do, without registration."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    from pyspark.sql import SparkSession

    work = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = str(quick_home(work))
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={work}",
    }
    jar = jar_path()
    if jar is not None:
        settings["spark.jars"] = jar
    builder = SparkSession.builder.master("local[2,3]").appName("brokerstore tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("made") / "made")


@pytest.fixture
def made(_made_once: Path, tmp_path: Path) -> Path:
    """A private copy of a store with records of many sizes in several files, keys and queues."""
    shutil.copytree(_made_once, tmp_path / "made")
    return tmp_path / "made"


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    """A store with a message whose body consists of copies of records."""
    return make_forged_store(tmp_path / "forged")
