"""`completion`, `bench`, and the command names of mqadmin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.tool import run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_that_shell(shell: str) -> None:
    """The shell accepts the script, if it is installed."""
    ran = run("completion", shell)
    assert ran.code == 0
    assert "_BROKERSTORE_COMPLETE" in ran.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=ran.out, text=True, check=True)


def test_shell_completion_lists_the_commands() -> None:
    """The test asks as a shell does when the tab key is pressed."""
    requested = {"_BROKERSTORE_COMPLETE": "bash_complete", "COMP_WORDS": "brokerstore ve", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from brokerstore.tool import main; main()"],
        cwd=ROOT, env=os.environ | requested, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "plain,verify" in done.stdout


def test_bench_prints_every_rate_and_removes_its_files(tmp_path: Path) -> None:
    """It prints every rate and leaves an empty folder."""
    ran = run("bench", "--json", "--messages", 1000, "--size", 100, tmp_path)
    assert ran.code == 0
    assert [row["what"].split()[0] for row in ran.json["rows"]] == ["put", "put", "read", "read", "put"]
    assert all(row["messages_per_s"] > 0 for row in ran.json["rows"])
    assert list(tmp_path.iterdir()) == []


SAME = [
    (["queryMsgById", "-i", "ID"], ["get", "--id", "ID"]),
    (
        ["queryMsgByOffset", "-t", "HotTopic", "-i", "0", "-o", "3"],
        ["get", "--topic", "HotTopic", "--queue", "0", "--offset", "3"],
    ),
    (["printMsg", "-t", "HotTopic"], ["dump", "--topic", "HotTopic"]),
    (["topicList"], ["ls"]),
    (["statsAll"], ["stats"]),
    (["consumerProgress"], ["offsets", "show"]),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=[names[0][0] for names in SAME])
def test_an_mqadmin_command_name_gives_the_same_output(fixture_store: Any, theirs: list[str], ours: list[str]) -> None:
    """The options are those of mqadmin."""
    fixture = fixture_store("plain")
    expected = fixture.expected()["messages"][7]["msgId"]
    lines = [[expected if word == "ID" else word for word in words] for words in (theirs, ours)]
    first, second = (run(*words, "--json", fixture.store) for words in lines)
    assert first == second
    assert first.code == 0
    assert first.out


def test_query_by_key_accepts_mqadmin_options(fixture_store: Any) -> None:
    """Topic and key are options in mqadmin and arguments here."""
    store = fixture_store("plain").store
    assert run("queryMsgByKey", "--json", "-t", "HotTopic", "-k", "hot-3", store) == run(
        "query", "--json", store, "HotTopic", "hot-3"
    )
