"""The commands about more than one folder, or about none: names and options."""

from __future__ import annotations

from typing import Any

import click

from .options import JSON, QUIET, named_errors, with_target
from .target import Target, find_target
from .value_types import I32_MAX, OFFSET

SHELLS = ("bash", "zsh", "fish")
_MESSAGES = click.IntRange(1000, I32_MAX)
_BODY_SIZE = click.IntRange(0, 4 << 20)  # what a store takes by default


@click.command()
@click.argument("first", metavar="DIR", type=click.Path())
@click.argument("second", metavar="OTHER_DIR", type=click.Path())
@JSON
@click.option("--vhost", metavar="NAME", help="Of RabbitMQ nodes with several virtual hosts, on both sides.")
@click.option("--limit", type=OFFSET, default=100, show_default=True, help="Show at most so many differences.")
@QUIET
@named_errors
def diff(first: str, second: str, as_json: bool, vhost: str | None, limit: int, quiet: bool) -> int:
    """Whether two folders hold the same messages; each difference by queue and number."""
    from .diff import show_differences

    sides = find_target(first, {"vhost": vhost}), find_target(second, {"vhost": vhost})
    return show_differences(*sides, as_json, limit, quiet=quiet)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@JSON
@QUIET
@click.option("--messages", type=_MESSAGES, default=200_000, show_default=True, help="So many of each kind.")
@click.option("--size", "body_size", type=_BODY_SIZE, default=1024, show_default=True, help="Bytes of a body.")
@named_errors
def bench(folder: str, as_json: bool, quiet: bool, messages: int, body_size: int) -> int:
    """How fast this machine is: put, read and verify in a new folder below DIR, which is removed in the end."""
    from .bench import run_bench

    return run_bench(folder, as_json, quiet, messages, body_size)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """What a shell needs to complete commands and options.

    In its start file, for bash and zsh: eval "$(brokerstore completion bash)"; for fish: brokerstore completion fish | source
    """
    from click.shell_completion import get_completion_class

    made: Any = get_completion_class(shell)
    root = context.find_root()
    complete = made(root.command, {}, root.info_name or "brokerstore", "_BROKERSTORE_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())  # not source(): that runs the shell to ask its version
    return 0


@click.command()
@with_target(sizes=True)
@click.option("-o", "--out", metavar="FILE", type=click.Path(), help="Instead of stdout.")
@click.option("--json", "as_json", is_flag=True, help="With --out: what was written, as one JSON object on stdout.")
@QUIET
def report(target: Target, out: str | None, as_json: bool, quiet: bool) -> int:
    """A page in HTML with everything about a folder: files, time, queues, sizes, keys, lag, problems."""
    if out is None and as_json:
        raise click.UsageError("--json needs --out FILE: stdout has the page")
    from .report import write_report

    return write_report(target, out, as_json, quiet)


COMMANDS: tuple[click.Command, ...] = (diff, report, bench, completion)
