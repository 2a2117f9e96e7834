"""The crash images of a `ForgettingDisk`: which exist, and how they are chosen.

The model is stricter than common file systems, so that what survives it survives on all of them:

1. Since the last sync of its file each page of 4096 bytes is old, new or any version in between, independently of the others.
2. A page may be torn: each sector of 512 bytes may have another version.
3. A file created, renamed or deleted since the last sync of its folder may be missing, have the old name, have both, or be
   back.  A size may be lost while the pages survive, and the reverse: then the rest is zeros.
4. After a failed sync pages are clean: old or new, and a later sync does not write them.

The *prefix* model is weaker: all changes up to a moment survive, in the order they were made, and none after it.

Each open question of a disk is a page, a size or a change of names; an image is one answer to each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from ..disk import SECTOR_SIZE
from .forgetting_nodes import PAGE_SIZE, SECTORS, Change, FileNode, FolderNode, QuestionKind

Answer = int | tuple[int, ...]  # the index of a version, or one for each sector of a page
RENAME_ANSWERS = 3  # undone, done, both names


class Question(NamedTuple):
    """One thing that a crash decides.  `at`: a page's first byte, -1 for the size; `node` is None for a change of names."""

    options: int
    numbers: tuple[int, ...]  # of the change that made each option
    node: FileNode | None
    at: int
    change: Change | None

    @property
    def is_page(self) -> bool:
        """Whether this is about a page, which may be torn."""
        return self.change is None and self.at >= 0


class Image(NamedTuple):
    """What a crash leaves: every file by its path, and its time; the folders, parents first."""

    files: dict[str, bytes]
    folders: tuple[str, ...]
    times_ms: dict[str, int]

    @property
    def key(self) -> int:
        """A hash of the content, valid within one process."""
        return hash((self.folders, *self.files.items()))


def questions(nodes: list[FileNode], changes: list[Change]) -> list[Question]:
    """Return the questions of dirty files and pending changes, in a fixed order."""
    found = []
    for change in changes:
        count = RENAME_ANSWERS if change.kind is QuestionKind.RENAME else 2
        found.append(Question(count, (0, change.number, change.number)[:count], None, -1, change))
    for node in nodes:
        if node.sizes:
            sizes = node.size_versions()
            found.append(Question(len(sizes), tuple(version.number for version in sizes), node, -1, None))
        for at in sorted({*node.pages, *node.stuck}):
            pages = node.versions(at)
            found.append(Question(len(pages), tuple(version.number for version in pages), node, at, None))
    return found


def build(root: FolderNode, open_questions: list[Question], answers: list[Answer]) -> Image:
    """Return the image for these answers."""
    names: dict[FolderNode, dict[str, FileNode | FolderNode]] = {}
    contents: dict[FileNode, dict[int, Answer]] = {}
    for question, answer in zip(open_questions, answers, strict=True):
        if question.change is not None:
            assert isinstance(answer, int), "names are not torn"
            _apply(question.change, answer, names)
        else:
            assert question.node is not None, "of a file or of a name"
            contents.setdefault(question.node, {})[question.at] = answer
    image = Image({}, (), {})
    folders: list[str] = []
    _walk(root, "", names, contents, image, folders)
    return image._replace(folders=tuple(folders))


def _apply(change: Change, answer: int, names: dict[FolderNode, dict[str, FileNode | FolderNode]]) -> None:
    """Apply one change of names according to its answer."""
    if answer == 0:
        return
    here = _names_of(change.folder, names)
    if change.kind is QuestionKind.LINK:
        here[change.name] = change.node
    elif change.kind is QuestionKind.UNLINK:
        if here.get(change.name) is change.node:
            del here[change.name]
    else:
        _names_of(change.to_folder, names)[change.to_name] = change.node
        if answer == 1 and here.get(change.name) is change.node:
            del here[change.name]


def _names_of(
    folder: FolderNode, names: dict[FolderNode, dict[str, FileNode | FolderNode]]
) -> dict[str, FileNode | FolderNode]:
    """Return the names of a folder in the image; initially its durable names."""
    found = names.get(folder)
    if found is None:
        found = names[folder] = dict(folder.durable)
    return found


