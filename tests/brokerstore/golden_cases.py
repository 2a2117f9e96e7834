"""The commands whose complete answers are kept in `golden/`, and their renewal.

`python -m tests.brokerstore.golden_cases` shows what would change; with `--write` it writes the files.  Review every changed
line: only `test_golden_outputs` compares golden files with the manifests of the real systems.
"""

from __future__ import annotations

import difflib
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests import archives
from tests.brokerstore.tool import Ran, run

GOLDEN = Path(__file__).parent / "golden"
DATA = Path(__file__).parents[1] / "data"
READ_BOTH = ["info", "ls", "stats", "verify", "recover"]
ROCKETMQ = ["plain", "propcrc", "lmq", "batchcq", "cqext", "broker-live", "broker-ext", "crash-torn", "crash-lost-cq"]
RABBITMQ = ["rabbitmq-clean", "rabbitmq-v2"]
PLAIN = [
    "stats --by hour STORE", "dump STORE --limit 4", "dump STORE --topic UnicodeTopic --limit 2", "get STORE --at 0",
    "get STORE --topic HotTopic --queue 0 --offset 3 --count 2", "query STORE HotTopic hot-1", "tail STORE -n 3",
    "export STORE --topic V6Topic", "export STORE --to csv --topic V6Topic", "diff STORE STORE", "offsets show STORE",
    "report STORE", "queryMsgByOffset STORE -t HotTopic -i 0 -o 3",
]  # fmt: skip
LIVE = [
    "offsets show STORE",
    "dump STORE --limit 2",
    "tail STORE -n 2",
    "report STORE",
    "consumerProgress STORE",
    "transactions STORE",
]
RABBIT = [
    "dump STORE --queue q.mixed --limit 3", "get STORE --queue q.mixed --offset 18 --count 2",
    "export STORE --queue q.mixed --from-offset 5015", "diff STORE STORE", "report STORE",
    "import STORE --to NEW --small", "recover STORE --apply", "tail STORE --queue q.ttl -n 1",
    "query STORE q.ttl q.ttl --max 2",
    "put STORE q.mixed body --drop-transient --property message_id=m --property region=eu", "put STORE q.mixed body",
    "rebuild STORE --apply", "rebuild STORE --drop-transient --apply", "rebuild STORE --plan",
]  # fmt: skip
WRITING = {
    "crash-torn": ["recover STORE --apply", "rebuild STORE --apply", "rebuild STORE --plan"],
    "crash-lost-cq": ["recover STORE --apply", "rebuild STORE consumequeue --apply"],
    "broker-live": [
        "offsets reset STORE --group G_tag --topic LiveFilter --to earliest --apply",
        "offsets reset STORE --group G_tag --topic LiveFilter --to earliest --plan",
        "purge STORE LiveFilter",
        "requeue STORE G_tag",
        "topic delete STORE LiveFilter",
        "group delete STORE G_tag",
    ],
    "plain": [
        "promote STORE",
        "promote STORE --apply",
        "put STORE HotTopic body --key k",
        "copy STORE --to NEW --topic HotTopic",
        "import STORE --to-rabbit NEW",
    ],
}
WITHOUT_JSON = ("export", "report")
ALONE = ["decode-id 0A01020300002A9F0000000000000000", "completion bash", "--help", "doctor", "bench NEW --messages 1000"]


def cases() -> list[str]:
    """Return all `fixture: command` cases; each runs in text form, and with --json if the command has it."""
    found = [f"{name}: {command} STORE" for name in ROCKETMQ + RABBITMQ for command in READ_BOTH]
    found += [f"plain: {line}" for line in PLAIN] + [f"broker-live: {line}" for line in LIVE]
    found += [f"{name}: {line}" for name in RABBITMQ for line in RABBIT]
    found += [f"{name}: {line}" for name, lines in WRITING.items() for line in lines]
    found += [f"none: {line}" for line in ALONE]
    both = [[case] if _is_plain_only(case) else [case, f"{case} --json"] for case in found]
    return [case for pair in both for case in pair]


def _is_plain_only(case: str) -> bool:
    command = case.split(": ")[1].split()[0]
    return command in (*WITHOUT_JSON, "completion", "--help")


