"""Queue units as constants (docs/formats/consumequeue.md).  Big-endian, offsets from the unit's start.

A unit of an ordinary queue, 20 bytes (`consumequeue/`):

    offset  size  field            meaning
    0       8     physical_offset  of the record in the commit log
    8       4     size_bytes       of the record
    12      8     tags_code        Java hash of the tags, due time of a delayed message, or address of an extended unit

An extended unit, 20 bytes and more (`consumequeue_ext/`):

    offset  size  field            meaning
    0       2     unit_size        whole unit; -1: no more units in this file
    2       8     tags_code        what the ordinary unit would have held
    10      8     store_time_ms
    18      2     bitmap_size      then the bitmap

A unit of a batch queue, 46 bytes (`batchconsumequeue/`):

    offset  size  field            meaning
    0       8     physical_offset
    8       4     size_bytes
    12      8     tags_code
    20      8     store_time_ms
    28      8     base_offset      queue offset of the batch's first message
    36      2     batch_size       messages in the record
    38      4     compacted_offset -1
    42      4     reserved         0
"""

import struct

PHYSICAL_OFFSET_AT = 0
SIZE_AT = PHYSICAL_OFFSET_AT + 8
TAGS_CODE_AT = SIZE_AT + 4
UNIT_SIZE = TAGS_CODE_AT + 8
UNIT = struct.Struct(">qiq")
assert UNIT.size == UNIT_SIZE == 20

FILE_UNITS_DEFAULT = 300_000
FILE_SIZE_DEFAULT = FILE_UNITS_DEFAULT * UNIT_SIZE

PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)  # docs/formats/consumequeue.md#blanks
PHYSICAL_OFFSET_MAX = (1 << 63) - 1 - PRE_BLANK_SIZE  # keeps offset + size a signed 64-bit number

EXT_UNIT_SIZE_MAX = 32767
EXT_UNIT = struct.Struct(">hqqh")
EXT_UNIT_SIZE_MIN = EXT_UNIT.size
assert EXT_UNIT_SIZE_MIN == 20

EXT_END = -1  # in place of a unit size
EXT_END_SIZE = 4  # bytes reserved at a file's end
EXT_FILE_SIZE_DEFAULT = 48 << 20
EXT_ADDRESS_BASE = -(1 << 63)  # address = place + this
EXT_ADDRESS_MAX = -(1 << 31) - 1  # a greater value is a tags code

BATCH_UNIT = struct.Struct(">qiqqqhii")
BATCH_UNIT_SIZE = BATCH_UNIT.size
assert BATCH_UNIT_SIZE == 46
BATCH_FILE_SIZE_DEFAULT = FILE_UNITS_DEFAULT * BATCH_UNIT_SIZE


def round_up(size_bytes: int, unit_size: int = UNIT_SIZE) -> int:
    """Round a configured file size up to a whole number of units, as RocketMQ does.

    >>> round_up(2001)
    2020
    """
    return -(-size_bytes // unit_size) * unit_size