def _walk(
    folder: FolderNode,
    path: str,
    names: dict[FolderNode, dict[str, FileNode | FolderNode]],
    contents: dict[FileNode, dict[int, Answer]],
    image: Image,
    folders: list[str],
) -> None:
    """Add every file below a folder to the image, in the order of names."""
    here = names.get(folder, folder.durable)
    for name in sorted(here):
        node, location = here[name], f"{path}/{name}"
        if isinstance(node, FolderNode):
            folders.append(location)
            _walk(node, location, names, contents, image, folders)
        else:
            image.files[location] = content(node, contents.get(node, {}))
            image.times_ms[location] = node.modified_ms


def content(node: FileNode, answers: dict[int, Answer]) -> bytes:
    """Return the bytes of a file for these answers."""
    if not answers:
        return node.durable
    size_answer = answers.get(-1, 0)
    assert isinstance(size_answer, int), "a size is not torn"
    size = node.size_versions()[size_answer].size_bytes if node.sizes else len(node.durable)
    data = bytearray(node.durable[:size].ljust(size, b"\0"))
    for at, answer in answers.items():
        if 0 <= at < size:
            data[at : at + PAGE_SIZE] = _page(node, at, answer)[: size - at]
    return bytes(data)


def _page(node: FileNode, at: int, answer: Answer) -> bytes:
    """Return one page, whole or torn."""
    versions = node.versions(at)
    if isinstance(answer, int):
        return versions[answer].data
    parts = [
        versions[location].data[number * SECTOR_SIZE : (number + 1) * SECTOR_SIZE] for number, location in enumerate(answer)
    ]
    return b"".join(parts)


# Choices of answers


def everything(open_questions: list[Question], is_kept: bool) -> list[Answer]:
    """Return answers that keep all changes, or lose all."""
    return [_newest(question) if is_kept else 0 for question in open_questions]


def _newest(question: Question) -> int:
    """Return the answer of the live disk; a rename is done."""
    is_rename = question.change is not None and question.change.kind is QuestionKind.RENAME
    return 1 if is_rename else question.options - 1


def one_apart(open_questions: list[Question]) -> Iterator[list[Answer]]:
    """Yield answers in which one question differs from all others: each change lost alone, each change kept alone."""
    for base in (everything(open_questions, True), everything(open_questions, False)):
        for location, question in enumerate(open_questions):
            for answer in range(question.options):
                if answer != base[location]:
                    yield [*base[:location], answer, *base[location + 1 :]]


def prefixes(open_questions: list[Question]) -> Iterator[list[Answer]]:
    """Yield the answers of the prefix model, one for each moment since the oldest change."""
    moments = sorted({number for question in open_questions for number in question.numbers})
    for moment in moments:
        yield [
            max((location for location, number in enumerate(question.numbers[:2] if _is_rename(question) else question.numbers)
                 if number <= moment), default=0)
            for question in open_questions
        ]  # fmt: skip


def _is_rename(question: Question) -> bool:
    return question.change is not None and question.change.kind is QuestionKind.RENAME


def by_chance(open_questions: list[Question], random: Random, *, torn: bool) -> list[Answer]:
    """Answer each question at random; with `torn`, tear half of the pages."""
    answers: list[Answer] = []
    for question in open_questions:
        if torn and question.is_page and random.random() < 0.5:
            answers.append(tuple(random.randrange(question.options) for _ in range(SECTORS)))
        else:
            answers.append(random.randrange(question.options))
    return answers


def subsets(open_questions: list[Question], limit: int) -> Iterator[list[Answer]] | None:
    """Yield each combination of oldest and newest of each page and size, and of all outcomes of each change of names.

    Return None if there are more than `limit` combinations.
    """
    choices = [range(question.options) if question.change else sorted({0, question.options - 1}) for question in open_questions]
    count = 1
    for options in choices:
        count *= len(options)
    return (list(answers) for answers in itertools.product(*choices)) if count <= limit else None
