"""The only door to the operating system.

Everything above takes a `Disk` and never opens, maps, syncs, renames or deletes on its own.  `RealDisk` is the machine's;
`storageio.testing` has disks that count calls or fail the N-th one.

What the words mean here:

- *written*: in the file as every process sees it (a store through a map, or `File.write`).  Survives the death of the
  process, not of the machine.
- *synced*: `File.sync` returned.  Data, size and allocation are on the disk.
- a file *exists for good* once `Disk.sync_folder` of its folder returned; the same holds for a rename and a delete.

After a failed `sync` the pages count as lost: nobody calls it again in the hope of another answer.
All paths are absolute or relative strings; all sizes are bytes; all times are milliseconds since 1970.
"""

from . import misplaced
from .disk import DIRECT_BLOCK, SECTOR_SIZE, Disk, Entry, File, FolderLock, Kind, Map, Mode, Space, Writer
from .errors import (
    DiskError,
    DiskFull,
    FlushTimeout,
    InvalidMessage,
    InvalidSetting,
    MissingExtra,
    PutRejected,
    RefusedMessage,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreRewound,
    UnknownStore,
    UnsupportedFormat,
    UnsupportedPlatform,
)
from .processes import in_forked_child, maps_max, memory_bytes, process_id, random_bytes
from .real_disk import REAL_DISK, RealDisk
from .replace import replace_file

__all__ = [
    "DIRECT_BLOCK",
    "REAL_DISK",
    "SECTOR_SIZE",
    "Disk",
    "DiskError",
    "DiskFull",
    "Entry",
    "File",
    "FlushTimeout",
    "FolderLock",
    "InvalidMessage",
    "InvalidSetting",
    "Kind",
    "Map",
    "MissingExtra",
    "Mode",
    "PutRejected",
    "RealDisk",
    "RefusedMessage",
    "Space",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreReadOnly",
    "StoreRewound",
    "UnknownStore",
    "UnsupportedFormat",
    "UnsupportedPlatform",
    "Writer",
    "in_forked_child",
    "maps_max",
    "memory_bytes",
    "misplaced",
    "process_id",
    "random_bytes",
    "replace_file",
]
