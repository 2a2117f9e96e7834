"""Every exit code, and that no command ends in a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool import target
from brokerstore.tool.hints import after_error
from commitlog import CommitLog, LogPaths, Message
from storageio import REAL_DISK, StoreError, StoreLocked
from tests.brokerstore.damage import Log
from tests.brokerstore.tool import run
from tests.helpers import contents
from tests.processes import running

TOOL = [sys.executable, "-m", "brokerstore"]


def start(*arguments: object, **options: Any) -> AbstractContextManager[subprocess.Popen[Any]]:
    root = Path(__file__).parents[2]
    return running([*TOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, **options)


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Path]:
    """Return a store whose dump exceeds the buffer of a pipe."""
    yield Log(tmp_path, body_size=20).store


def test_0_a_clean_store(tmp_path: Path) -> None:
    """Every command exits with 0."""
    store = Log(tmp_path).store
    for command in ("info", "ls", "dump", "verify"):
        ran = run(command, store)
        assert (ran.code, ran.talk) == (0, "")
        assert ran.out
    assert run("get", "--at", 0, store).code == 0
    assert run("decode-id", "0A01020300002A9F0000000000000000").code == 0
    assert run("--help").code == run("dump", "--help").code == run("--version").code == 0


def test_1_a_problem(tmp_path: Path) -> None:
    """A problem is found and reported."""
    log = Log(tmp_path)
    log.put(log.offsets[1], "magic", 0)
    for command in (["verify"], ["dump"], ["ls"], ["get", "--at", log.offsets[1]]):
        assert run(*command, log.store).code == 1


@pytest.mark.parametrize("offset", [1, 65535, 10**15])
def test_1_no_message_at_an_offset(tmp_path: Path, offset: int) -> None:
    """Inside a message, in a blank or outside every file, the error has file, offset, expected and found."""
    ran = run("get", "--json", "--at", offset, Log(tmp_path).store)
    assert (ran.code, ran.out) == (1, "")
    assert "expected" in ran.talk
    assert "found" in ran.talk


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["dump"],
        ["dump", "--no-such-option", "."],
        ["dump", "--limit", "-1", "."],
        ["tail", "-n", "x", "."],
        ["query", ".", "topic"],
        ["query", ".", "topic", "key", "--begin", "yesterday"],
        ["get", "--at", "1", "--id", "2", "."],
        ["recover", "--skip-bad", "--truncate", "."],
        ["rebuild", ".", "everything"],
        ["rebuild", ".", "--index-slots", "0"],
        ["stats", "--by", "week", "."],
        ["export", "--to", "parquet", "."],
        ["import", "."],
        ["offsets", "reset", ".", "--group", "g", "--topic", "t"],
        ["put", ".", "t", "body", "--body-file", "f"],
        ["get", "--at", "-1", "."],
        ["decode-id", "xyz"],
        ["decode-id", "Z" * 32],
        ["decode-id", "\x1b[31m"],
    ],
)
def test_2_wrong_use(arguments: list[str]) -> None:
    """The error is on stderr, and stdout is empty."""
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.talk
    assert "\x1b" not in ran.talk


@pytest.mark.parametrize(
    ("command", "option"), [("dump", "--topic"), ("stats", "--config"), ("printMsg", "-t"), ("dump", "--limit")]
)
def test_2_two_values_of_an_option_that_takes_one(fixture_store: Any, command: str, option: str) -> None:
    """The last one would hide the first; a printed next step may repeat the same one."""
    folder = fixture_store("plain").store
    ran = run(command, folder, option, "1", option, "2")
    assert (ran.code, ran.out) == (2, "")
    assert f"{ran.talk.split('Error: ')[1].split()[0]} is given twice, as '1' and '2'" in ran.talk
    assert "is given twice" not in run(command, folder, option, "1", option, "1").talk
    assert run("dump", folder, "--json", "--json", "--property", "a=1", "--property", "b=2").code == 0


def test_3_no_store(tmp_path: Path) -> None:
    """For a missing folder, a file or an empty folder the error lists what was looked for."""
    file = tmp_path / "file"
    file.write_text("text")
    for path in (tmp_path / "missing", file, file / "below"):
        for command in ("info", "ls", "dump", "verify"):
            ran = run(command, "--json", path)
            assert (ran.code, ran.out) == (3, "")
            assert str(path) in ran.talk
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "commitlog" in run("info", empty).talk
    assert run("info", empty).code == 3


def test_3_a_command_for_the_other_kind(fixture_store: Any, tmp_path: Path) -> None:
    """The folder is named, not called corrupt; a command of the other kind is wrong use."""
    vhost = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    for command in (
        ["query", vhost, "t", "k", "--begin", "0"], ["tail", vhost, "-f"], ["put", vhost, "t", "b", "--tag", "x"],
        ["rebuild", "--apply", vhost, "index"], ["offsets", "show", vhost], ["copy", vhost, "--all", "--to", tmp_path / "x"],
    ):  # fmt: skip
        ran = run(*command)
        assert (ran.code, ran.out) == (2, "")
        assert "RabbitMQ" in ran.talk
    assert run("import", fixture_store("plain").store, "--to", tmp_path / "x").code == 3
    assert run("import", vhost, "--to-rabbit", tmp_path / "x").code == 3
    assert not (tmp_path / "x").exists()
    assert run("query", fixture_store("plain").store / "commitlog", "t", "k").code == 3


def test_4_in_use(fixture_store: Any) -> None:
    """A writing command meets the lock and changes nothing; a reading one needs no lock."""
    fixture = fixture_store("broker-live", own=True)
    lock = REAL_DISK.lock(str(fixture.store / "lock"))
    try:
        before = contents(fixture.store)
        for command in (
            ["put", fixture.store, "LiveTopic", "body"],
            ["rebuild", "--apply", fixture.store],
            ["recover", fixture.store, "--apply"],
            ["offsets", "reset", fixture.store, "--group", "G_tag", "--topic", "LiveTag", "--to", "latest", "--apply"],
        ):
            ran = run(*command)
            assert (ran.code, ran.out) == (4, ""), command
            assert "StoreLocked" in ran.talk
        assert contents(fixture.store) == before
        for command in (["info"], ["ls"], ["dump"], ["verify"], ["recover"], ["tail"], ["offsets", "show"]):
            assert run(*command, fixture.store).code == 0
    finally:
        lock.release()


def test_5_system_call_error() -> None:
    """No file system accepts the name."""
    ran = run("info", "x" * 5000)
    assert ran.code == 5
    assert "errno" in ran.talk


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_5_stdout_on_a_full_disk(big: Path) -> None:
    """The disk behind stdout is full."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*TOOL, "dump", "--json", str(big)], stdout=full, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
    assert done.returncode == 5
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr


