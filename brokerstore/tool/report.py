"""`report`: a page about a folder, written where it is wanted."""

from __future__ import annotations

from brokerstore.identify import FolderKind
from brokerstore.report import Facts, rabbit_facts, render, store_facts
from storageio import REAL_DISK, StoreError

from .codes import CLEAN, PROBLEM
from .export import text_file
from .offsets import lag_rows
from .output import progress, say
from .target import Target
from .verify import find_problems


def write_report(target: Target, out: str | None, quiet: bool) -> int:
    """Exit code 1 when the page tells of problems."""
    facts = rabbit_facts(target.path, target.vhost) if target.is_rabbit else _store(target, quiet)
    page = render(facts, REAL_DISK.now_ms())
    with text_file(out) as write:
        write(page)
    if facts.problems:
        say(f"brokerstore: {len(facts.problems)} problems; the page has them")
    return PROBLEM if facts.problems else CLEAN


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
