"""Where a log's files lie: one folder, or several (format page, section 6.6)."""

from __future__ import annotations

from storageio import Disk

from .offset_files import OffsetFile, list_offset_files, of_one_size


class LogPaths:
    """One or more folders of one log.  File number `start_offset / size` goes to the folder of that number, round robin."""

    def __init__(self, disk: Disk, folders: list[str]) -> None:
        """`folders` in any order; they are taken sorted, as a real store takes them."""
        if not folders:
            raise ValueError("a log has at least one folder")
        self._disk = disk
        self.folders = sorted(set(folders))
        self.full_folders: set[str] = set()

    @classmethod
    def parse(cls, disk: Disk, text: str) -> LogPaths:
        """A comma-separated list, as `storePathCommitLog` has it."""
        return cls(disk, [part.strip() for part in text.split(",") if part.strip()])

    def folder_for(self, start_offset: int, file_size_bytes: int) -> str:
        """Where a new file goes: never into a folder marked full while there is another."""
        available = [folder for folder in self.folders if folder not in self.full_folders] or self.folders
        return available[start_offset // file_size_bytes % len(available)]

    def listed(self) -> list[list[OffsetFile]]:
        """Of each folder its files; a folder of thousands is listed once and the list handed on."""
        return [list_offset_files(self._disk, folder) for folder in self.folders]

    def all_files(self) -> list[OffsetFile]:
        """The files of all folders by start offset, whatever their sizes."""
        return sorted(file for files in self.listed() for file in files)

    def load(self, file_size_bytes: int, listed: list[list[OffsetFile]] | None = None) -> list[OffsetFile]:
        """The same, each of the given size but for empty last ones, which are left out."""
        folders = self.listed() if listed is None else listed
        return sorted(file for files in folders for file in of_one_size(files, file_size_bytes))

    def make(self) -> None:
        """Every folder, for good."""
        for folder in self.folders:
            self._disk.make_folder(folder)
