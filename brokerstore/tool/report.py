"""`report`: a page about a folder, written where it is wanted."""

from __future__ import annotations

from brokerstore.identify import FolderKind
from brokerstore.report import Facts, rabbit_facts, render, store_facts
from rabbitstore.repair.check import size_bytes
from storageio import REAL_DISK, StoreError

from .codes import CLEAN, NO_STORE, PROBLEM
from .export import text_file
from .offsets import lag_rows
from .output import emit_json, in_use_keys, progress, say, say_in_use, size_text
from .rabbit_commands import not_read_keys, say_not_read, vhost_path
from .target import Target
from .verify import check_target


def write_report(target: Target, out: str | None, as_json: bool, quiet: bool) -> int:
    """Exit code 1 when the page tells of problems, 3 when something in the folder is of an unsupported format."""
    facts, checked_to = (_rabbit(target, quiet), None) if target.is_rabbit else _store(target, quiet)
    page = render(facts, REAL_DISK.now_ms())
    with text_file(out) as write:
        write(page)
    if facts.problems:
        say(f"brokerstore: {len(facts.problems)} problems; the page has them")
    if facts.unread:
        say(f"brokerstore: {facts.unread} of an unsupported format were not read; `brokerstore verify` names each")
    say_not_read(target.path)
    say_in_use(checked_to)
    if as_json:
        found = {"file": out, "size_bytes": len(page.encode()), "problems": len(facts.problems)}
        emit_json(found | in_use_keys(checked_to) | not_read_keys(target.path))
    elif out is not None and not quiet:
        say(f"brokerstore: the page is {out}, {size_text(len(page.encode()))}")
    if facts.problems:
        return PROBLEM
    return NO_STORE if facts.unread else CLEAN


def _rabbit(target: Target, quiet: bool) -> Facts:
    with progress("look", size_bytes(vhost_path(target)), wanted=not quiet) as advance:
        return rabbit_facts(target.path, target.vhost, advance)


def _store(target: Target, quiet: bool) -> tuple[Facts, int | None]:
    """The log, then everything beside it; up to which offset a store in use was checked."""
    files = target.files()
    total = sum(file.size_bytes for file in files.files)
    with progress("look", total, wanted=not quiet) as advance:
        facts = store_facts(files, target.path, target.kind.value, advance)
    report = check_target(target, quiet, log_only=False)
    facts.problems = [finding.as_dict() for finding in report.problems]
    if report.checked_to is not None:
        facts.cards.append(("In use", f"checked up to offset {report.checked_to}"))
    if target.kind is FolderKind.ROCKETMQ:
        try:
            facts.lags = lag_rows(target)
        except StoreError as error:  # queues beyond use: among the problems already
            say(f"brokerstore: no lag: {error}")
    return facts, report.checked_to
