"""The checks of a record, and the codes for what a position in the log can hold instead of one."""

# Checks in addition to the lengths; flags.
CHECK_BODY = 1  # the CRC of the body
CHECK_RECORD = 2  # the CRC over the whole record, if it has one, and the end of its properties
CHECK_POSITION = 4  # the record contains its own physical offset and a valid queue position
CHECK_ALL = CHECK_BODY | CHECK_RECORD | CHECK_POSITION
ONE_CHECKSUM = 8  # skip the CRC of the body if the checked CRC over the whole record covers it
CHECK_READ = CHECK_ALL | ONE_CHECKSUM  # for readers: detects each changed byte, and reads each byte once

# The results of a check that are not a positive size.
BLANK = 0  # a blank record: the file ends here
TORN = -1  # the record's size runs past the end of what was given
EMPTY = -2  # zeros: nothing was written here
BAD_MAGIC = -3
BAD_SIZE = -4
BAD_BODY_SIZE = -5
BAD_TOPIC_SIZE = -6
BAD_PROPERTIES_SIZE = -7  # or the lengths do not add up to the size
MISPLACED = -8
BAD_BODY_CRC = -9
BAD_RECORD_CRC = -10
BAD_ENTRY = -12  # the header of a DLedger entry disagrees with itself, its record or the entry before
TORN_PROPERTIES = -11  # the properties end in a zero: their last page was not written

# Names of the codes.  A walk can also stop at "end" (of the requested range) and "full" (columns).
STOPS: dict[int, str] = {
    BLANK: "blank",
    TORN: "torn",
    EMPTY: "empty",
    BAD_MAGIC: "bad_magic",
    BAD_SIZE: "bad_size",
    BAD_BODY_SIZE: "bad_body_size",
    BAD_TOPIC_SIZE: "bad_topic_size",
    BAD_PROPERTIES_SIZE: "bad_properties_size",
    MISPLACED: "misplaced",
    BAD_BODY_CRC: "bad_body_crc",
    BAD_RECORD_CRC: "bad_record_crc",
    TORN_PROPERTIES: "torn_properties",
    BAD_ENTRY: "bad_entry",
}
