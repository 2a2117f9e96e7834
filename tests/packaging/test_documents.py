"""Every program and every command on the pages runs; no page is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging.pages import DOCS, ROOT, all_pages, blocks, needs_spark, run_page

RUN, SHOWN = {"python", "console"}, {"properties", "ini"}  # languages; configuration files are only shown
IS_RUNNABLE = re.compile(r"^(    |\t)(\$ |brokerstore |python |pip |import |from \w+ import |\w+ = spark)", re.MULTILINE)


QUICK = ("README", "embed", "logging", "retention", "tutorial")  # the other pages run in the deep tier
PAGES = [
    pytest.param(page, id=page.stem, marks=() if page.stem in QUICK or not blocks(page) else pytest.mark.deep)
    for page in all_pages()
    if not needs_spark(page)
]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, with the exit codes that it states."""
    run_page(page, tmp_path, monkeypatch)


def test_no_page_has_a_block_that_does_not_run() -> None:
    """Programs and commands appear only on pages that are run, in fenced blocks of a language that is run."""
    run = all_pages()
    for page in sorted(DOCS.rglob("*.md")):
        source = page.read_text()
        languages = set(re.findall(r'^ *```(\w*)(?: title="[^"\n]+")?$', source, re.MULTILINE)[::2])
        assert languages <= (RUN | SHOWN if page in run else set()), page
        assert len(blocks(page)) == len(re.findall(r"^ *```(?:python|console)", source, re.MULTILINE)), page
        outside = re.sub(r"^```.*?^```$", "", source, flags=re.MULTILINE | re.DOTALL)
        assert not IS_RUNNABLE.search(outside), page


def test_every_page_is_in_the_table_of_contents() -> None:
    """Each page is in the navigation of the site, or in the list of pages outside of it."""
    contents = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if page not in contents] == []
