"""`report`: a page about a folder, written where it is wanted."""

from __future__ import annotations

from brokerstore.identify import FolderKind
from brokerstore.report import Facts, rabbit_facts, render, store_facts
from rabbitstore.check import size_bytes
from storageio import REAL_DISK, StoreError

from .codes import CLEAN, PROBLEM
from .export import text_file
from .offsets import lag_rows
from .output import emit_json, progress, say, size_text
from .rabbit_commands import vhost_path
from .target import Target
from .verify import find_problems


def write_report(target: Target, out: str | None, as_json: bool, quiet: bool) -> int:
    """Exit code 1 when the page tells of problems."""
    facts = _rabbit(target, quiet) if target.is_rabbit else _store(target, quiet)
    page = render(facts, REAL_DISK.now_ms())
    with text_file(out) as write:
        write(page)
    if facts.problems:
        say(f"brokerstore: {len(facts.problems)} problems; the page has them")
    if as_json:
        emit_json({"file": out, "size_bytes": len(page.encode()), "problems": len(facts.problems)})
    elif out is not None and not quiet:
        say(f"brokerstore: the page is {out}, {size_text(len(page.encode()))}")
    return PROBLEM if facts.problems else CLEAN


def _rabbit(target: Target, quiet: bool) -> Facts:
    with progress("look", size_bytes(vhost_path(target)), wanted=not quiet) as advance:
        return rabbit_facts(target.path, target.vhost, advance)


def _store(target: Target, quiet: bool) -> Facts:
    """The log, then everything beside it."""
    files = target.files()
    total = sum(file.size_bytes for file in files.files)
    with progress("look", total, wanted=not quiet) as advance:
        facts = store_facts(files, target.path, target.kind.value, advance)
    facts.problems = [finding.as_dict() for finding in find_problems(target, quiet)]
    if target.kind is FolderKind.ROCKETMQ:
        try:
            facts.lags = lag_rows(target)
        except StoreError as error:  # queues beyond use: among the problems already
            say(f"brokerstore: no lag: {error}")
    return facts
