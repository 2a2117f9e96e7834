"""`report`: an HTML page about a folder."""

from __future__ import annotations

import click

from ..backends import Folder, is_rabbitmq
from ..codes import CLEAN, NO_STORE, PROBLEM
from ..options import JSON_OF_FILE, QUIET, store_command
from ..output import count_text, emit_json, file_to_write, print_line, size_text, text_file


@store_command("report", "report orders-store --out orders.html", "report vhost --out vhost.html", sizes=True)
@click.option("-o", "--out", metavar="FILE", type=click.Path(), help="Write to FILE instead of stdout.")
@JSON_OF_FILE
@QUIET
def report(folder: Folder, out: str | None, as_json: bool, quiet: bool) -> int:
    """Write an HTML page about a folder.

    It shows files, times, queues, sizes, keys, lags and problems, and needs no other file.
    """
    if out is None and as_json:
        raise click.UsageError("--json needs --out FILE: the page goes to stdout")
    from brokerstore.report import render
    from storageio import REAL_DISK, needs_extra

    if out is not None:
        file_to_write(out)  # raises before the folder is read
    with needs_extra("report"):
        import jinja2  # noqa: F401

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_tables import report as of_rabbitmq

        facts, more = of_rabbitmq(folder, quiet)
    else:
        from ..backends.rocketmq_check import report as of_rocketmq

        facts, more = of_rocketmq(folder, quiet)
    page = render(facts, REAL_DISK.now_ms())
    with text_file(out) as write:
        write(page)
    if facts.problems:
        print_line(f"brokerstore: {count_text(len(facts.problems), 'problem')}; the page lists them")
    if facts.unread:
        print_line(
            f"brokerstore: not read, unsupported format: {count_text(facts.unread, 'file')}; `brokerstore verify` lists them"
        )
    size = len(page.encode())
    if as_json:
        emit_json({"file": out, "size_bytes": size, "problems": len(facts.problems)} | more)
    elif out is not None and not quiet:
        print_line(f"brokerstore: wrote {out}, {size_text(size)}")
    if facts.problems:
        return PROBLEM
    return NO_STORE if facts.unread else CLEAN