def test_130_interrupted(big: Path) -> None:
    """The signal arrives during a dump whose reader is slow."""
    # a shell's background job begins with the signal ignored
    with start("dump", "--json", big, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in talk


def test_a_reader_that_goes_is_no_problem(big: Path) -> None:
    """`dump | head -1` is not an error."""
    with start("dump", "--json", big) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        talk = process.stderr.read()
        assert process.wait(60) == 0
    assert talk == b""


def test_escape_sequences_in_names_and_bodies_are_printed_as_text(tmp_path: Path) -> None:
    """Escapes in a topic, tag, key, body or file name are printed as text."""
    evil = "\x1b]0;owned\x07\x9b31m\u202e"
    folder = tmp_path / "store" / "commitlog"
    log = CommitLog(LogPaths(REAL_DISK, [str(folder)]), writable=True, file_size_bytes=65536)
    log.attach(0)
    log.appender.append(Message(f"t{evil}", f"b{evil}\n".encode(), tags=f"g{evil}", keys=[f"k{evil}"], queue_id=0))
    log.close()
    (folder / f"f{evil}").touch()
    (folder / os.fsdecode(b"\xff")).touch()
    for command in (["info"], ["ls"], ["dump"], ["dump", "--json"], ["get", "--at", 0], ["verify"], ["verify", "--json"]):
        ran = run(*command, folder.parent)
        shown = (ran.out + ran.talk).replace("\n", "")
        assert shown.isprintable()
        assert ran.code in (0, 1)
    assert run("dump", "--json", folder.parent).json["topic"] == f"t{evil}"


def test_an_ascii_terminal_gets_escapes(tmp_path: Path) -> None:
    """A character that the encoding lacks is no error."""
    folder = tmp_path / "store" / "commitlog"
    log = CommitLog(LogPaths(REAL_DISK, [str(folder)]), writable=True, file_size_bytes=65536)
    log.attach(0)
    log.appender.append(Message("日本", "тело".encode(), queue_id=0))
    log.close()
    with start("dump", folder.parent, env={**os.environ, "PYTHONIOENCODING": "ascii"}) as process:
        out, talk = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\\u65e5\\u672c" in out
    assert talk == b""


def test_each_exit_code_prints_the_next_command(fixture_store: Any, tmp_path: Path) -> None:
    """For codes 1 to 7 a line on stderr names a command that exists and runs."""
    log = Log(tmp_path)
    log.put(log.offsets[1], "magic", 0)
    store = fixture_store("crash-torn", own=True).store
    cases: list[tuple[int, tuple[object, ...], str]] = [
        (1, ("verify", log.store), f"run: brokerstore recover {log.store}"),
        (1, ("dump", log.store), f"run: brokerstore verify {log.store}"),
        (1, ("get", "--at", log.offsets[1], log.store), f"run: brokerstore verify {log.store}"),
        (1, ("recover", store), f"run: brokerstore recover {store} --apply"),
        (2, ("decode-id", "xyz"), "run: brokerstore decode-id --help"),
        (2, ("dump", "--limit", "-1", log.store), "Try 'brokerstore dump --help'"),
        (3, ("info", tmp_path / "missing"), "run: find"),
        (5, ("info", "x" * 5000), "run: ls -ld"),
        (6, ("recover", store, "--apply"), f"run: brokerstore verify {store}"),
    ]
    for code, arguments, expected in cases:
        ran = run(*arguments)
        assert (ran.code, expected in ran.talk) == (code, True), (arguments, ran.talk)
    assert run("verify", store).code == 0


def test_4_and_6_print_the_next_command(fixture_store: Any) -> None:
    """The hints show who holds the lock, and how to check the repaired store."""
    store = fixture_store("broker-live", own=True).store
    lock = REAL_DISK.lock(str(store / "lock"))
    try:
        ran = run("rebuild", "--apply", store)
        assert (ran.code, f"run: brokerstore info {store}" in ran.talk) == (4, True)
    finally:
        lock.release()
    first = sorted((store / "commitlog").iterdir())[0]
    data = bytearray(first.read_bytes())
    data[run("dump", "--json", "--limit", 5, store).lines[3]["physical_offset"] + 8] ^= 0xFF
    first.write_bytes(data)
    assert "--skip-bad" in run("recover", store).talk
    assert f"run: brokerstore recover {store} --skip-bad --apply  (" in run("recover", store, "--skip-bad").talk
    ran = run("recover", store, "--apply", "--skip-bad")
    assert (ran.code, f"run: brokerstore verify {store}" in ran.talk) == (6, True)
    assert run("verify", store).code == 0


def test_every_error_has_a_next_step() -> None:
    """Every error class of the library has a hint, new ones too."""
    for kind in every_error(StoreError):
        error = kind.__new__(kind)
        Exception.__init__(error, "text")
        assert after_error(error, "dump", "DIR's"), kind
    assert "'a folder'" in after_error(StoreLocked("x"), "put", "a folder")  # a shell takes it as one word


def every_error(kind: type[StoreError]) -> Iterator[type[StoreError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_error(below)


def test_an_error_of_our_own_shows_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error is one line, unless BROKERSTORE_DEBUG=1 is set."""

    def fail(_folder: str, _options: Any) -> Any:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(target, "find_target", fail)
    ran = run("verify", tmp_path)
    first, second = ran.talk.splitlines()
    assert (ran.code, first) == (1, "brokerstore: internal error, please report it: ZeroDivisionError: oops")
    assert "BROKERSTORE_DEBUG=1" in second
    monkeypatch.setenv("BROKERSTORE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("verify", tmp_path)
