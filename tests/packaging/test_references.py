"""References in code and documents name a page and a heading that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(marker.parent.name for marker in ROOT.glob("*/py.typed"))
OTHERS = ("tests", "scripts", "bench", "fuzz", "lab", "examples", "docs")
ABSOLUTE = re.compile(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?")
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([\w-]+))?\)")
FILE = re.compile(rf"`((?:{'|'.join((*PACKAGES, *OTHERS[:-1]))})/[\w/]+\.py)\b")
OLD_NUMBER = re.compile(r"\b[Ss]ections? \d|\brows? [A-Z]\d")


def sources(*folders: str, ends: tuple[str, ...]) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in ends)


@cache
def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"[^\w\s-]", "", title.lower()) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {title.strip().replace(" ", "-") for title in titles}


def missing(page: Path, heading: str) -> bool:
    return not page.exists() or (bool(heading) and page.suffix == ".md" and heading not in headings(page))


def test_every_reference_to_a_page_resolves() -> None:
    """Both the page and its heading exist, whether code or a document refers to it."""
    wrong = []
    for path in [*sources(*PACKAGES, *OTHERS, ends=(".py", ".pxd", ".md")), *ROOT.glob("*.md")]:
        text = path.read_text()
        named = [(ROOT / page, heading) for page, heading in ABSOLUTE.findall(text)]
        if path.suffix == ".md":
            named += [((path.parent / page) if page else path, heading) for page, heading in LINK.findall(text)]
        wrong += [f"{path.relative_to(ROOT)}: {page.name}#{heading}" for page, heading in named if missing(page, heading)]
    assert wrong == []


def test_every_file_that_a_document_names_exists() -> None:
    """Pages about the code follow its moves; reports of past runs may name files as they were."""
    pages = [page for page in [*sources("docs", ends=(".md",)), *ROOT.glob("*.md")] if "evidence" not in page.parts]
    wrong = [f"{page.name}: {file}" for page in pages for file in FILE.findall(page.read_text()) if not (ROOT / file).exists()]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_cites_pages_outside_the_repository(package: str) -> None:
    """Numbers of sections and rows belong to specifications that readers do not have."""
    found = [path.name for path in sources(package, ends=(".py", ".pxd")) if OLD_NUMBER.search(path.read_text())]
    assert found == []
