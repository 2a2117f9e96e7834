"""What may be checked of a record, and what a place in the log can hold instead of one."""

# Checks beside the lengths; added up.
CHECK_BODY = 1  # the CRC of the body
CHECK_RECORD = 2  # the CRC over the whole record, where the record has one, and that its properties have an end
CHECK_PLACE = 4  # that the record says the offset it lies at, and a place that a queue can have
CHECK_ALL = CHECK_BODY | CHECK_RECORD | CHECK_PLACE
ONE_CHECKSUM = 8  # no checksum of the body where the one over the whole record covers it, and so is looked at
CHECK_READ = CHECK_ALL | ONE_CHECKSUM  # for who reads: no byte of a record is changed unseen, each is read once

# The answer of a check that is no positive size.
BLANK = 0  # a blank record: the file ends here
TORN = -1  # the record's size runs past the end of what was given
EMPTY = -2  # zeros: nothing was ever written here
BAD_MAGIC = -3
BAD_SIZE = -4
BAD_BODY_SIZE = -5
BAD_TOPIC_SIZE = -6
BAD_PROPERTIES_SIZE = -7  # or the lengths do not add up to the size
MISPLACED = -8
BAD_BODY_CRC = -9
BAD_RECORD_CRC = -10
TORN_PROPERTIES = -11  # they end in a zero: their last page was never written

# The same in words; beside them a walk can stop at "end" (of what was asked for) and "full" (of the columns).
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
}
