"""`rebuild`: queues, index or both made anew from the log."""

from __future__ import annotations

import logging

from messagestore.repair.rebuild_store import ALL, rebuild_store

from .codes import CLEAN
from .output import emit, emit_json, progress
from .target import Target


def rebuild_target(target: Target, what: str, as_json: bool, quiet: bool) -> int:
    """Byte-identical to what the store had, where that was right and the sizes are the same."""
    target.need_store()
    target.need_shape()
    logging.getLogger("consumequeue").setLevel(logging.ERROR)  # gaps of light queues are no news here
    total = sum(file.size_bytes for file in target.files().files)
    names = ALL if what == "all" else frozenset({what})
    with progress("rebuild", total, wanted=not quiet) as advance:
        made = rebuild_store(target.path, names, target.config(), progress=advance)
    if as_json:
        emit_json({"rebuilt": sorted(names), **made._asdict()})
        return CLEAN
    emit(f"Rebuilt {' and '.join(sorted(names))} from {made.log_bytes} bytes of the log")
    if "consumequeue" in names:
        emit(f"{made.queues} queues, {made.units} units")
    if "index" in names:
        emit(f"{made.index_files} index files")
    return CLEAN
