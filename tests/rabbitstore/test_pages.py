"""The format pages agree with the code."""

import re
from pathlib import Path

from rabbitstore.format import layout, properties
from rabbitstore.repair import check, recover

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
    assert {kind for kind, _ in recover._STEP_OF} <= kinds
