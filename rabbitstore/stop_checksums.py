"""Checksums of the clean-stop files: `brokerstore/clean_stop.json`.

RabbitMQ's files have none, and an offset with a flipped bit would lose a message.  The checksums count only while the clean
mark is the one that was written with them: after a stop of the server nobody compares anything.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

from storageio import Disk, replace_file
from storebytes.finding import Finding

from .files import read_if_there, read_json
from .format.layout import CHECKSUMS_NAME, CLEAN_FILES, CLEAN_MARKS, RECOVERY_NAME, SIDECAR_FOLDER

_FILE = f"{SIDECAR_FOLDER}/{CHECKSUMS_NAME}"
_MARK = CLEAN_MARKS[0]


def is_own_clean_stop(disk: Disk, path: str) -> bool:
    """Return whether the last writer of the folder was a brokerstore process that stopped cleanly."""
    expected = read_json(disk, f"{path}/{_FILE}").get(_MARK)
    return expected is not None and expected == _checksum(disk, f"{path}/{_MARK}")


def changed_since_stop(disk: Disk, path: str) -> list[Finding]:
    """Return the clean-stop files that are not those that brokerstore wrote; none after a stop of the server."""
    if not is_own_clean_stop(disk, path):
        return []
    expected = read_json(disk, f"{path}/{_FILE}")
    found = {name: _checksum(disk, f"{path}/{name}") for name in expected if name in CLEAN_FILES}
    changed = [name for name, checksum in found.items() if checksum is not None and checksum != expected[name]]
    kinds = {RECOVERY_NAME: "bad_recovery_terms"}
    return [Finding(name, 0, kinds.get(name, "bad_table"), "the file that the last stop wrote", "another") for name in changed]


def write_checksums(disk: Disk, path: str, files: Mapping[str, bytes]) -> None:
    """Store the checksums of clean-stop files; the caller writes the mark afterwards."""
    checksums = {name: zlib.crc32(data) for name, data in files.items()}
    replace_file(disk, f"{path}/{_FILE}", json.dumps(checksums, indent=1).encode())


def _checksum(disk: Disk, path: str) -> int | None:
    data = read_if_there(disk, path)
    return None if data is None else zlib.crc32(data)
