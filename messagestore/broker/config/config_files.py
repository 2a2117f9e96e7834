"""One file below `config/`, and the backup beside it (format page `docs/formats/config.md`).

Of `topics.json` there is also `topics.json.bak`, the content before the last one.  A crash while the file is replaced leaves
one of the two whole, so a reader looks at both.  What was read is an ordered map; what this library does not know in it is
written back as it was.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from storageio import Disk, Mode, StoreCorrupt, replace_file

from . import fast_json

BACKUP = ".bak"
CONFIG_FOLDER = "config"

Document = dict[str | int, Any]


class Source(Enum):
    """Where a document came from."""

    FILE = "file"
    BACKUP = "backup"
    DEFAULTS = "defaults"


class Loaded(NamedTuple):
    """What was read, and why not from the file itself if that is damaged."""

    document: Document
    source: Source
    damage: StoreCorrupt | None


class ConfigFile:
    """Reads and replaces one config file.  Not for several threads at once."""

    def __init__(self, disk: Disk, path: str) -> None:
        """`path` without `.bak`; nothing is read yet."""
        self.path = path
        self._disk = disk
        self._is_sound: bool | None = None  # whether the file itself may become the backup

    def load(self) -> Loaded:
        """The file; if that is missing, blank or unparsable, the backup; if there is none, an empty document.

        A file is blank when it has no byte or only zeros, which is what a power cut leaves of one.  Raises `StoreCorrupt`
        when the last candidate is unparsable, and changes nothing in any case.
        """
        damage = None
        for path, source in ((self.path, Source.FILE), (self.path + BACKUP, Source.BACKUP)):
            try:
                document, hurt = self._read(path)
            except StoreCorrupt as error:
                if source is Source.BACKUP:
                    raise (damage or error) from error
                document, hurt = None, error
            self._is_sound = source is Source.FILE and document is not None
            damage = damage or hurt
            if document is not None:
                return Loaded(document, source, damage)
        return Loaded({}, Source.DEFAULTS, damage)

    def save(self, document: Document, *, pretty: bool = True) -> None:
        """Replace the file for good; the content before becomes the backup unless it was damaged.

        After an error, or a crash at any moment, `load` finds the old document or the new one.
        """
        if self._is_sound is None:
            self._is_sound = self._is_readable()
        replace_file(self._disk, self.path, fast_json.dumps(document, pretty=pretty), keep_backup=self._is_sound)
        self._is_sound = True

    def _is_readable(self) -> bool:
        """Whether the file itself is worth a backup."""
        try:
            return self._read(self.path)[0] is not None
        except StoreCorrupt:
            return False

    def _read(self, path: str) -> tuple[Document | None, StoreCorrupt | None]:
        """The document of one of the two; without one, what is wrong if more than a missing file is."""
        if self._disk.stat(path) is None:
            return None, None
        file = self._disk.open(path, Mode.READ)
        try:
            data = file.read(0, min(file.size(), fast_json.SIZE_MAX + 1))
        finally:
            file.close()
        if not data.strip(b"\0 \t\r\n"):
            found = f"{len(data)} blank bytes"
            return None, StoreCorrupt("blank config file", file=path, offset=0, expected="a JSON object", found=found)
        document = fast_json.loads(data, file=path)
        if not isinstance(document, dict):
            found = type(document).__name__
            raise StoreCorrupt("no config file", file=path, offset=0, expected="a JSON object", found=found)
        return document, None
