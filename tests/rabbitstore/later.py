"""Folders that real RabbitMQ 4 servers left, and folders with one unknown file, version or term."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

from rabbitstore.format.layout import V2_CHUNK, V2_HEAD_SIZE

VHOST = Path("msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L")
Tree = dict[str, bytes | None]


def marks(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return size, change time and number of every inode: each write and each rename changes one of them."""
    found = {path: path.stat() for path in sorted(folder.rglob("*"))}
    return {str(path): (stat.st_size, stat.st_ctime_ns, stat.st_ino) for path, stat in found.items()}


def restore(copy: Path, source: Path) -> None:
    """Restore a copy of a tree from the files whose size or time differ."""
    for path in sorted(copy.rglob("*")):
        original = source / path.relative_to(copy)
        if not original.exists():
            path.unlink()
        elif path.is_file() and path.stat().st_mtime_ns != original.stat().st_mtime_ns:
            shutil.copy2(original, path)


def make_later_machine(node: Path) -> None:
    """Change version 8 of the queue machine to 9 in every log and snapshot of a node, with right checksums."""
    from rabbitstore.quorum.wal import WalScan

    for file in node.glob("quorum/*/*.wal"):
        data = bytearray(file.read_bytes())
        for record in list(WalScan(bytes(data), "", [], []).records()):
            if data[record.at + 1 : record.stop].startswith(b"h\x03w\x04noop"):
                assert data[record.stop - 2 : record.stop] == b"a\x08"
                data[record.stop - 1] = 9
                data[record.at - 24 : record.at - 20] = zlib.adler32(data[record.at - 16 : record.stop]).to_bytes(4, "big")
        file.write_bytes(data)
    for file in node.glob("quorum/*/*/snapshots/*/snapshot.dat"):
        data = bytearray(file.read_bytes().replace(b"machine_versiona\x08", b"machine_versiona\x09"))
        data[5:9] = zlib.crc32(data[9:]).to_bytes(4, "big")
        file.write_bytes(data)


def _edit(path: Path, change: Callable[[bytes], bytes]) -> bool:
    """Return whether the file exists and the change has an effect."""
    if not path.exists():
        return False
    data = path.read_bytes()
    path.write_bytes(changed := change(data))
    return changed != data


def _first(folder: Path, pattern: str, change: Callable[[bytes], bytes]) -> bool:
    return any(_edit(path, change) for path in sorted(folder.glob(pattern)))


