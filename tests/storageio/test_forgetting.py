"""`ForgettingDisk`: what a crash may and may not lose."""

from __future__ import annotations

from random import Random

import pytest

from storageio import DiskError, Mode
from storageio.testing import ForgettingDisk, ShortWrite

PAGE = 4096


def make(disk: ForgettingDisk, path: str, data: bytes, *, synced: bool = True) -> None:
    file = disk.open(path, Mode.CREATE)
    file.write(0, data)
    if synced:
        file.sync()
        disk.sync_folder(path.rpartition("/")[0] or "/")
    file.close()


def outcomes(disk: ForgettingDisk, path: str) -> set[bytes | None]:
    """Return the contents that a crash at this moment may leave of a file, None for a missing file."""
    return {image.files.get(path) for image in disk.images(Random(1), 200)}


def test_what_was_synced_survives_every_crash() -> None:
    """The file's sync saves its bytes, the folder's sync its name."""
    disk = ForgettingDisk()
    make(disk, "/a", b"x" * 5000)
    assert outcomes(disk, "/a") == {b"x" * 5000}


def test_a_new_file_may_be_gone_empty_or_zeros() -> None:
    """Name, size and pages are lost independently."""
    disk = ForgettingDisk()
    make(disk, "/a", b"x" * 100, synced=False)
    assert outcomes(disk, "/a") == {None, b"", bytes(100), b"x" * 100}


def test_pages_are_lost_in_any_order_and_in_any_version() -> None:
    """The second page may survive without the first, and so may a version that was overwritten since."""
    disk = ForgettingDisk()
    make(disk, "/a", bytes(2 * PAGE))
    file = disk.open("/a", Mode.WRITE)
    file.write(0, b"1" * PAGE)
    file.write(0, b"2" * PAGE)
    file.write(PAGE, b"3" * PAGE)
    found = {(data[0:1], data[PAGE : PAGE + 1]) for data in outcomes(disk, "/a") if data}
    assert found == {(old, new) for old in (b"\0", b"1", b"2") for new in (b"\0", b"3")}


def test_a_page_is_torn_at_sectors_only() -> None:
    """Each of its 512 bytes is all old or all new."""
    disk = ForgettingDisk()
    make(disk, "/a", bytes(PAGE))
    disk.open("/a", Mode.WRITE).write(0, b"n" * PAGE)
    torn = [data for data in outcomes(disk, "/a") if data and len(set(data)) == 2]
    assert len(torn) > 10
    assert all(len(set(data[at : at + 512])) == 1 for data in torn for at in range(0, PAGE, 512))


def test_stores_through_a_map_are_seen_and_lost() -> None:
    """Stores make no call; the next call, or `examine`, records them."""
    disk = ForgettingDisk()
    make(disk, "/a", bytes(PAGE))
    view = disk.open("/a", Mode.WRITE).map(PAGE, writable=True).view
    view[5] = 7
    disk.examine()
    view[5] = 9
    assert {data[5] for data in outcomes(disk, "/a") if data} == {0, 7, 9}


def test_sync_of_one_file_does_not_sync_another() -> None:
    """Pages of different files are independent."""
    disk = ForgettingDisk()
    make(disk, "/a", b"old")
    make(disk, "/b", b"old")
    for path in ("/a", "/b"):
        disk.open(path, Mode.WRITE).write(0, b"new")
    disk.open("/b", Mode.WRITE).sync()
    assert outcomes(disk, "/a") == {b"old", b"new"}
    assert outcomes(disk, "/b") == {b"new"}


def test_a_rename_is_done_undone_or_seen_under_both_names_and_never_loses_the_file() -> None:
    """This holds for a file whose name was durable before."""
    disk = ForgettingDisk()
    make(disk, "/a", b"new")
    make(disk, "/b", b"old")
    disk.rename("/a", "/b")
    found = {(image.files.get("/a"), image.files.get("/b")) for image in disk.images(Random(1), 50)}
    assert found == {(b"new", b"old"), (None, b"new"), (b"new", b"new")}
    disk.sync_folder("/")
    assert outcomes(disk, "/b") == {b"new"}


