"""Detect the file sizes of a store if the configuration does not give them."""

from __future__ import annotations

from consumequeue import find_file_size, refuse_other_file_size
from consumequeue.layout import FILE_SIZE_DEFAULT as QUEUE_FILE_SIZE_DEFAULT
from indexfile import AT_REST, PAUSES_S, Shape, index_paths, itemless_shape, refuse_other_shape
from indexfile.layout import ITEMS_DEFAULT, SLOTS_DEFAULT
from storageio import Disk

from .config import StoreConfig
from .paths import StorePaths, replaced_folder
from .recovery.abort_file import AbortFile
from .store_settings import index_shape, kept_shape


def found_sizes(
    config: StoreConfig, places: StorePaths, disk: Disk, *, is_locked: bool = False, guesses: bool = False
) -> StoreConfig:
    """Return the configuration with missing sizes detected from the files, or set to RocketMQ's defaults.

    `is_locked` means that the caller holds the store's lock, so that no other process writes.  `guesses` accepts the file size
    alone as the slot layout of an index without items.  A reader must not guess, because a writer may know better; the layout
    that the last writer kept is not a guess.
    """
    shape = queue_size = None
    pauses_s = PAUSES_S if not is_locked and AbortFile(disk, places.root).is_present else AT_REST
    for folder in (places.index, replaced_folder(places.root, "index")):
        if shape is None and disk.stat(folder) is not None:
            shape = index_shape(disk, folder, places.own, pauses_s)
            if shape is None and (guesses or is_locked):
                shape = itemless_shape(disk, index_paths(disk, folder)[0])
    shape = shape or kept_shape(disk, places.own)
    for folder in (places.queues, replaced_folder(places.root, "consumequeue")):
        if queue_size is None and disk.stat(folder) is not None:
            queue_size = find_file_size(disk, folder)
    has_ext = disk.stat(places.ext) is not None
    ext_size = find_file_size(disk, places.ext) if has_ext else None
    return config.but(
        enable_consume_queue_ext=has_ext if config.enable_consume_queue_ext is None else config.enable_consume_queue_ext,
        mapped_file_size_consume_queue_ext=config.mapped_file_size_consume_queue_ext or ext_size,
        mapped_file_size_consume_queue=config.mapped_file_size_consume_queue or queue_size or QUEUE_FILE_SIZE_DEFAULT,
        max_hash_slot_num=config.max_hash_slot_num or (shape.slots if shape else SLOTS_DEFAULT),
        max_index_num=config.max_index_num or (shape.items if shape else ITEMS_DEFAULT),
    )


def refuse_other_sizes(config: StoreConfig, given: StoreConfig, places: StorePaths, disk: Disk) -> None:
    """Raise `StoreCorrupt` if a size of `given` is not that of the files.  `config` has the detected sizes.

    Without this check a put would reach the log before its queue fails, and a query would find nothing.
    """
    if given.mapped_file_size_consume_queue and disk.stat(places.queues) is not None:
        refuse_other_file_size(disk, places.queues, given.mapped_file_size_consume_queue)
    slots, items = config.max_hash_slot_num, config.max_index_num
    is_shape_given = given.max_hash_slot_num or given.max_index_num
    if is_shape_given and slots and items and disk.stat(places.index) is not None:
        refuse_other_shape(disk, index_paths(disk, places.index)[0], Shape(slots, items))
