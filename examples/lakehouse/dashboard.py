"""Draw what the tables hold, without Spark: `python dashboard.py DELTA_TABLE ICEBERG_TABLE PICTURE.png`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from feed import NAMESPACE, iceberg_catalog

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DARK, LIGHT = "#1f4e79", "#9ab6d3"


def delta_rows(table: Path) -> tuple[pa.Table, list[int]]:
    """Return the rows of a Delta table, and the number that each commit added, oldest first."""
    found = DeltaTable(str(table))
    metrics = [commit.get("operationMetrics", {}) for commit in reversed(found.history())]
    added = [int(of_commit.get("num_added_rows", of_commit.get("numOutputRows", 0))) for of_commit in metrics]
    return found.to_pyarrow_table(), added


def iceberg_rows(table: Path) -> tuple[pa.Table, list[int]]:
    """Return the rows of an Iceberg table, and the number that each snapshot added, oldest first."""
    found = iceberg_catalog(table).load_table((NAMESPACE, table.name))
    return found.scan().to_arrow(), [int(snapshot.summary["added-records"]) for snapshot in found.snapshots()]


def draw(tables: dict[str, tuple[pa.Table, list[int]]], picture: str) -> None:
    """Draw totals, value by item, value along the log, and the commits of each table."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 6))
    rows = next(iter(tables.values()))[0].sort_by("physical_offset")
    paid = rows.filter(pc.equal(rows["tags"], "paid"))
    axes[0, 0].axis("off")
    lines = [f"{name}: {table.num_rows} messages in {len(added)} commits" for name, (table, added) in tables.items()]
    lines += [f"{paid.num_rows} paid orders, {pc.sum(paid['cents']).as_py() / 100:,.2f} in total"]
    lines += [f"newest message: {pc.max(rows['store_time']).as_py():%Y-%m-%d %H:%M:%S} UTC"]
    axes[0, 0].text(0, 0.95, "\n".join(lines), va="top", fontsize=12, linespacing=1.8)
    by_item = paid.group_by("item").aggregate([("cents", "sum")]).sort_by("item").to_pylist()
    axes[0, 1].bar([row["item"] for row in by_item], [row["cents_sum"] / 100 for row in by_item], color=DARK)
    axes[0, 1].set_title("value of paid orders by item")
    along = [offset / 1024 for offset in paid["physical_offset"].to_pylist()]
    axes[1, 0].plot(along, [cents / 100 for cents in pc.cumulative_sum(paid["cents"]).to_pylist()], color=DARK)
    axes[1, 0].set_title("value of paid orders along the log")
    axes[1, 0].set_xlabel("KiB of the log")
    _draw_commits(axes[1, 1], {name: added for name, (_, added) in tables.items()})
    figure.tight_layout()
    figure.savefig(picture)
    plt.close(figure)


def _draw_commits(axis: Any, commits: dict[str, list[int]]) -> None:
    for index, (name, added) in enumerate(commits.items()):
        axis.bar([number + 0.4 * index for number in range(len(added))], added, 0.4, label=name, color=(DARK, LIGHT)[index % 2])
    axis.set_title("messages added by each commit")
    axis.set_xlabel("commit")
    axis.margins(y=0.2)
    axis.legend(frameon=False, ncols=2, loc="upper right")


if __name__ == "__main__":
    delta, iceberg, picture = sys.argv[1:]
    draw({"Delta Lake": delta_rows(Path(delta)), "Iceberg": iceberg_rows(Path(iceberg))}, picture)
    print("picture:", picture)
