"""The guarantees of the RabbitMQ-style store, and the tests that check each of them.

A name is that of a test function; a module stands for all of its tests.  Measured guarantees are in
docs/evidence/performance-notes.md: `bench.peers --group rabbitmq`, `bench.rabbitmq.recovery`, `bench.rabbitmq.ten_million`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .test_clean_stop import MISFITS
from .test_damage import TABLE

TESTS = Path(__file__).resolve().parents[1]
RULES = "rabbitstore/test_variable_queue.py"
STORE = "rabbitstore/test_msg_store.py"
FIXTURES = "rabbitstore/test_fixtures.py"
DAMAGE = "rabbitstore/test_damage.py"
SERVER = "interop/rabbitmq/test_real_server.py"
STOP = "rabbitstore/test_clean_stop.py"

CATALOGUE = {
    "fixtures: every record, its place, size, payload hash": f"{FIXTURES}::test_every_record_of_every_rdq_file",
    "fixtures: terms, records and entries are written back byte for byte": f"{FIXTURES}::"
    "test_files_written_from_decoded_values_are_byte_identical",
    "fixtures: every index entry with flags, expiry, location": f"{FIXTURES}::test_every_index_entry_of_version_1",
    "fixtures: every row of file summary and message index": f"{FIXTURES}::test_the_clean_stop_tables",
    "fixtures: the terms of every queue": f"{FIXTURES}::test_the_recovery_terms",
    "fixtures: reference counts": f"{FIXTURES}::test_reference_counts_agree_with_the_queues",
    "fixtures: order and redelivered flags of after_recovery": (
        f"{FIXTURES}::test_messages_equal_those_that_the_restarted_broker_delivered"
    ),
    "real server: our folder recovered and delivered complete and in order": f"{SERVER}::"
    "test_the_server_recovers_and_delivers_what_we_wrote",
    "real server: its folder after SIGKILL read complete": f"{SERVER}::test_we_read_the_servers_folder_after_sigkill",
    "real server: in turn on one folder": f"{SERVER}::test_the_server_and_brokerstore_write_one_folder_in_turn",
    "real server: our clean stop needs no rebuild": f"{SERVER}::test_the_server_starts_on_our_clean_stop_without_a_rebuild",
    "real server: its clean stop needs no scan": f"{STOP}::test_a_clean_stop_of_the_server_is_opened_from_its_files",
    "variable queue: against a plain model, in both modes, states and invariants after each step": RULES,
    "variable queue: disk reads by state": f"{RULES}::test_a_fetch_needs_0_to_2_disk_reads_by_message_state",
    "variable queue: under its memory target": "rabbitstore/test_store.py::test_a_long_queue_stays_under_its_memory_target",
    "collector: killed at every write, rename and delete": f"{STORE}::test_the_collector_killed_at_every_call_of_the_disk",
    "collector: the server's own, killed": f"{STORE}::test_the_servers_own_compaction_killed_in_the_middle",
    "collector: the brief's rule": f"{STORE}::test_the_default_collector_rule_stops_at_one_half_garbage",
    "collector: 1.2 times the live bytes": f"{STORE}::test_the_stricter_setting_reaches_1_2_times_the_live_bytes",
    "collector: damage hides nothing from it": f"{DAMAGE}::test_the_collector_leaves_a_file_in_which_damage_hides_messages",
    "bad input: named, the rest readable, mended": f"{DAMAGE}::test_damage_is_reported_read_past_and_repaired",
    "bad input: a wrong .config is not guessed at opening": f"{DAMAGE}::test_opening_refuses_an_unreadable_config",
    "bad input: a damaged message does not stop its queue": f"{DAMAGE}::test_a_damaged_message_does_not_stop_the_queue",
    "bad input: clean-stop files that do not fit": f"{STOP}::test_inconsistent_clean_stop_files_are_reported_and_cause_a_scan",
    "kills: the whole store at every call": "rabbitstore/test_store_killed.py::test_killed_at_the_calls_that_change_something",
    "kills: the queue index at every call": "rabbitstore/test_queue_index.py::test_killed_at_every_call_of_the_disk",
    "kills: stop and start at every change": f"{STOP}::test_a_stop_or_start_killed_at_every_change",
    "kills: a recovery at every call": f"{DAMAGE}::test_a_recovery_interrupted_at_every_call_is_run_again",
}

BAD_INPUT = {  # a line of the list: the damages of TABLE and MISFITS that stand for it
    "torn record": {"torn_record", "zeros_in_a_file", "wrong_size_in_the_middle"},
    "missing end mark": {"missing_end_mark", "a_missing_mark_before_a_wrong_size"},
    "bad term": {"bad_term", "bad_term_in_the_index"},
    "id known to no file": {"an_id_known_to_no_file"},
    "index pointing into a deleted file": {"index_pointing_into_a_deleted_file"},
    "wrong .config": {"wrong_config", "config_of_larger_segments", "config_of_smaller_segments"},
    "damaged clean-stop files": {"damaged_locations", "damaged_summary", "damaged_clean_mark", "damaged_recovery_terms",
                                 "torn_recovery_terms", "wrong_valid_size", "mark_of_other_clients", "terms_of_another_time"},
}  # fmt: skip


@pytest.mark.parametrize("line", CATALOGUE)
def test_each_test_named_in_the_catalogue_exists(line: str) -> None:
    """Each test of the catalogue exists."""
    file, _, name = CATALOGUE[line].partition("::")
    tree = ast.parse((TESTS / file).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert name in names if name else any(known.startswith("test_") for known in names)


@pytest.mark.parametrize("line", BAD_INPUT)
def test_each_kind_of_bad_input_is_in_the_table(line: str) -> None:
    """Each damage is reported, read past and repaired."""
    assert {row[0].__name__ for row in TABLE} >= BAD_INPUT[line]


def test_each_clean_stop_file_is_missing_once_and_damaged_once() -> None:
    """Every misfit of files that an opening trusts has a test."""
    known = {row[0].__name__ for row in MISFITS}
    for name in ("msg_store_persistent/file_summary.ets", "msg_store_persistent/msg_store_index.ets", "recovery.dets"):
        assert f"missing {name}" in known
    assert known >= {"damaged_locations", "damaged_summary", "damaged_clean_mark", "damaged_recovery_terms"}
