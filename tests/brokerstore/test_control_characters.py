"""Names that move a terminal's cursor, set its title, turn its text round or forge a line: no command prints one as it is.

Every name of every file is such a name: topics, groups, keys, tags, properties, files, folders, queues, exchanges, routing
keys and a broker's own properties.  Every command runs on them, with and without `--json`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerstore import RabbitStore
from brokerstore.tool.commands import every_command
from messagestore import MessageStore
from storebytes.builds import build_name
from tests.brokerstore.test_terminal import on_terminal
from tests.brokerstore.tool import Ran, run
from tests.faults.golden import unpacked
from tests.faults.test_hostile_folders import crafted, made_message
from tests.stores import small_config

EVIL = "\x1b]0;x\x07\x9b31m\u202e\u2066\nFORGED\r\u2028\x7f\x85"
HALF = EVIL + "\ud800"  # JSON can hold half a character
FILE_NAME = EVIL.encode() + b"\xed\xa0\x80\xff"  # a file name any byte
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\nFORGED")
SIZES = small_config(max_index_num=200)

ANSWERS = [
    "info STORE", "info STORE --config CONF", "ls STORE", "dump STORE", "dump STORE --topic EVIL", "dump STORE --queue EVIL",
    "get STORE --at 0", "get STORE --at 7", "get STORE --topic EVIL --queue 0 --offset 0", "get STORE --id EVIL",
    "query STORE EVIL EVIL", "query STORE T EVIL", "tail STORE", "top STORE --interval 0.1", "stats STORE",
    "stats STORE --by hour", "transactions STORE", "verify STORE",
    "verify STORE --log-only", "recover STORE", "recover STORE --skip-bad", "promote STORE", "offsets show STORE",
    "offsets show STORE --group EVIL",
    "diff STORE OTHER", "diff STORE VHOST", "decode-id EVIL", "doctor",
    "queryMsgById STORE -i EVIL", "queryMsgByOffset STORE -t EVIL -i 0 -o 0", "queryMsgByKey STORE -t EVIL -k EVIL",
    "printMsg STORE -t EVIL", "topicList STORE", "statsAll STORE", "consumerProgress STORE", "DecodeMessageId -i EVIL",
    "queryMsgByUniqueKey STORE -t EVIL -i EVIL", "printMsgByQueue STORE -t EVIL -i EVIL",
    "consumeMessage STORE -t EVIL -i 0", "queryCq STORE -t EVIL -q 0 -i 0", "topicStatus STORE -t EVIL",
    "info VHOST", "ls VHOST", "dump VHOST", "get VHOST --queue EVIL --offset 0", "query VHOST EVIL EVIL", "query VHOST no EVIL",
    "tail VHOST", "top VHOST", "stats VHOST", "verify VHOST", "recover VHOST", "offsets show VHOST", "rebuild VHOST index",
    "info MISSING", "info EVIL", "EVIL", "info STORE --EVIL", "info STORE --vhost EVIL", "info NODE", "definitions NODE",
    "export STORE --out EVIL/EVIL", "report STORE --out EVIL/EVIL",
]  # fmt: skip
PAGES = ["export STORE", "export STORE --to csv", "export VHOST", "export VHOST --to csv", "report STORE", "report VHOST",
         "completion bash", "completion zsh", "completion fish", "--version", "--help"]  # fmt: skip
CHANGES = [
    "put STORE T body", "put STORE EVIL body", "put STORE T body --key EVIL --property EVIL=EVIL",
    "put STORE T --body-file EVIL",
    "recover STORE --apply --skip-bad", "recover STORE --apply", "rebuild STORE all --apply", "rebuild STORE index --apply",
    "offsets reset STORE --apply --group EVIL --topic EVIL --to earliest",
    "offsets reset STORE --apply --group EVIL --topic T --to earliest",
    "resetOffsetByTime STORE -g EVIL -t EVIL -s 0", "copy STORE --to NEW --all", "copy STORE --to NEW --topic EVIL",
    "promote STORE --apply", "import STORE --to-rabbit NEW", "import VHOST --to NEW", "import ROWS --to NEW",
    "import STORE --to NEW",
    "purge STORE EVIL --apply", "requeue STORE EVIL --apply", "topic delete STORE EVIL --apply",
    "group delete STORE EVIL --apply",
    "put VHOST EVIL body", "put VHOST no body", "recover VHOST --apply", "bench FILE",
]  # fmt: skip


def strange_store(folder: Path) -> Path:
    """Return a store in which every name is hostile, with groups ahead of their queues."""
    with MessageStore.open(folder, "a", SIZES) as made:
        made.put(made_message(0))  # type: ignore[arg-type]
    log = folder / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    evil = EVIL.encode()
    words = [(b"KEYS", evil), (b"TAGS", evil), (evil, evil), (b"UNIQ_KEY", evil), (b"INNER_MULTI_DISPATCH", b"%LMQ%" + evil),
             (b"INNER_MULTI_QUEUE_OFFSET", b"0")]  # fmt: skip
    properties = b"".join(name + b"\1" + value + b"\2" for name, value in words)
    end = struct_end(data)
    for topic in (evil, b"T"):
        record = crafted(topic, at=end, properties=properties, body=evil, queue_offset=0 if topic == evil else 1)
        data[end : end + len(record)] = record
        end += len(record)
    log.write_bytes(data)
    write_config(folder / "config")
    for position in ("consumequeue", "consumequeue/T", "index", "commitlog", "config", "brokerstore", "batchconsumequeue", "."):
        strange = os.fsencode(folder / position) + b"/" + FILE_NAME
        if position in ("consumequeue", "consumequeue/T", "batchconsumequeue"):
            os.makedirs(strange + b"/0")
            Path(os.fsdecode(strange + b"/0/" + b"0" * 20)).write_bytes(bytes(2000))
        else:
            Path(os.fsdecode(strange)).write_bytes(b"x")
    (folder / "brokerstore" / "queues.json").write_text(json.dumps({HALF: [0], EVIL: [0], "T": [0]}))
    (folder / "abort").touch()
    return folder


def struct_end(data: bytearray) -> int:
    """Return the offset after the last record of a log file."""
    end = 0
    while size := int.from_bytes(data[end : end + 4], "big"):
        end += size
    return end


def write_config(config: Path) -> None:
    """Write every config file of a broker with hostile keys and values."""
    config.mkdir(exist_ok=True)
    offsets = {f"{topic}@{group}": {"0": 500, EVIL: 1} for topic in ("T", EVIL, HALF) for group in (EVIL, HALF)}
    group = {"groupName": HALF, EVIL: EVIL, "consumeEnable": True}
    files: dict[str, Any] = {
        "topics.json": {"topicConfigTable": {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                        "attributes": {EVIL: EVIL}} for name in (EVIL, HALF)}, EVIL: EVIL},
        "consumerOffset.json": {"offsetTable": {name: {"0": 500} for name in offsets}},
        "lmqConsumerOffset.json": {"offsetTable": {f"%LMQ%{name}": 500 for name in offsets}},
        "delayOffset.json": {"offsetTable": {"1": 100}},
        "subscriptionGroup.json": {"subscriptionGroupTable": {EVIL: group, HALF: group}},
        "consumerFilter.json": {"filterDataByTopic": {EVIL: {"filterDataMap": {EVIL: {"expression": EVIL}}}}},
    }  # fmt: skip
    for name, document in files.items():
        (config / name).write_text(json.dumps(document))
    (config / "consumerFilter.json").write_text(json.dumps({EVIL: HALF}) + HALF[:-1])


def strange_vhost(folder: Path) -> Path:
    """Return a virtual host with hostile queues, exchanges, routing keys and properties, and invalid files."""
    with RabbitStore.open(folder, vhost=EVIL) as made:
        made.declare_queue(EVIL)
        made.declare_queue("plain")
        named = {"message_id": EVIL, "headers": {EVIL: EVIL}}
        made.publish(EVIL, EVIL.encode(), exchange=EVIL, routing_keys=[EVIL], properties=named)
        made.publish("plain", b"b")
    store = os.fsencode(folder / "msg_store_persistent")
    for path in (store, store + b"/..", store + b"/../queues"):
        Path(os.fsdecode(path + b"/" + FILE_NAME)).write_bytes(b"x")
    (folder / "msg_store_persistent" / "clean.dot").write_bytes(b"x")
    return folder


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return what the words of a command line stand for."""
    above = tmp_path_factory.mktemp("strangers") / os.fsdecode(FILE_NAME)
    above.mkdir()
    node = above / "node"
    for vhost in ("A", "B"):
        strange_vhost(node / "msg_stores" / "vhosts" / vhost)
    (above / "broker.conf").write_text(
        f"brokerName={EVIL.splitlines()[0]}\nmappedFileSizeCommitLog=\x1b]0;x\x07\n\x1b]0;x\x07=1\nstorePathRootDir=/\x1b]0;x\x07\n"
    )
    rows = [{"topic": EVIL, "body": "x"}, {"topic": "T", "keys": HALF, "body": "x"}, {EVIL: EVIL}]
    (above / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (above / "file").touch()
    return {
        "STORE": strange_store(above / "store"), "VHOST": strange_vhost(above / "vhost"), "NODE": node,
        "OTHER": unpacked("plain", above), "CONF": above / "broker.conf", "ROWS": above / "rows.jsonl", "FILE": above / "file",
        "MISSING": above / "missing", "NEW": above / "new",
    }  # fmt: skip


def arguments(line: str, positions: dict[str, Path]) -> list[str]:
    """Return the arguments of a command line."""
    return [str(positions[word]) if word in positions else word.replace("EVIL", EVIL) for word in line.split()]


def in_a_process_without_handlers(work: Callable[[], Any], answer: Path) -> Any:
    """Run in a process where log lines go to stderr, as for a user; pytest's handlers would capture them."""
    child = os.fork()
    if child == 0:
        try:
            for name in (None, *logging.root.manager.loggerDict):
                logging.getLogger(name).handlers.clear()
            answer.write_text(json.dumps(work()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(answer.read_text())


def ran_all(lines: list[str], positions: dict[str, Path], tmp_path: Path, *, fresh: bool = False) -> dict[str, Ran]:
    """Run each command line, with `fresh` on its own copy of the folders."""

    def answers() -> dict[str, Ran]:
        found = {}
        for line in lines:
            here = dict(positions)
            if fresh:
                above = Path(os.fsdecode(os.fsencode(tmp_path) + b"/copies/" + FILE_NAME))
                shutil.rmtree(above, ignore_errors=True)
                shutil.copytree(positions["STORE"].parent, above, symlinks=True)
                here = {word: above / path.relative_to(positions["STORE"].parent) for word, path in positions.items()}
            found[line] = run(*arguments(line, here))
        return found

    answered = in_a_process_without_handlers(answers, tmp_path / "answers.json")
    return {line: Ran(*ran) for line, ran in answered.items()}


def check(answers: dict[str, Ran]) -> None:
    """Check that no command printed a control character from a file."""
    found = {line: hit for line, ran in answers.items() for text in (ran.out, ran.talk)
             for hit in [CONTROL.search(text)] if hit}  # fmt: skip
    assert not found, {line: (hit.string[max(0, hit.start() - 80) : hit.start() + 20]) for line, hit in found.items()}
    assert not [line for line, ran in answers.items() if "internal error" in ran.talk]


def test_every_command_is_covered_by_this_test() -> None:
    """A new command must be added to this test; `replicate`, `serve` and `web` wait for other programs."""
    assert set(every_command()) - {"replicate", "serve", "web"} <= {line.split()[0] for line in (*ANSWERS, *PAGES, *CHANGES)}


@pytest.mark.deep
def test_reading_commands_print_no_control_character(positions: dict[str, Path], tmp_path: Path) -> None:
    """Reading commands print safe text, and with --json one object or line in printable ASCII."""
    check(ran_all(ANSWERS, positions, tmp_path))
    answers = ran_all([f"{line} --json" for line in ANSWERS if "EVIL/EVIL" not in line], positions, tmp_path)
    check(answers)
    for ran in answers.values():
        assert ran.out.isascii()
        assert all(json.loads(line) for line in ran.out.splitlines())


def test_exports_and_pages_contain_no_control_character(positions: dict[str, Path], tmp_path: Path) -> None:
    """Exports, pages and shell code are safe."""
    check(ran_all(PAGES, positions, tmp_path))


@pytest.mark.parametrize("form", ["", pytest.param(" --json", marks=pytest.mark.deep)], ids=["text", "json"])
def test_writing_commands_print_no_control_character(positions: dict[str, Path], tmp_path: Path, form: str) -> None:
    """Writing commands print safe text, including log lines of the engines."""
    answers = ran_all([line + form for line in CHANGES], positions, tmp_path, fresh=True)
    check(answers)
    assert any("set back" in ran.talk for ran in answers.values()), "the engine's own lines are among them"


def test_a_terminal_gets_no_escape_from_a_file(positions: dict[str, Path]) -> None:
    """Bars and tables use escapes of their own, but none from a file."""
    for line in ("recover STORE", "export STORE --to csv --no-csv-guard"):
        _code, shown = on_terminal("brokerstore", *arguments(line, positions))
        assert "\\x1b]" in shown, line
        assert "\x1b]" not in shown and "\u202e" not in shown, line


def test_warnings_and_tracebacks_are_escaped(tmp_path: Path) -> None:
    """Python's own messages on stderr are escaped while a command runs."""
    from brokerstore.tool.escapes import escaped_stderr, escaped_traceback

    def work() -> list[str]:
        import io

        sys.stderr = stream = io.StringIO()
        warnings.simplefilter("always")
        with escaped_stderr():
            warnings.warn(EVIL, stacklevel=1)
            print(EVIL, file=sys.stderr)
            sys.stderr.writelines([EVIL])
        try:
            raise ValueError(EVIL)
        except ValueError as error:
            escaped_traceback(type(error), error, error.__traceback__)
        return [stream.getvalue()]

    (shown,) = in_a_process_without_handlers(work, tmp_path / "shown.json")
    assert "ValueError" in shown and "test_control_characters" in shown
    assert not CONTROL.search(shown.replace("\n", " "))


def test_a_hint_quotes_the_folder_name_for_the_shell(tmp_path: Path) -> None:
    """A shell that runs the hint gets the bytes of the folder's name."""
    import subprocess

    from brokerstore.tool.escapes import quote

    for name in (EVIL, os.fsdecode(FILE_NAME), "a b", "it's", "\x1b\\'x", "\x01ff"):
        word = quote(name)
        assert word.isprintable()
        printed = subprocess.run(
            ["bash", "-c", f"printf %s {word}"], capture_output=True, check=True, env={"LC_ALL": "C"}
        ).stdout
        assert printed == os.fsencode(name)


def test_spark_tables_and_errors_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and errors of the Spark jobs are escaped."""
    from sparkstore.__main__ import emit, print_line
    from sparkstore.jobs.auditing import AuditReport

    row = {"store": EVIL, "topic": EVIL, "queue_id": 0, "first": 0, "last": 0, "messages": 1, "gaps": 0, "duplicates": 0}
    problem = {"store": EVIL, "file": EVIL, "offset": 0, "kind": EVIL, "expected": EVIL, "found": EVIL}
    report = AuditReport([problem], [problem], [row], {"messages": 1})
    for line in report.lines():
        emit(line)
    emit(report.to_json())
    print_line(EVIL)
    captured = capsys.readouterr()
    assert not CONTROL.search(captured.out + captured.err)
    assert len(report.to_text().splitlines()) == 5


def test_a_del_is_escaped_in_json_by_both_builds(positions: dict[str, Path]) -> None:
    """U+007F is ASCII, but a control character."""
    ran = run("dump", positions["STORE"], "--json")
    assert "\x7f" not in ran.out, build_name()
    assert any(EVIL in line["topic"] for line in ran.lines)
