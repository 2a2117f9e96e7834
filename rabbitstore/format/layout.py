"""The bytes of every file of a RabbitMQ 3.10 virtual host, as constants; docs/formats/rabbitmq-folder.md explains them.

All integers are big-endian.

    N.rdq       record   size:64  msg_id:16 bytes  term:size-16 bytes  255:8
    N.idx       publish  1:1 persistent:1 relative:14  publish body          mark  01:2 relative:14
    journal.jif publish  00|01:2 seq:62  publish body     delivered  10:2 seq:62     acknowledged  11:2 seq:62
    publish body         msg_id:16 bytes  expiry_us:64  size:32  embedded:32  term:embedded bytes
    N.qi        head     "RCQI":32 2:8 first:64 end:64 0...   entry  status:8 flags:8 0:8 location:17 bytes size:32 expiry:64
    N.qs        head     "RCQS":32 2:8 first:64 end:64 0...   entry  length:32 flags:8 crc:16 0:8 term:length bytes
"""

from struct import Struct

from storageio import Kind

MSG_ID_SIZE = 16

# N.rdq
RECORD_HEAD = Struct(">Q16s")
RECORD_SIZE_BYTES = 8
RECORD_OVERHEAD = RECORD_SIZE_BYTES + 1  # total_size less size: the size field itself and the end mark
RECORD_END_MARK = 255
RECORD_MIN = RECORD_OVERHEAD + MSG_ID_SIZE
FILE_SIZE_LIMIT = 16 * 1024 * 1024

# publish body, in N.idx and journal.jif
PUBLISH_BODY = Struct(">16sqII")
assert PUBLISH_BODY.size == 32

# N.idx
SEGMENT_HEAD = Struct(">H")
SEGMENT_PUBLISH = 0x8000
SEGMENT_PERSISTENT = 0x4000
SEGMENT_MARK = 0x4000
SEGMENT_RELATIVE = 0x3FFF
SEGMENT_ENTRIES_NEW = 2048  # virtual hosts made since 3.8.17
SEGMENT_ENTRIES_OLD = 16384  # what a missing .config means
SEGMENT_ENTRIES_MAX = 16384  # the relative number has 14 bits

# journal.jif
JOURNAL_HEAD = Struct(">Q")
JOURNAL_SEQ = (1 << 62) - 1
JOURNAL_PUBLISH_PERSISTENT = 0
JOURNAL_PUBLISH_TRANSIENT = 1
JOURNAL_DELIVERED = 2
JOURNAL_ACKNOWLEDGED = 3
JOURNAL_PUBLISH_SIZE = JOURNAL_HEAD.size + PUBLISH_BODY.size
JOURNAL_ENTRIES_MAX = 32768
EMBED_BELOW = 4096  # bytes of body, and of body plus property block

# N.qi and N.qs
V2_HEAD_SIZE = 64
V2_HEAD = Struct(">IBQQ")
V2_INDEX_MAGIC = 0x52435149
V2_STORE_MAGIC = 0x52435153
V2_VERSION = 2
V2_SEGMENT_ENTRIES = 4096
V2_ENTRY = Struct(">BBBB16sIq")  # status, flags, 0, kind of location, location, size, expiry
assert V2_ENTRY.size == 32
V2_PRESENT = 1
V2_PERSISTENT = 1
V2_IN_MEMORY, V2_SHARED_STORE, V2_QUEUE_STORE = 0, 1, 2
V2_LOCATION = Struct(">QII")  # offset, length, 0
V2_CHUNK = Struct(">IBHB")  # length, flags, crc, 0
assert V2_CHUNK.size == 8
V2_HAS_CRC = 1

PERSISTENT_FOLDER = "msg_store_persistent"
TRANSIENT_FOLDER = "msg_store_transient"
QUEUES_FOLDER = "queues"
JOURNAL_NAME = "journal.jif"
CLEAN_NAME = "clean.dot"
SUMMARY_NAME = "file_summary.ets"
LOCATIONS_NAME = "msg_store_index.ets"
RECOVERY_NAME = "recovery.dets"
QUEUE_NAME_FILE = ".queue_name"
VHOST_NAME_FILE = ".vhost"
CONFIG_NAME = ".config"
STORE_FOLDERS = (PERSISTENT_FOLDER, TRANSIENT_FOLDER)
CLEAN_MARKS = tuple(f"{store}/{CLEAN_NAME}" for store in STORE_FOLDERS)
TABLE_ENDINGS = (".DCD", ".DCL", ".LOG")  # of the disk logs of a table of Mnesia
CLEAN_FILES = (  # of a clean stop, relative to the virtual host's folder
    *CLEAN_MARKS,
    RECOVERY_NAME,
    *(f"{store}/{name}" for store in STORE_FOLDERS for name in (SUMMARY_NAME, LOCATIONS_NAME)),
)

SIDECAR_FOLDER = "brokerstore"  # RabbitMQ does not know this folder and ignores it
DECLARATIONS_NAME = "queues.json"
CHECKSUMS_NAME = "clean_stop.json"
LOCK_NAME = "lock"
CUT_FOLDER = "cut"
SIDECAR_FILES: dict[str, Kind | None] = {  # `verify` reports an entry of another kind, `recover` moves it aside
    DECLARATIONS_NAME: Kind.FILE,
    CHECKSUMS_NAME: Kind.FILE,
    LOCK_NAME: Kind.FILE,
    "*.new": Kind.FILE,  # what `replace_file` has not yet renamed
    CUT_FOLDER: Kind.FOLDER,
}

# The parts of a message container of AMQP 0-9-1 as RabbitMQ 4 encodes it, in their order, and the values of its annotation `d`
MC_START = b"h\x04w\x02mcw\x08mc_amqplh\x06w\x07contenta<w\x04none"
MC_AFTER_BLOCK = b"w\x19rabbit_framing_amqp_0_9_1"
MC_TRUE, MC_FALSE = b"w\x04true", b"w\x05false"
