"""Read and replace one file below `config/` and the backup beside it (`docs/formats/config.md#replacing-a-file`).

For `topics.json` there is also `topics.json.bak`, the previous content. A crash during a replacement leaves at least one of the
two whole, so a reader tries both. Documents are ordered maps; unknown fields are written back unchanged.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from storageio import Disk, StoreCorrupt, read_head, replace_file

from . import fast_json

BACKUP = ".bak"

Document = dict[str | int, Any]


class Source(Enum):
    """Where a document was read from."""

    FILE = "file"
    BACKUP = "backup"
    DEFAULTS = "defaults"


class Loaded(NamedTuple):
    """A document, and the error of the file itself if that is damaged."""

    document: Document
    source: Source
    damage: StoreCorrupt | None


class ConfigFile:
    """One config file and its backup. Not safe for several threads."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Create it for `path`, without `.bak`; nothing is read yet."""
        self.path = path
        self._disk = disk
        self._is_sound: bool | None = None  # whether the file itself may become the backup

    def load(self) -> Loaded:
        """Return the file's document, else that of the backup, else an empty one.

        The backup is read if the file is missing, blank or unparsable. A file is blank if it is empty or contains only zeros,
        as after a power failure. Raises `StoreCorrupt` if the last candidate is unparsable. Changes nothing in any case.
        """
        return self._load(((self.path, Source.FILE), (self.path + BACKUP, Source.BACKUP)), None)

    def load_backup(self, damage: StoreCorrupt) -> Loaded:
        """Return the backup's document as `load` does, because the file's own has the given damage."""
        return self._load(((self.path + BACKUP, Source.BACKUP),), damage)

    def _load(self, candidates: tuple[tuple[str, Source], ...], damage: StoreCorrupt | None) -> Loaded:
        for path, source in candidates:
            try:
                document, damaged = self._read(path)
            except StoreCorrupt as error:
                if source is Source.BACKUP:
                    raise (damage or error) from error
                document, damaged = None, error
            self._is_sound = source is Source.FILE and document is not None
            damage = damage or damaged
            if document is not None:
                return Loaded(document, source, damage)
        return Loaded({}, Source.DEFAULTS, damage)

    @property
    def has_no_backup(self) -> bool:
        """Return whether there is no backup file."""
        return self._disk.stat(self.path + BACKUP) is None

    def save(self, document: Document, *, pretty: bool = True) -> None:
        """Replace the file durably; the previous content becomes the backup unless it was damaged.

        After an error or a crash at any moment, `load` returns the old document or the new one.
        """
        if self._is_sound is None:
            self._is_sound = self._is_readable()
        replace_file(self._disk, self.path, fast_json.dumps(document, pretty=pretty), keep_backup=self._is_sound)
        self._is_sound = True

    def _is_readable(self) -> bool:
        """Return whether the file itself is fit to become the backup."""
        try:
            return self._read(self.path)[0] is not None
        except StoreCorrupt:
            return False

    def _read(self, path: str) -> tuple[Document | None, StoreCorrupt | None]:
        """Return (document, error) of the file or its backup; both None for a missing file."""
        data = read_head(self._disk, path, fast_json.SIZE_MAX + 1)
        if data is None:
            return None, None
        if not data.strip(b"\0 \t\r\n"):
            found = f"{len(data)} blank bytes"
            return None, StoreCorrupt("blank config file", file=path, offset=0, expected="a JSON object", found=found)
        document = fast_json.loads(data, file=path)
        if not isinstance(document, dict):
            found = type(document).__name__
            raise StoreCorrupt("no config file", file=path, offset=0, expected="a JSON object", found=found)
        return document, None
