"""What `info` and `diff` tell of DLedger logs: the peer, its entries, and which of them another peer has, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from messagestore.dledger import entry_of, peer_folder, read_entries, read_peer
from messagestore.folder import FolderFacts
from storageio import REAL_DISK

from .rocketmq_folder import RocketmqFolder

if TYPE_CHECKING:
    from ..target import Target


def peer_facts(facts: FolderFacts) -> dict[str, Any] | None:
    """Return what a DLedger peer says about itself, and the last entry of its log; None for another store."""
    folder = peer_folder(facts)
    if folder is None:
        return None
    last = facts.files().end().last
    entry = None if last is None else entry_of(REAL_DISK, facts.files(), last.physical_offset)
    index, term = (-1, None) if entry is None else entry
    peer = read_peer(REAL_DISK, folder)
    committed = peer.committed_index
    behind = None if committed is None else max(0, index - committed)
    return {**peer._asdict(), "was_leader": peer.was_leader, "last_index": index, "last_term": term, "uncommitted": behind}


def compared_entries(*targets: Target) -> dict[str, Any]:
    """Compare the entries of two peers of a DLedger group by index and term.

    In a group of three, the entries that two peers have are those of a majority.
    """
    sides = map(RocketmqFolder, targets)
    entries = [read_entries(side.files()) for side in sides]
    same_to = entries[0].same_to(entries[1])
    more = [max(0, one.last_index - max(same_to, one.first_index - 1)) for one in entries]
    return {
        "same_to_index": same_to, "last_index": [one.last_index for one in entries],
        "last_term": [one.last_term for one in entries], "more": more,
    }  # fmt: skip


def entries_text(found: dict[str, Any]) -> str:
    """Return the comparison as a line."""
    both = f"both have the entries up to {found['same_to_index']}" if found["same_to_index"] >= 0 else "no entry is in both"
    sides = zip(("first", "second"), found["more"], found["last_term"], strict=True)
    more = [f"the {name} has {count} more, the last of term {term}" for name, count, term in sides if count]
    return f"DLedger: {'; '.join([both, *more])}."
