"""The key index as constants (docs/formats/indexfile.md).  Big-endian.

Header, offsets from the file's start:

    offset  size  field                  meaning
    0       8     begin_timestamp_ms     store time of the first item's record
    8       8     end_timestamp_ms       store time of the last item's record
    16      8     begin_physical_offset  of the first item's record
    24      8     end_physical_offset    of the last item's record
    32      4     slots_used             slots in use
    36      4     next_item              items are numbered from 1; item 0 stays unused

Then the slots, 4 bytes each: the newest item of the slot, 0 for none.  Then the items, offsets from the item's start:

    offset  size  field                  meaning
    0       4     key_hash               not negative; the slot is key_hash modulo the number of slots
    4       8     physical_offset        of the record
    12      4     seconds                from the file's begin to the record's store time, truncated
    16      4     previous               the item before in the same slot, 0 for none
"""

import struct

BEGIN_TIME_AT = 0
END_TIME_AT = BEGIN_TIME_AT + 8
BEGIN_OFFSET_AT = END_TIME_AT + 8
END_OFFSET_AT = BEGIN_OFFSET_AT + 8
SLOTS_USED_AT = END_OFFSET_AT + 8
NEXT_ITEM_AT = SLOTS_USED_AT + 4
HEADER_SIZE = NEXT_ITEM_AT + 4
HEADER = struct.Struct(">qqqqii")
assert HEADER.size == HEADER_SIZE == 40

SLOT_SIZE = 4

ITEM_KEY_HASH_AT = 0
ITEM_PHYSICAL_OFFSET_AT = ITEM_KEY_HASH_AT + 4
ITEM_SECONDS_AT = ITEM_PHYSICAL_OFFSET_AT + 8
ITEM_PREVIOUS_AT = ITEM_SECONDS_AT + 4
ITEM_SIZE = ITEM_PREVIOUS_AT + 4
ITEM = struct.Struct(">iqii")
assert ITEM.size == ITEM_SIZE == 20

FIRST_ITEM = 1
NO_ITEM = 0
SECONDS_MAX = (1 << 31) - 1
SECONDS_OPTIONAL = -1  # in memory: of an item that an index may lack
TAGS_LEFT_OUT, TAGS_OPTIONAL, TAGS_WRITTEN = range(3)  # what becomes of items of tags; optional ones are for comparisons only
KEY_HASH_NONE = -(1 << 31)  # has no positive counterpart; an item stores 0 instead
SLOTS_DEFAULT = 5_000_000
ITEMS_DEFAULT = 20_000_000
ITEMS_PER_SLOT_DEFAULT = ITEMS_DEFAULT // SLOTS_DEFAULT
ITEMS_STEP = 1 << 16  # items whose blocks are allocated in one call
NAME_DIGITS = 17  # yyyyMMddHHmmssSSS, local time
KEY_JOINT = "#"  # between topic and key in the hashed string
KEY_SEPARATOR = " "  # between the keys of a message
MATCHES_MAX_DEFAULT = 64  # upper limit of every query's answers

# key filters
FILTER_WIDTH_MAX = 64  # index files in one filter
FILTER_BLOCK_SIZE = 64  # bytes of a block for one file

# kinds of damage that `check` finds
SOUND = 0
BAD_HASH = 1
BAD_PREVIOUS = 2
BAD_SLOT = 3
BAD_COUNT = 4


def file_size(slots: int, items: int) -> int:
    """Return the size of a file in bytes; at most `items` - 1 items fit.

    >>> file_size(SLOTS_DEFAULT, ITEMS_DEFAULT)
    420000040
    """
    return HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * items
