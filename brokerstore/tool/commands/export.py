"""`export`: the messages of a folder as JSON Lines, Parquet, Arrow or CSV."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import click

from storageio import needs_extra

from ..backends import ExportItem, ExportSource
from ..backends.opening import Backend
from ..codes import PROBLEM
from ..filters import Filters
from ..options import JSON_OF_FILE, LIMIT, QUIET, ROCKETMQ_FILTERS, store_command, with_decoding, with_filters
from ..output import count_text, emit_block, emit_csv, emit_json, file_to_write, named_file, print_line, progress, size_text


class Order(NamedTuple):
    """The options of an export, but for those that select messages."""

    form: str
    out: str | None
    as_json: bool
    quiet: bool


@store_command(
    "export",
    "export orders-store --out orders.jsonl",
    "export orders-store --to parquet --out orders.parquet --topic orders",
    "export vhost --to csv --out mail.csv --queue mail",
    rocketmq_only=(*ROCKETMQ_FILTERS, "decode"),
)
@click.option("--to", "form", type=click.Choice(["jsonl", "parquet", "arrow", "csv"]), default="jsonl", show_default=True)
@click.option("-o", "--out", metavar="FILE", type=click.Path(), help="Write to FILE instead of stdout.")
@with_filters
@LIMIT
@click.option(
    "--csv-guard/--no-csv-guard",
    default=True,
    show_default=True,
    help="CSV: an apostrophe before text that a spreadsheet takes for a formula; escapes for control characters.",
)
@JSON_OF_FILE
@QUIET
@with_decoding
def export(
    backend: Backend, form: str, out: str | None, filters: Filters, limit: int | None, as_json: bool, quiet: bool, *,
    csv_guard: bool,
) -> int:  # fmt: skip
    """Export messages as JSON Lines, Parquet, Arrow or CSV.

    The memory needed is constant. If an export into a file is interrupted, the same command continues it.
    """
    if out is None and form in ("parquet", "arrow"):
        raise click.UsageError(f"{form} needs --out FILE")
    if out is None and as_json:
        raise click.UsageError("--json needs --out FILE: the messages go to stdout")
    written_form = "csv-guarded" if form == "csv" and csv_guard else form
    source = backend.export(form, filters, limit)
    with needs_extra("arrow"):
        return _write(backend, source, Order(form, out, as_json, quiet), written_form, limit)


def _write(backend: Backend, source: ExportSource, order: Order, form: str, limit: int | None) -> int:
    """Write to stdout, or to a file that an interrupted export continues."""
    from ..export_parts import ExportParts, write_parts

    is_mixed = order.out is None and sys.stdout.isatty()  # a bar would stand among the messages
    with progress("export", source.size_bytes, quiet=order.quiet or is_mixed) as advance:
        if order.out is None:
            _to_stdout(_counted(_in_form(source.items(0, 0), form, source.columns), advance), form)
            return backend.code
        with named_file(order.out):
            parts = ExportParts(file_to_write(order.out), form, {**source.about, "limit": limit})
            before = parts.problems
            header = () if parts.sealed else source.columns  # a sealed part has it, although it may hold no message
            items = _in_form(source.items(parts.position, parts.rows), form, header)
            write_parts(parts, _counted(items, advance), backend.problems)
    problems = before + len(backend.problems)
    size = os.path.getsize(order.out)
    if order.as_json:
        emit_json({"file": order.out, "form": order.form, "messages": parts.rows, "size_bytes": size, "problems": problems})
    elif not order.quiet:
        print_line(f"brokerstore: wrote {count_text(parts.rows, 'message')} to {order.out}, {size_text(size)}")
    return PROBLEM if before else backend.code


def _in_form(items: Iterator[ExportItem], form: str, header: Sequence[str]) -> Iterator[ExportItem]:
    """Yield the items as they are written, CSV below a header unless it is empty."""
    from ..export_forms import csv_text

    for item, after, size_bytes, count in items:
        made = csv_text(item, header, form).encode() if form.startswith("csv") else item
        yield made, after, size_bytes, count
        header = ()


def _counted(items: Iterator[ExportItem], advance: Callable[[int], None]) -> Iterator[ExportItem]:
    for item in items:
        yield item
        advance(item[2])


def _to_stdout(items: Iterator[ExportItem], form: str) -> None:
    for item, _, _, _ in items:
        if form.startswith("csv"):
            emit_csv(item.decode())
        else:
            emit_block(item)