def file_of(case: str) -> Path:
    """Return the file of a case, such as `plain/dump-limit-4-json.txt`."""
    name, line = case.split(": ", 1)
    words = re.sub(r"[^A-Za-z0-9.]+", "-", line.replace("STORE", "").replace("NEW", "")).strip("-")
    return GOLDEN / name / f"{words}.txt"


def writes(case: str) -> bool:
    """Return whether a case needs its own copy of the folder."""
    return any(word in case for word in ("--apply", "put ", "NEW"))


def answer(case: str, folder: Path, new: Path, runner: Callable[..., Ran] = run) -> str:
    """Return exit code and both streams, with whatever differs between runs replaced by a name."""
    line = case.split(": ", 1)[1]
    words = [{"STORE": str(folder), "NEW": str(new)}.get(word, word) for word in line.split()]
    ran = runner(*words)
    command = line.split()[0]
    out = _OF_COMMAND.get(command, lambda text: text)(ran.out)
    text = f"exit {ran.code}\n--- stdout\n{out}--- stderr\n{ran.talk}"
    text = text.replace(str(new), "NEW").replace(str(folder), "STORE")
    if "--json" not in case:
        text = re.sub(r"(?<=\S)  +", "  ", text)  # columns are as wide as the longest path
    return re.sub(r"recover-\d[\w.-]*", "recover-TIME", text)


def _page(text: str) -> str:
    """Return the words of a report, without its style and its charts, which a library draws."""
    text = re.sub(r"<style>.*?</style>|<svg.*?</svg>|<wbr>", "", text, flags=re.DOTALL)
    text = re.sub(r"as it was on [\w:.-]+", "as it was on TIME", text)
    lines = (" ".join(line.split()) for line in re.sub(r"<[^>]*>", "\n", text).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def _keys(text: str) -> str:
    """Return the names of an answer whose values depend on the machine."""
    text = re.sub(r"; \w+ kernels", "; BUILD kernels", text)
    text = re.sub(r'(?<=[:,\[])(?:"[^"]*"|-?[\d.e+-]+|true|false|null)(?=[,}\]])|(?<=  )[^ ].*', "VALUE", text)
    return re.sub(r"(\{[^{}]*\}),(?:\1,?)+", r"\1", text)  # one for all rows of one kind


def _put(text: str) -> str:
    """Replace the time of a put and random ids."""
    text = re.sub(r'(msg_id(?:":"|  +))\w{32}', r"\1RANDOM", text)
    return re.sub(r'(store_timestamp_ms(?:":|  +))\d+', r"\1TIME", text)


def _ages(text: str) -> str:
    """Replace what grows with time."""
    return re.sub(r'("age_s":)\d+|(?<=  )(?:\d+ days?, )?\d+:\d\d:\d\d(?=  )', lambda found: f"{found[1] or ''}AGE", text)


def _first_lines(text: str) -> str:
    """Return the first line of text that a library writes."""
    return "".join(text.splitlines(keepends=True)[:1])


_OF_COMMAND: dict[str, Callable[[str], str]] = {
    "report": _page, "doctor": _keys, "bench": _keys, "put": _put, "completion": _first_lines, "--help": _first_lines,
    "transactions": _ages,
}  # fmt: skip


def unpack(name: str, above: Path) -> Path:
    """Return a copy of a fixture's folder."""
    if name == "none":
        return above
    archives.unpack(DATA / f"{name}.tar.xz", above)
    return next(path for path in (above / name / "store", above / "vhost", above / name / "vhost") if path.is_dir())


def main(arguments: list[str]) -> int:
    """Show what changed, and write it with `--write`."""
    changed = 0
    logging.getLogger().addHandler(logging.NullHandler())  # as under pytest: no line of the library's own log
    for case in cases():
        with tempfile.TemporaryDirectory() as above:
            found = answer(case, unpack(case.split(": ")[0], Path(above)), Path(above) / "new")
        path = file_of(case)
        kept = path.read_text() if path.exists() else ""
        if found != kept:
            changed += 1
            sys.stdout.writelines(difflib.unified_diff(kept.splitlines(True), found.splitlines(True), str(path), case, n=1))
            if "--write" in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(found)
    known = {file_of(case) for case in cases()}
    for path in set(GOLDEN.rglob("*.txt")) - known:
        print(f"nobody's: {path}")
        if "--write" in arguments:
            path.unlink()
    shutil.rmtree(GOLDEN / "none" / "none", ignore_errors=True)
    return changed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
