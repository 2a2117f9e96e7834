"""The only package that calls the operating system.

Other packages take a `Disk` and never open, map, sync, rename or delete files themselves.  `RealDisk` is the disk of this
machine; `storageio.testing` has disks that count calls or fail the N-th call.

Terms:

- *written*: every process sees the data in the file (after a store through a map, or `File.write`).  It survives the death of
  the process, but not of the machine.
- *synced*: `File.sync` returned.  Data, size and allocation are on the disk.
- A new file is *durable* after `Disk.sync_folder` of its folder returned; the same holds for a rename and a delete.

After a failed `sync` the pages count as lost: no caller syncs them again and trusts a success.
All paths are absolute or relative strings; all sizes are bytes; all times are milliseconds since 1970.
"""

from . import misplaced
from .closing import Closing
from .disk import (
    DIRECT_BLOCK,
    FREE_THREADED,
    SECTOR_SIZE,
    Disk,
    Entry,
    File,
    FolderLock,
    Kind,
    Map,
    Mode,
    Space,
    Writer,
    own_view,
)
from .errors import (
    DiskError,
    DiskFull,
    FlushTimeout,
    InvalidMessage,
    InvalidSetting,
    MissingExtra,
    OutOfRange,
    PutRejected,
    RefusedMessage,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreRewound,
    UnknownStore,
    UnsupportedFormat,
    UnsupportedPlatform,
)
from .extras import needs_extra
from .heads import read_head
from .processes import in_forked_child, maps_max, memory_bytes, process_id, process_text, random_bytes
from .real_disk import REAL_DISK, RealDisk, real_path
from .swap import copy_rest, free_path, keep, keep_copy, move_aside, pieces, replace_file, staged

__all__ = [
    "DIRECT_BLOCK",
    "FREE_THREADED",
    "REAL_DISK",
    "SECTOR_SIZE",
    "Closing",
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
    "OutOfRange",
    "PutRejected",
    "RealDisk",
    "RefusedMessage",
    "Space",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "StoreRewound",
    "UnknownStore",
    "UnsupportedFormat",
    "UnsupportedPlatform",
    "Writer",
    "copy_rest",
    "free_path",
    "in_forked_child",
    "keep",
    "keep_copy",
    "maps_max",
    "memory_bytes",
    "misplaced",
    "move_aside",
    "needs_extra",
    "own_view",
    "pieces",
    "process_id",
    "process_text",
    "random_bytes",
    "read_head",
    "real_path",
    "replace_file",
    "staged",
]
