# A notebook as a script: editors run it cell by cell, `python report.py FOLDER PLOT.png` runs it whole.
"""What the shop's stores hold, read by Spark in place, with a plot."""

# %% Where the stores are
import sys
from pathlib import Path

import matplotlib
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, sum

matplotlib.use("Agg")
import matplotlib.pyplot as plt

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/brokerstore-pipeline")
picture = sys.argv[2] if len(sys.argv) > 2 else str(folder / "orders.png")
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()


# %% Every message of a store, with only the columns that are needed
def messages(name: str) -> "DataFrame":  # noqa: F821
    """Return the messages with parsed body, tag and physical offset."""
    body = from_json(col("body").cast("string"), "order long, customer string, item string, cents long").alias("body")
    found = spark.read.format("brokerstore").schema("physical_offset bigint, tags string, body binary").load(str(folder / name))
    return found.select("physical_offset", "tags", body).select("physical_offset", "tags", "body.*")


orders = messages("orders").cache()
orders.orderBy("physical_offset").show(5)

# %% Number and value of orders, by item
by_item = (
    orders.groupBy("item", "tags").agg(count("order").alias("orders"), sum("cents").alias("cents")).orderBy("item", "tags")
)
by_item.show()

# %% The pipeline's own store has each paid order once
paid = messages("paid")
selected = orders.where("tags = 'paid'").select("order")
missing = selected.exceptAll(paid.select("order")).count()
too_many = paid.select("order").exceptAll(selected).count()
print(f"{paid.count()} paid orders in the pipeline's store, {missing} missing, {too_many} too many")

# %% The plot
rows = by_item.collect()
items = sorted({row["item"] for row in rows})
figure, axes = plt.subplots(figsize=(7, 3.5))
for index, (state, colour) in enumerate((("created", "#9ab6d3"), ("paid", "#1f4e79"))):
    heights = [next((row["cents"] for row in rows if (row["item"], row["tags"]) == (item, state)), 0) / 100 for item in items]
    axes.bar([number + 0.4 * index for number in range(len(items))], heights, 0.4, label=state, color=colour)
axes.set_xticks([number + 0.2 for number in range(len(items))], items)
axes.set_ylabel("value of orders")
axes.legend(frameon=False)
figure.tight_layout()
figure.savefig(picture)
print("plot:", picture)