def test_a_deleted_file_may_come_back_until_its_folder_is_synced() -> None:
    """After the sync of its folder it cannot come back."""
    disk = ForgettingDisk()
    make(disk, "/a", b"x")
    disk.delete("/a")
    assert outcomes(disk, "/a") == {None, b"x"}
    disk.sync_folder("/")
    assert outcomes(disk, "/a") == {None}


def test_a_truncation_may_be_lost() -> None:
    """If it is, all old bytes are back; data written after a truncation may lie beside zeros or old bytes."""
    disk = ForgettingDisk()
    make(disk, "/a", b"x" * 2000)
    file = disk.open("/a", Mode.WRITE)
    file.truncate(0)
    assert outcomes(disk, "/a") == {b"x" * 2000, b""}
    file.write(0, b"new")
    assert {b"new", bytes(3), b"xxx", b""} < outcomes(disk, "/a")


def test_second_sync_after_a_failed_one_guarantees_nothing() -> None:
    """The pages count as clean and may stay old forever; a page that was written again is synced again."""
    disk = ForgettingDisk()
    make(disk, "/a", bytes(2 * PAGE))
    file = disk.open("/a", Mode.WRITE)
    file.write(0, b"1" * 2 * PAGE)

    def refuse(operation: str, path: str) -> None:
        if operation == "sync":
            raise DiskError(operation, path, 5, "no")

    disk.refuse = refuse
    with pytest.raises(DiskError):
        file.sync()
    disk.refuse = None
    file.write(PAGE, b"2" * PAGE)
    file.sync()
    assert {(data[0:1], data[PAGE : PAGE + 1]) for data in outcomes(disk, "/a") if data} == {(b"\0", b"2"), (b"1", b"2")}


def test_the_weaker_model_keeps_the_order_of_the_changes() -> None:
    """In a prefix a later change never survives without an earlier one; in the strict model it may."""
    from storageio.testing.forgetting_images import build, prefixes

    disk = ForgettingDisk()
    make(disk, "/a", b"old")
    make(disk, "/b", b"old")
    disk.open("/a", Mode.WRITE).write(0, b"new")
    disk.open("/b", Mode.WRITE).write(0, b"new")
    requested = disk.questions()
    found = {
        (image.files["/a"], image.files["/b"]) for image in (build(disk._root, requested, each) for each in prefixes(requested))
    }
    assert found == {(b"old", b"old"), (b"new", b"old"), (b"new", b"new")}


def test_every_combination_is_given_where_they_are_few() -> None:
    """Ten pages, each old or new, give all 1024 images."""
    disk = ForgettingDisk()
    make(disk, "/a", bytes(10 * PAGE))
    disk.open("/a", Mode.WRITE).write(0, b"n" * 10 * PAGE)
    images = {image.files["/a"][::PAGE] for image in disk.images(Random(1), 0, limit=1 << 10)}
    assert len(images) == 1 << 10


def test_the_same_seed_gives_the_same_images() -> None:
    """Two disks with the same calls yield the same images."""

    def images() -> list[dict[str, bytes]]:
        disk = ForgettingDisk()
        make(disk, "/a", b"x" * 9000, synced=False)
        return [image.files for image in disk.images(Random(7), 50)]

    assert images() == images()


def test_a_short_write_leaves_its_first_half() -> None:
    """The write raises `ShortWrite`."""
    disk = ForgettingDisk()
    make(disk, "/a", b"")

    def refuse(operation: str, path: str) -> None:
        if operation == "write":
            raise ShortWrite(operation, path, 28, "full")

    disk.refuse = refuse
    with pytest.raises(ShortWrite):
        disk.open("/a", Mode.WRITE).write(0, b"abcd")
    disk.refuse = None
    assert disk.open("/a", Mode.READ).read(0, 9) == b"ab"


def test_a_rename_between_folders_is_safe_with_the_sync_of_either() -> None:
    """After a sync of the source folder only the new name is left; after one of the target folder the old one may stay."""
    for synced, left in (("/f", {(None, b"x")}), ("/g", {(None, b"x"), (b"x", b"x")})):
        disk = ForgettingDisk()
        disk.make_folder("/f")
        disk.make_folder("/g")
        make(disk, "/f/a", b"x")
        disk.rename("/f/a", "/g/a")
        disk.sync_folder(synced)
        found = {(image.files.get("/f/a"), image.files.get("/g/a")) for image in disk.images(Random(1), 20)}
        assert found == left