def _set(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + value + data[offset + len(value) :] if len(data) > offset + len(value) else data


def _swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda data: data.replace(old, new)


def _in_chunk(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Change the first message of a `.qs` file and correct its checksum."""

    def change(data: bytes) -> bytes:
        if len(data) < V2_HEAD_SIZE + V2_CHUNK.size:
            return data
        length, flags, _crc, zero = V2_CHUNK.unpack_from(data, V2_HEAD_SIZE)
        start = V2_HEAD_SIZE + V2_CHUNK.size
        term = data[start : start + length].replace(old, new, 1)
        head = V2_CHUNK.pack(length, flags, zlib.crc32(term) & 0xFFFF, zero)
        return data[:V2_HEAD_SIZE] + head + term + data[start + length :] if term != data[start : start + length] else data

    return change


def _new(folder: Path, name: str) -> bool:
    (folder / name).write_bytes(b"what is this")
    return True


def _any_queue(vhost: Path) -> Path:
    return min(path for path in (vhost / "queues").iterdir() if path.is_dir())


def _flag(vhost: Path) -> bool:
    """Write the file of feature flags beside the node's folder."""
    node = vhost.parents[2]
    flags = node.parent / f"{node.name}-feature_flags"
    known = re.findall(r"[a-z_0-9']+", flags.read_text()) if flags.exists() else ["quorum_queue"]
    flags.write_text("[" + ",\n ".join([*known, "queues_of_another_kind"]) + "].\n")
    return True


NAME, LATER = b"basic_message", b"later_message"
PLANTS: dict[str, Callable[[Path], bool]] = {
    "file in the virtual host": lambda vhost: _new(vhost, "recovery.bin"),
    "file beside the queues": lambda vhost: _new(vhost / "queues", "index"),
    "file in a queue": lambda vhost: _new(_any_queue(vhost), "0.qx"),
    "file in the persistent store": lambda vhost: _new(vhost / "msg_store_persistent", "0.rdx"),
    "file in the transient store": lambda vhost: _new(vhost / "msg_store_transient", "later.ets"),
    "feature flag": _flag,
    "term of .config": lambda vhost: _edit(vhost / ".config", lambda data: data + b"\n{index_format, 3}.\n"),
    "version in .queue_name": lambda vhost: _edit(
        _any_queue(vhost) / ".queue_name", lambda data: data.removesuffix(b"INDEX: v2\n") + b"INDEX: v3\n"
    ),
    "version of .qi": lambda vhost: _first(vhost, "queues/*/*.qi", _set(4, b"\3")),
    "magic of .qi": lambda vhost: _first(vhost, "queues/*/*.qi", _set(0, b"RCQX")),
    "version of .qs": lambda vhost: _first(vhost, "queues/*/*.qs", _set(4, b"\3")),
    "magic of .qs": lambda vhost: _first(vhost, "queues/*/*.qs", _set(0, b"RCQX")),
    "term of clean.dot": lambda vhost: _edit(vhost / "msg_store_persistent/clean.dot", lambda data: data + b"{later,3}.\n"),
    "term of recovery.dets": lambda vhost: _edit(vhost / "recovery.dets", _swap(b"persistent_count", b"persistent_total")),
    "version of recovery.dets": lambda vhost: _edit(vhost / "recovery.dets", _set(16, b"\0\0\0\x0a")),
    "row of file_summary.ets": lambda vhost: _edit(
        vhost / "msg_store_persistent/file_summary.ets", _swap(b"\x0cfile_summary", b"\x0cfile_overall")
    ),
    "row of msg_store_index.ets": lambda vhost: _edit(
        vhost / "msg_store_persistent/msg_store_index.ets", _swap(b"\x0cmsg_location", b"\x0cmsg_position")
    ),
    "message term in an index": lambda vhost: _first(vhost, "queues/*/*.idx", _swap(NAME, LATER)),
    "message term in a journal": lambda vhost: _first(vhost, "queues/*/journal.jif", _swap(NAME, LATER)),
    "message term in .qs": lambda vhost: _first(vhost, "queues/*/*.qs", _in_chunk(NAME, LATER)),
    "message term in .rdq": lambda vhost: _first(vhost, "msg_store_persistent/*.rdq", _swap(NAME, LATER)),
    "message term in the transient store": lambda vhost: _first(vhost, "msg_store_transient/*.rdq", _swap(NAME, LATER)),
    "container in .qs": lambda vhost: _first(vhost, "queues/*/*.qs", _in_chunk(b"w\x02mc", b"w\x02mx")),
    "container in .rdq": lambda vhost: _first(vhost, "msg_store_persistent/*.rdq", _swap(b"w\x02mc", b"w\x02mx")),
    "protocol in .rdq": lambda vhost: _first(vhost, "msg_store_persistent/*.rdq", _swap(b"mc_amqpl", b"mc_other")),
}


def node_of(kind: str, source: Path, target: Path) -> Path:
    """Copy an unpacked fixture to a node's folder `target`; return the folder of its virtual host."""
    if (source / "node").exists():
        shutil.copytree(source / "node", target)
        shutil.copy(source / "feature_flags", target.parent / f"{target.name}-feature_flags")
    else:
        shutil.copytree(source / "vhost", target / VHOST)
    return target / VHOST


def forget(node: Path, *words: bytes) -> None:
    """Drop the items with one of these words from the logs of a node's metadata, as an older copy of them lacks them."""
    for path in [*node.glob("*.DC[DL]"), *node.glob("*.LOG")]:
        data = path.read_bytes()
        kept, at = data[:8], 8
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            stop = at + 8 + size + (16 if size >= 65528 else 0)
            kept += b"" if any(word in data[at:stop] for word in words) else data[at:stop]
            at = stop
        path.write_bytes(kept)
