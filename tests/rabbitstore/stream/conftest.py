"""Streams of the real server, unpacked once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from rabbitstore.stream import StreamFolder, stream_folders
from rabbitstore.stream.tracking import Tracking, apply_chunk
from tests.archives import unpack
from tests.rabbitstore.conftest import DATA

KINDS = ("rabbitmq4-clean", "rabbitmq4-killed", "rabbitmq4-streams", "rabbitmq43-clean")


def tracking_of(stream: StreamFolder) -> Tracking:
    """Return the offsets of consumers and the sequences of publishers, which each segment begins with anew."""
    state = Tracking()
    for segment, chunk in stream.chunks():
        apply_chunk(state, segment.view, chunk, segment.file)
    return state


class Source:
    """A node's folder with the server's own account of it."""

    def __init__(self, folder: Path) -> None:
        self.node = folder / "node"
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.published = {f"m{row['n']}": row for row in self.manifest["published"]}

    def stream(self, name: str, *, is_named: bool = True) -> StreamFolder:
        """Return a new reader of the stream; the folder's name has `_` in place of dots."""
        marked = f"__{name.replace('.', '_')}_"
        found = next(one for one in stream_folders(str(self.node)) if one.folder.startswith(marked))
        return StreamFolder(found.path, queue=name) if is_named else found

    def names(self) -> list[str]:
        return [name for name, row in self.manifest["queues"].items() if row["type"] == "stream"]

    def body(self, row: dict[str, str]) -> str:
        """Return the SHA-256 of a delivered body: by the fixtures' rule unless the account has it."""
        sent = self.published[row["message_id"]]
        digest = hashlib.sha256(f"{sent['tag']}:{sent['n']}".encode()).hexdigest()
        body = (digest * (sent["size"] // len(digest) + 1))[: sent["size"]].encode()
        return row.get("sha256", hashlib.sha256(body).hexdigest())


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        unpack(DATA / f"{kind}.tar.xz", folder)
        found[kind] = Source(folder)
    return found


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, sources: dict[str, Source]) -> Source:
    return sources[request.param]
