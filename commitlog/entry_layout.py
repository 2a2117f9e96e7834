"""The constants of a DLedger entry (`docs/formats/dledger.md#entry`).  Big-endian, offsets from the header's start.

In a DLedger log a header precedes each record of `layout.py`.  A reader recognizes it by its first field, which no record can
have as its size.

    offset  size  field           meaning
    0       4     magic           1; -1 begins a blank; 0 is space that was never written
    4       4     size            48 + the record
    8       8     index           0, 1, 2, ... without a gap over all files
    16      8     term            never falls
    24      8     position        of this header in the log
    32      12    unused          channel and two checksums: 0; no broker computes them
    44      4     body_size       the record
"""

ENTRY_MAGIC = 1
ENTRY_BLANK_MAGIC = -1
ENTRY_SIZE_AT = 4
ENTRY_INDEX_AT = 8
ENTRY_TERM_AT = 16
ENTRY_POSITION_AT = 24
ENTRY_BODY_SIZE_AT = 44
ENTRY_HEADER_SIZE = 48
ENTRY_UNIT_SIZE = 32  # in the index of the entries: magic, position, size, index, term
ENTRY_INDEX_FILE_SIZE = 5 * 1024 * 1024 * ENTRY_UNIT_SIZE  # of DLedger; mostly holes
