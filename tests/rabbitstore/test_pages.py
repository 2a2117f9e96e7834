"""The format pages agree with the code."""

import re
import struct
from pathlib import Path

import pytest

from rabbitstore.format import layout, properties
from rabbitstore.repair import check, classic
from rabbitstore.stream import layout as stream_layout

PAGES = Path(__file__).resolve().parents[2] / "docs" / "formats"


def page(name):
    return (PAGES / f"rabbitmq-{name}.md").read_text()


def test_sizes_of_the_entries():
    """The entry sizes on the index pages are those of `layout`."""
    text = page("index")
    assert f"publish, then the publish body | {layout.SEGMENT_HEAD.size + layout.PUBLISH_BODY.size} + embedded" in text
    assert f"publish body | {layout.JOURNAL_PUBLISH_SIZE} + embedded" in text
    assert f"after {layout.JOURNAL_ENTRIES_MAX} entries" in text and f"below {layout.EMBED_BELOW} bytes" in text
    text = page("index-v2")
    assert f"a head of {layout.V2_HEAD_SIZE} bytes" in text
    assert f"{layout.V2_SEGMENT_ENTRIES} entries of {layout.V2_ENTRY.size} bytes" in text


def test_the_record_table():
    """The offsets on the record page are those of `layout`."""
    rows = re.findall(r"^    (\d+) +(\d+|size - 16) +(\w+)", page("rdq"), re.MULTILINE)
    assert rows == [("0", "8", "size"), ("8", "16", "msg_id"), (str(layout.RECORD_HEAD.size), "size - 16", "term")]
    assert f"total_size = size + {layout.RECORD_OVERHEAD}" in page("rdq")


def test_the_property_table():
    """Bits and order on the term page are those of `properties`."""
    cells = re.findall(r"\| (\d+) \| (\w+) \|", page("terms"))
    by_bit = sorted(((int(bit), name) for bit, name in cells), reverse=True)
    assert by_bit == [(15 - index, name) for index, (name, _) in enumerate(properties.FIELDS)]


def test_every_kind_of_damage_is_on_its_page():
    """The page lists no other kinds than the code."""
    sources = "".join(path.read_text() for path in Path(check.__file__).parents[1].rglob("*.py"))
    kinds = set(re.findall(r"`(\w+)`", re.sub(r"^(?!\|).*$", "", page("damage"), flags=re.MULTILINE)))
    kinds -= {"queue_name", "recover", "N"}
    assert all(f'"{kind}"' in sources for kind in kinds)
    assert {kind for kind, _ in classic.STEP_OF} <= kinds


def _damage(name):
    return page(name).partition("\n## Damage\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("package", ["stream", "quorum"])
def test_every_kind_of_damage_of_the_other_queues_is_on_its_page(package):
    """The pages of streams and quorum queues list the kinds that the code reports, and no others."""
    name = {"stream": "streams", "quorum": "quorum"}[package]
    listed = set(re.findall(r"^\| `(\w+)`(?: \(note\))? \|", _damage(name), re.MULTILINE))
    inside = Path(check.__file__).parents[1]
    files = [*(inside / package).glob("*.py"), *([inside / "declared.py"] if package == "quorum" else [])]
    sources = "".join(path.read_text() for path in files)
    prefixes = "applied|bad|torn|lost|missing|wal|index|undeclared|unfinished|unreadable|unregistered"
    words = set(re.findall(rf'"((?:{prefixes})_[a-z_]+)"', sources))
    assert listed == words
    assert all(f'"{kind}"' in sources for kind in listed)


def test_the_tables_of_streams():
    """Sizes and offsets on the page are those of the layout."""
    text = page("streams")
    rows = [
        int(at)
        for at in re.findall(r"^\| (\d+) \|", text.partition("## Segment")[2].partition("## Sub-batches")[0], re.MULTILINE)
    ]
    assert rows == [0, 1, 2, 4, 8, 16, 24, 32, 36, 44, stream_layout.CHUNK_HEAD.size]
    assert f"{stream_layout.UNPACKED_MAX >> 20} MiB" in text
    assert struct.calcsize(">BHII") == stream_layout.SUB_BATCH.size == 11 and stream_layout.INDEX_RECORD.size == 29
