"""The folders of a log, one or several (docs/formats/mapped-files.md#several-log-folders)."""

from __future__ import annotations

from storageio import Disk

from .offset_files import OffsetFile, check_sizes, list_offset_files


class LogPaths:
    """One or more folders of one log.  File number `start_offset / size` goes to the folder of that number, round robin."""

    def __init__(self, disk: Disk, folders: list[str]) -> None:
        """Take the folders in any order; they are sorted, as in RocketMQ."""
        if not folders:
            raise ValueError("a log has at least one folder")
        self._disk = disk
        self.folders = sorted(set(folders))
        self.full_folders: set[str] = set()

    @classmethod
    def parse(cls, disk: Disk, text: str) -> LogPaths:
        """Parse a comma-separated list, the format of `storePathCommitLog`."""
        return cls(disk, [part.strip() for part in text.split(",") if part.strip()])

    @property
    def present(self) -> list[str]:
        """The folders that exist; others may be on a disk that is not mounted."""
        return [folder for folder in self.folders if self._disk.stat(folder) is not None]

    def folder_for(self, start_offset: int, file_size_bytes: int) -> str:
        """Return the folder of a new file; a folder marked full is used only if all are."""
        available = [folder for folder in self.folders if folder not in self.full_folders] or self.folders
        return available[start_offset // file_size_bytes % len(available)]

    def listed(self) -> list[list[OffsetFile]]:
        """Return the files of each folder; list a folder of thousands of files once and pass the result on."""
        return [list_offset_files(self._disk, folder) for folder in self.folders]

    def all_files(self) -> list[OffsetFile]:
        """Return the files of all folders by start offset, whatever their sizes."""
        return sorted(file for files in self.listed() for file in files)

    def load(self, file_size_bytes: int, listed: list[list[OffsetFile]] | None = None) -> list[OffsetFile]:
        """Return the files of all folders, each of the given size; an empty last file of a folder is skipped."""
        folders = self.listed() if listed is None else listed
        return sorted(file for files in folders for file in check_sizes(files, file_size_bytes))

    def make(self) -> None:
        """Create every folder durably."""
        for folder in self.folders:
            self._disk.make_folder(folder)
