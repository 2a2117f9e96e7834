"""Reject banned wording in docstrings, comments, names and the product's messages, and docstrings that add nothing.

`python scripts/prose.py` ends with 1 where it finds something.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(marker.parent.name for marker in ROOT.glob("*/py.typed"))
OTHERS = ("bench", "examples", "fuzz", "lab", "scripts", "tests")
WORDS_MIN = 4
PROGRAMS = (
    "program|process|thread|writer|reader|consumer|producer|broker|server|dispatcher|engine|store|tool|kernel|housekeeper"
)
BANNED = {
    r"\b(is|are|was|were) said\b": "name the actor: reports, logs, prints",
    r"\b(left out )?unsaid\b": "silently",
    r"\bbeyond use\b": "unreadable, damaged",
    r"\bat once\b": "immediately, or in one call",
    r"\bfor ever\b": "forever, or leave it out",
    rf"\b({PROGRAMS})s?,? who\b": "a program is a which or a that",
    r"\b(leave|in|end) doubt\b|\bdoubts?\b": "sync failure",
    r"\bmend(s|ed|ing)?\b": "repair",
    r"\bswallow(s|ed|ing)?\b": "lose, hide",
    r"\bthe house\b": "the packages",
    r"\blight queues?\b": "LMQ",
    r"\bnotes? of ours\b": "hint, sidecar file",
    r"\b[Ss]ections? \d": "docs/formats/<page>.md#<heading>",
    r"\b[Rr]ows? [A-Z]\d": "docs/formats/<page>.md#<heading>",
}
NAMES = {
    "place places placed": "position, location, path",
    "wanted want wants": "expected, requested, selected",
    "asked ask asks": "requested, invoke",
    "room rooms": "capacity, space",
    "told tells": "reported",
    "say says said unsaid": "print, report",
    "look looks looked": "examine, poll, read",
    "truth truths": "expected, manifest",
    "hurt hurts": "damage",
    "odd": "unusual, differing",
    "mend mends mended mending doubt doubts": "repair, sync failure",
    "him his who whose thing things stuff": "what it is",
}
BANNED_NAMES = {word: instead for words, instead in NAMES.items() for word in words.split()}
PATTERNS = [(re.compile(pattern), instead) for pattern, instead in BANNED.items()]


def checked_files() -> list[Path]:
    """Return the sources and declarations of all packages, and the Python files of the other folders."""
    found = [path for name in (*PACKAGES, *OTHERS) for path in sorted((ROOT / name).rglob("*"))]
    return [path for path in found if path.suffix in (".py", ".pxd")]


def comments(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every comment."""
    if path.suffix == ".pxd":  # Cython's own syntax
        yield from ((number, line.partition("#")[2]) for number, line in enumerate(source.splitlines(), 1))
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring."""
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def strings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every string of more than one word, docstrings and messages alike."""
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and each name that a module defines: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words_of(name: str) -> list[str]:
    """Split `snake_case` and `CamelCase` into words in lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def findings(path: Path) -> list[str]:
    """Return what is wrong in a file, a line each."""
    source = path.read_text()
    texts = list(comments(path, source))
    found = []
    if path.suffix == ".py":
        module = ast.parse(source)
        texts += strings(module) if path.relative_to(ROOT).parts[0] in PACKAGES else docstrings(module)
        for line, text in docstrings(module):
            if len(text.split()) < WORDS_MIN:
                found.append((line, f"a docstring of fewer than {WORDS_MIN} words: {text!r}"))
            elif text.startswith("Of "):
                found.append((line, "a docstring that starts with 'Of': start with a verb"))
        for line, name in names(module):
            wrong = [word for word in words_of(name) if word in BANNED_NAMES]
            found += [(line, f"the name {name}: {word!r} is {BANNED_NAMES[word]}") for word in wrong]
    for line, text in texts:
        found += [(line, f"{match[0]!r}: write {instead}") for known, instead in PATTERNS if (match := known.search(text))]
    return [f"{path.relative_to(ROOT)}:{line}: {what}" for line, what in sorted(found)]


def shared_class_names(files: list[Path]) -> list[str]:
    """Return a line for each class of a package whose name another class of a package has, too."""
    found: dict[str, list[str]] = {}
    for path in files:
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return [f"{', '.join(where)}: more than one class {name}" for name, where in sorted(found.items()) if len(where) > 1]


def main() -> int:
    """Check all files and print the findings."""
    files = checked_files()
    wrong = [line for path in files for line in findings(path)] + shared_class_names(files)
    print("\n".join(wrong) or f"prose: {len(files)} files")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
