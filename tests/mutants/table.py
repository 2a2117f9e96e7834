"""The files that are mutated, and the tests of each: fast ones that cover it on the plain build."""

from __future__ import annotations

from typing import NamedTuple

_LAB = ("tests/lab/test_sync_orders.py", "tests/lab/test_regressions.py")


class Group(NamedTuple):
    """Files that the same tests cover."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    more: tuple[str, ...] = ()  # slower tests, run for what survived the others


def _below(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.py" for name in names)


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


GROUPS = {
    "storageio": Group(_below("storageio", "real_disk", "swap"), ("tests/storageio",), _tests("messagestore", "processes")),
    "commitlog": Group(
        _below("commitlog", "_append_cy", "mapped_file", "mapped_file_queue", "commit_log"),
        (
            *_tests("commitlog", "append_refusals", "columns", "commit_log", "mapped_files", "quick_append", "regressions"),
            *_tests("commitlog", "buffer_pool"),
            *_tests("messagestore", "lifecycle", "put_many", "retention", "pool", "failing_disk_at_opening"),
            *_LAB,
        ),
        (
            *_tests("commitlog", "damage", "fixtures", "golden", "rows", "scan_columns", "damaged_folders"),
            *_tests(
                "messagestore", "batch_topics", "delay_numbers", "delay_resume", "delays", "follower", "raw_views", "reads",
                "replication", "resources", "transactions", "walkers",
            ),
        ),
    ),
    "messagestore": Group(
        _below(
            "messagestore", "recovery/log_end", "write/flusher", "write/pool", "write/ring", "checkpoint", "write/sync_failure",
            "write/housekeeper", "write/dispatcher", "engine", "abort_file", "excluded_topics", "index_hint", "sidecar",
        ),
        (
            *_tests(
                "messagestore", "abort_file", "batch_repair", "checkpoint", "sync_failure", "extended_units",
                "failing_disk_at_opening",
                "group_commit", "index_hint", "index_sizes", "light_queues", "lifecycle", "sidecar", "pool",
                "pool_meetings", "progress", "queue_list", "recover_killed", "resources", "retention",
                "retention_of_pending", "clamp_offsets",
                "torn_queues", "trouble_behind", "walkers",
            ),
            *_LAB,
        ),
    ),
    "repair": Group(
        (
            *_below("messagestore/derive", "cross_check", "rebuild", "kinds/batch", "kinds/lmq", "kinds/ordinary"),
            *_below(
                "messagestore/repair", "damage", "fillers", "symlinks", "repair_config", "repair_files",
                "rebuild_store", "recover", "lost_messages", "verification",
            ),
        ),
        _tests(
            "messagestore", "batch_repair", "clean_stop_damage", "delay_levels", "expired_queues", "hole_fillers",
            "kept_files", "repair_files", "repair_of_damaged_files", "rebuild_store", "recover", "recover_killed",
            "clamp_offsets", "lost_messages", "timer_cuts", "timers", "verify_in_use",
        ),
    ),
    "derived": Group(
        (
            *_below("indexfile", "_index_cy", "index_file", "index_files", "shape"),
            *_below(
                "consumequeue", "_units_cy", "batch", "all_queues", "batch_queues", "consume_queues", "ext_writer",
                "ordinary", "queue", "queue_files",
            ),
        ),
        ("tests/indexfile", "tests/consumequeue", *_tests("messagestore", "index_hint", "torn_queues"), *_LAB),
    ),
    "rabbitstore": Group(
        _below(
            "rabbitstore", "engine/clean_stop", "engine/collector", "engine/msg_store_cy", "engine/msg_store_recovery",
            "engine/opening", "engine/queue_index_cy", "format/journal", "repair/compaction", "repair/recover",
        ),
        (
            *_tests(
                "rabbitstore", "background", "clean_stop", "half_done", "index_damage", "msg_store", "opening", "queue_index",
                "recover", "store", "store_failures", "torn",
            ),
            "tests/lab/test_regressions.py",
        ),
    ),
    "quorum": Group(
        _below(
            "rabbitstore/quorum", "check", "coordinator", "encode", "entries", "folder", "machine", "message", "messages",
            "repair", "segment", "snapshot", "state", "state_lists", "tables", "wal",
        ),
        ("tests/rabbitstore/quorum", *_tests("rabbitstore", "node_lines")),
    ),
    "stream": Group(
        _below(
            "rabbitstore/stream", "check", "chunk", "compression", "folder", "head_repair", "index", "message", "repair",
            "scan", "tracking",
        ),
        ("tests/rabbitstore/stream", *_tests("rabbitstore", "node_lines")),
    ),
    "shared": Group(
        _below(
            "messagestore/shared", "_packing_cy", "aio", "answers", "client", "consumer", "election", "groups", "owner",
            "presence", "protocol", "service", "store",
        ),
        ("tests/shared",),
    ),
    "rocketlink": Group(
        (
            *_below("rocketlink/ha", "first_bytes", "frames", "master", "master_state", "promotion", "replica"),
            *_below("rocketlink/remoting", "client", "frames", "signature"),
            *_below(
                "rocketlink/server", "broker", "clients", "connections", "fields", "leases", "lookups", "popping", "pulling",
                "requests", "sending", "tables",
            ),
            *_below("rocketlink/grpc", "messages", "port", "protocol", "receiving", "routes", "sending", "service", "sessions"),
        ),
        ("tests/rocketlink",),
    ),
    "timers": Group(
        (
            *_below(
                "messagestore/timers", "check", "layout", "live", "new_files", "pending", "records", "timer_log", "undelivered",
                "wheel",
            ),
            "messagestore/broker/services/timers.py",
        ),
        (
            *_tests(
                "messagestore", "timer_cuts", "timer_delivery", "timer_promises", "timer_rebuild", "timers", "wheel_snapshots",
            ),
            "tests/lab/test_timer_crashes.py",
        ),
    ),
    "kombu": Group(
        _below("brokerstore/kombu", "base", "bindings", "queues", "transport"),
        _tests("brokerstore", "kombu", "celery", "missing_extras"),
    ),
}  # fmt: skip
