"""The files of a stream as a table (docs/formats/rabbitmq-streams.md).

N.segment   OSIL version:32   then chunks
N.index     OSII version:32   then 29 bytes for each chunk

chunk   0 magic:4 version:4   1 type:8   2 entries:16   4 records:32   8 timestamp:64   16 epoch:64   24 chunk_id:64
        32 crc:32   36 data_size:32   40 trailer_size:32   44 filter_size:8   45 zeros:24   48 filter, data, trailer
"""

from struct import Struct

SEGMENT_MAGIC, INDEX_MAGIC = b"OSIL", b"OSII"
FILE_VERSION = 1
FILE_HEAD_SIZE = 8
FILE_HEAD = Struct(">4sI")
DIGITS = 20

CHUNK_HEAD = Struct(">BBHIqQQIIIB3s")
CHUNK_TIME_AT, CHUNK_TIME_AND_EPOCH = 8, Struct(">qQ")
CHUNK_MAGIC, CHUNK_VERSION = 5, 0
OFFSET_MAX = (1 << 62) - 1  # greater ids are damage, which no checksum of a chunk covers
USER, TRACKING_DELTA, TRACKING_SNAPSHOT = range(3)
FILTER_SIZE_MIN = 16

INDEX_RECORD = Struct(">QqQIB")  # chunk id, timestamp, epoch, position, type

ENTRY_HEAD = Struct(">I")
IS_SUB_BATCH = 0x80
SUB_BATCH = Struct(">BHII")  # 1:1 compression:3 0:4, records, uncompressed size, size
UNPACKED_MAX = 256 << 20  # of one sub-batch

TRACKING_HEAD = Struct(">BB")
NAME_SIZE_MAX = 255
TRACKING_VALUE = Struct(">Q")
TRACKING_SEQUENCE = Struct(">QQ")  # in a snapshot: chunk id, sequence
SEQUENCE, OFFSET, TIMESTAMP = range(3)
