"""The files of quorum queues as a table (docs/formats/rabbitmq-quorum.md).

wal       RAWA version:8, then records
          0 truncate:1 known:1 writer:22   3 [id size:16 id, when known is 0]   adler32:32 size:32 index:64 term:64 data
segment   RASG version:16 max_count:16, then max_count entries, then data
          index:64 term:64 offset:64 size:32 crc32:32      (version 1: offset:32)
snapshot  RASN version:8 crc32:32 meta size:32 meta state
"""

from struct import Struct

WAL_MAGIC, SEGMENT_MAGIC, SNAPSHOT_MAGIC = b"RAWA", b"RASG", b"RASN"
WAL_VERSION = 1
WAL_HEAD_SIZE = 5
WRITER_SIZE = 3
TRUNCATE_BIT, KNOWN_BIT = 1 << 23, 1 << 22
WRITER_MASK = KNOWN_BIT - 1
ID_SIZE = Struct(">H")
ID_SIZE_MAX = 256
WAL_RECORD = Struct(">IIQQ")
CHECKED_AT = 8  # in WAL_RECORD: the checksum covers what follows

SEGMENT_HEAD = Struct(">4sHH")
SEGMENT_ENTRY = {1: Struct(">QQIII"), 2: Struct(">QQQII")}

SNAPSHOT_HEAD = Struct(">4sBI")
SNAPSHOT_VERSION = 1
META_SIZE = Struct(">I")
NUMBER_MAX = (1 << 62) - 1  # of an index or a term; greater ones are damage that no checksum covers
SNAPSHOT_SIZE_MAX = 1 << 30
