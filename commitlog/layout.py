"""The constants of the commit-log record (`docs/formats/commitlog.md`).  Big-endian, offsets from the record's start.

    offset  size  field                 meaning
    0       4     size                  whole record, this field included
    4       4     magic                 V1, V2 (two-byte topic length) or blank
    8       4     body_crc              CRC-32 of the body without its top bit; 0 if the body is empty
    12      4     queue_id
    16      4     flag                  opaque, set by the user
    20      8     queue_offset          unit number in the queue; 0 for prepared and rollback records
    28      8     physical_offset       this record's first byte in the whole log
    36      4     sys_flag              see SysFlag
    40      8     born_timestamp_ms
    48      8     born_host             4 bytes of address (16 for IPv6), then the port in 4
    56      8     store_timestamp_ms    12 bytes later for each IPv6 host before it
    64      8     store_host
    72      4     reconsume_times
    76      8     prepared_transaction_offset
    84      4     body_size             then the body
    88      1     topic_size            2 bytes in V2; then the topic
    89      2     properties_size       then the properties

From `born_host` on the offsets hold for IPv4 hosts; HOST_GROWTH more bytes for each IPv6 host before a field.
"""

SIZE_AT = 0
MAGIC_AT = SIZE_AT + 4
BODY_CRC_AT = MAGIC_AT + 4
QUEUE_ID_AT = BODY_CRC_AT + 4
FLAG_AT = QUEUE_ID_AT + 4
QUEUE_OFFSET_AT = FLAG_AT + 4
PHYSICAL_OFFSET_AT = QUEUE_OFFSET_AT + 8
SYS_FLAG_AT = PHYSICAL_OFFSET_AT + 8
BORN_TIME_AT = SYS_FLAG_AT + 4
BORN_HOST_AT = BORN_TIME_AT + 8
HOST_SIZE = 4 + 4
HOST_SIZE_V6 = 16 + 4
HOST_GROWTH = HOST_SIZE_V6 - HOST_SIZE
STORE_TIME_AT = BORN_HOST_AT + HOST_SIZE
STORE_HOST_AT = STORE_TIME_AT + 8
RECONSUME_AT = STORE_HOST_AT + HOST_SIZE
PREPARED_AT = RECONSUME_AT + 4
BODY_SIZE_AT = PREPARED_AT + 8
BODY_AT = BODY_SIZE_AT + 4
TOPIC_SIZE_SIZE = 1
TOPIC_SIZE_SIZE_V2 = 2
PROPERTIES_SIZE_SIZE = 2
RECORD_SIZE_MIN = BODY_AT + TOPIC_SIZE_SIZE + PROPERTIES_SIZE_SIZE  # without body, topic and properties
assert RECORD_SIZE_MIN == 91

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
MAGIC_BLANK = -875286124  # 0xCBD43194

FOREVER_MS = (1 << 63) - 1  # later than every store time
BLANK_SIZE = 8  # size and magic; each file reserves room for one
CRC_MASK = 0x7FFFFFFF

FOREVER_MS = (1 << 63) - 1  # later than every store time
BLANK_SIZE = 8  # size and magic; each file reserves room for one
CRC_MASK = 0x7FFFFFFF

FILE_NAME_SIZE = 20
FILE_SIZE_DEFAULT = 1 << 30

# sys_flag bits (docs/formats/commitlog.md#system-flag)
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
FILLER_FLAGS = NEED_UNWRAP | INNER_BATCH  # of a batch
FILLER_BODY = bytes.fromhex("789c030000000001")  # nothing, compressed: clients of RocketMQ 5 unpack no message from it
FILLER_BODY_SIZE = len(FILLER_BODY)
FILLER_BODY_SIZE_MAX = FILLER_BODY_SIZE + 2  # zeros may follow; a batch of one message is longer, also when it is compressed
COMPRESSION_SHIFT = 8
COMPRESSION_MASK = 0x700

# Properties: name 1 value 2 name 1 value 2 ... (docs/formats/commitlog.md#properties)
NAME_END = 1
PAIR_END = 2
PAIR_SIZE_MIN = 3
PROPERTIES_SIZE_MAX = 32767
TOPIC_SIZE_MAX_V1 = 127
TOPIC_SIZE_MAX = 32767

# The checksum as the last property: name, 1, ten digits, least significant first, 2
# (docs/formats/commitlog.md#the-whole-record-checksum)
CRC_NAME = b"__CRC32#"
CRC_DIGITS = 10
CRC_SIZE = len(CRC_NAME) + 1 + CRC_DIGITS + 1
assert CRC_SIZE == 20

QUEUES_MAX = 65536  # in one topic; a limit of this library
BODY_SIZE_MAX_DEFAULT = 4 * 1024 * 1024
BATCH_MEMBER_SIZE = 4 + 4 + 4 + 4 + 4 + 2  # added to body and properties (docs/formats/put-rules.md#wire-batch)
RECORD_ALLOWANCE = 64 * 1024  # a record's maximum size beyond the largest body
