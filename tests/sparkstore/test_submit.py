"""Jobs by `spark-submit` and the `pyspark` shell, as documented: a JVM starts Python instead of the other way round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("pyspark")

import pyspark

from sparkstore.jar import jar_path
from storebytes.builds import PACKAGES

from .conftest import JAVA_OPTIONS, ROOT, why_not

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("jar", [""] if jar_path() is None else ["", jar_path()])
def test_a_python_without_the_library_is_named(made: Path, tmp_path: Path, jar: str) -> None:
    """A script run without its environment used to print a hundred lines of Java without the reason."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    python = {"PYSPARK_PYTHON": str(bare / "bin" / "python"), "PYTHONPATH": "", "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pyspark.sql import SparkSession\n"
        "from sparkstore import read_messages\n"
        'spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")\n'
        'spark = spark.config("spark.jars", sys.argv[3]).getOrCreate()\n'
        "read_messages(spark, sys.argv[2])\n"
    )
    reported = subprocess.run(
        [sys.executable, "-c", script, str(ROOT), str(made), jar], capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | python | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert reported.returncode != 0
    last = reported.stderr.strip().splitlines()[-1]
    assert last.startswith("storageio.errors.MissingExtra: the Python of Spark's workers")
    assert (str(bare) in last, sys.executable in last) == (True, True)


def test_a_job_by_spark_submit(made: Path) -> None:
    """The documented command used to end with an import error."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = ["--master", "local[2]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false"]
    settings += ["--conf", "spark.sql.shuffle.partitions=2"]
    command = [submit, *settings, ROOT / "sparkstore" / "__main__.py", "stats", made, "--by", "topic", "--json"]
    reported = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False,
        env=os.environ | python | {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS},
    )  # fmt: skip
    assert reported.returncode == 0, reported.stderr[-3000:]
    rows = [json.loads(line) for line in reported.stdout.splitlines() if line.startswith("{")]
    assert [(row["topic"], row["messages"]) for row in rows] == [(f"topic-{number}", 500) for number in range(3)]
    assert "stats: done in" in reported.stdout, "spark-submit joins the two outputs of a Python program"


def not_activated(command: str, *words: object, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Spark by its path in an environment that is not activated, with the variable that the page names."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    script = Path(sys.executable).parent / command
    if not script.exists():
        pytest.skip(f"{script} does not exist")
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != script.parent]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    given = {"PYSPARK_PYTHON": sys.executable, "PATH": os.pathsep.join(folders), "PYTHONPATH": str(ROOT)}
    given |= {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS} | more
    settings = ["--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.ui.showConsoleProgress=false"]
    return subprocess.run(
        [str(script), *settings, *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env=inherited | given,
    )


def test_spark_submit_of_an_environment_that_is_not_activated(made: Path, tmp_path: Path) -> None:
    """Spark's script looks for itself with `python3`, unless PYSPARK_PYTHON is set."""
    program = tmp_path / "count.py"
    program.write_text(
        "import sys, sparkstore\n"
        "spark = sparkstore.session()\n"
        "print('rows', sparkstore.read_meta(spark, sys.argv[1]).count())\n"
        "spark.read.format('brokerstore').load('/absent')\n"
    )
    reported = not_activated("spark-submit", program, made)
    assert reported.stdout.splitlines() == ["rows 1500", "storageio.errors.UnknownStore: /absent: no such folder"], (
        reported.stderr[-3000:]
    )
    assert reported.returncode == 1


def test_the_pyspark_shell(made: Path) -> None:
    """The shell's own session finds the format; after `sparkstore.session()` an error is one line, and the shell goes on."""
    typed = (
        f"print('rows', spark.read.format('brokerstore').load({str(made)!r}).count())\n"
        "import sparkstore\n"
        "print('same', sparkstore.session() is spark)\n"
        "spark.read.format('brokerstore').load('/absent')\n"
        f"print('meta', sparkstore.read_meta(spark, {str(made)!r}).count())\n"
    )
    reported = not_activated(
        "pyspark", text=typed, PYSPARK_DRIVER_PYTHON_OPTS="-i"
    )  # interactive, although stdin is no terminal
    assert [line for line in reported.stdout.splitlines() if line[:4] in ("rows", "same", "meta")] == [
        "rows 1500", "same True", "meta 1500",
    ], reported.stderr[-3000:]  # fmt: skip
    assert "UnknownStore: /absent: no such folder" in reported.stderr and "Traceback" not in reported.stderr


def test_a_zip_of_the_packages_for_executors_without_the_library(made: Path, tmp_path: Path) -> None:
    """Kernels cannot be imported from a zip: plain Python runs.  Spark does not find the format; the error says what to do."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    installed = Path(pyspark.__file__).parents[1]
    if (installed / "sparkstore").exists():
        pytest.skip("the library is beside pyspark")
    with ZipFile(tmp_path / "library.zip", "w") as library:
        for file in (
            found for name in (*PACKAGES, "brokerstore", "sparkstore", "storageio") for found in (ROOT / name).rglob("*.py")
        ):
            library.write(file, file.relative_to(ROOT))
    venv.create(tmp_path / "bare", with_pip=False)
    program = tmp_path / "count.py"
    program.write_text(
        "import sys, sparkstore\n"
        "from commitlog import _scan_cy\n"
        "from sparkstore.source.data_source import BrokerStoreSource\n"
        "spark = sparkstore.session()\n"
        "try:\n"
        "    sparkstore.read_meta(spark, sys.argv[1])\n"
        "except Exception as error:\n"
        "    print('error', error)\n"
        "spark.dataSource.register(BrokerStoreSource)\n"
        "found = sparkstore.read_messages(spark, sys.argv[1]).where('length(body) >= 0')\n"
        "print('rows', found.count(), _scan_cy.__file__.rpartition('/')[2])\n"
        "frame = spark.range(9).selectExpr('\"t\" topic', 'cast(string(id) AS binary) body')\n"
        "frame.write.format('brokerstore').mode('append').save(sys.argv[2])\n"
        "print('sink', sparkstore.read_meta(spark, sys.argv[2]).count())\n"
    )
    python = str(tmp_path / "bare" / "bin" / "python")
    environment = {
        "PYTHONPATH": str(installed), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
    }  # fmt: skip
    settings = ["--master", "local-cluster[1,1,1024]", "--driver-memory", "600m", "--conf", "spark.ui.enabled=false"]
    settings += ["--conf", "spark.executor.memory=500m", "--conf", f"spark.executorEnv.PYTHONPATH={installed}"]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    reported = subprocess.run(
        [str(submit), *settings, "--py-files", str(tmp_path / "library.zip"), str(program), str(made), str(tmp_path / "sink")],
        capture_output=True, text=True, check=False, env=os.environ | environment, cwd=tmp_path,
    )  # fmt: skip
    lines = [line for line in reported.stdout.splitlines() if line.startswith(("error", "rows", "sink"))]
    assert len(lines) == 3, reported.stderr[-3000:]
    assert "call spark.dataSource.register(BrokerStoreSource)" in lines[0]
    assert lines[1:] == ["rows 1500 _scan_cy.py", "sink 9"]
