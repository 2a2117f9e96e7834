"""Run the pipeline twice over a store that grows in between: `python run.py [FOLDER]` (/tmp/brokerstore-pipeline).

The second run reads only the new messages.  Needs `brokerstore[spark]` with `pyspark[pipelines]`, and Java 17.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
from orders import put_orders

from brokerstore import MessageStore

HERE = Path(__file__).resolve().parent
DEFAULT = "/tmp/brokerstore-pipeline"


def prepare(folder: Path) -> Path:
    """Copy the pipeline with paths in `folder`; return the path of its specification."""
    spec = (HERE / "spark-pipeline.yml").read_text().replace(DEFAULT, str(folder))
    project = folder / "project"
    (project / "definitions").mkdir(parents=True, exist_ok=True)
    (project / "spark-pipeline.yml").write_text(spec)
    (project / "definitions" / "orders.py").write_text((HERE / "definitions" / "orders.py").read_text())
    return project / "spark-pipeline.yml"


def run_pipeline(folder: Path, spec: Path) -> None:
    """Run Spark's own tool once.  Tables must outlive the run, so their catalogue is on disk (Derby), in `folder`."""
    tool = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "hive",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    here = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    with (folder / "pipeline.log").open("a") as log:
        subprocess.run(
            [str(tool), "--remote", "local[2]", *words, "run", "--spec", str(spec)],
            env=os.environ | here | {"PYTHONPATH": path}, check=True, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip


def paid_bodies(folder: Path) -> list[bytes]:
    """Return the bodies that the pipeline wrote, in log order."""
    with MessageStore.open(str(folder / "paid"), "r") as store:
        return [message.body for message in store.follow(timeout_s=0)]


def main(folder: Path) -> None:
    """Put 300 orders, run the pipeline, put 200 more, and run it again."""
    spec = prepare(folder)
    for first, count in ((0, 300), (300, 200)):
        put = put_orders(str(folder / "orders"), first, count)
        run_pipeline(folder, spec)
        print(f"{put} messages put; {len(paid_bodies(folder))} paid orders in {folder / 'paid'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT).resolve())
