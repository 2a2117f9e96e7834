"""The tree of Khepri, and the functions of transactions: unknown ones are named, damaged ones end."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rabbitstore import read_definitions
from rabbitstore.format.terms import FALSE, TRUE, Atom, Opaque, TermKey, encode, key_term, map_key
from rabbitstore.format.terms_cy import decode
from rabbitstore.khepri import execution, functions, store
from rabbitstore.khepri.beam import read_module
from rabbitstore.khepri.transaction import TransactionRunner
from rabbitstore.khepri.tree import NO_PAYLOAD, RefusedChangeError, Tree, keep_while_of
from rabbitstore.quorum.folder import quorum_nodes
from storageio import StoreCorrupt, UnsupportedFormat
from tests.archives import unpack

from .conftest import DATA

A, B, C = Atom("a"), b"b", b"c"
ANY = (Atom("if_name_matches"), Atom("any"), Atom("undefined"))
IS_NEW = (Atom("if_node_exists"), FALSE)


def payload(value: Any) -> Any:
    return Atom("p_data"), value


def contents(tree: Tree) -> dict[Any, Any]:
    """Return what every node has, with its version."""
    return {path: (node.payload, node.version) for path, node in tree.walk()}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a 4.3 node whose log has every transaction since its first start."""
    above = tmp_path_factory.mktemp("khepri")
    unpack(DATA / "definitions" / "4.3.6.tar.xz", above)
    shutil.move(above / "feature_flags", above / "node-feature_flags")
    return above / "node"


@pytest.fixture(scope="module")
def transactions(node: Path) -> list[tuple[Any, list[Any]]]:
    """Return functions and arguments of the transactions in its log."""
    found = []
    for system in quorum_nodes(str(node), folder="coordination"):
        with system:
            for member in system.queues():
                terms: list[Any] = [entry.decode() for entry in member.entries().values()]
                every = [term[2] for term in terms if isinstance(term, tuple) and term[0] == "$usr"]
                commands = [command[3] for command in every if command[0] == "dedup"]
                found += [command[1:] for command in commands if command[0] == "tx"]
    return found


def test_a_put_makes_the_nodes_above_and_counts_versions() -> None:
    """The same payload again is no new version."""
    tree = Tree()
    tree.put([A, B], payload(1))
    tree.put([A, B], payload(1))
    tree.put([A, B], payload(2))
    assert contents(tree) == {(): (NO_PAYLOAD, 1), (A,): (NO_PAYLOAD, 1), (A, B): (payload(2), 2)}


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ((Atom("if_all"), [B, IS_NEW]), "mismatching_node"),
        ((Atom("if_all"), [B, (Atom("if_payload_version"), 2)]), "mismatching_node"),
        ((Atom("if_all"), [C, (Atom("if_payload_version"), 1)]), "node_not_found"),
    ],
)
def test_a_put_changes_nothing_if_a_condition_is_not_met(last: Any, reason: str) -> None:
    """The server answers with this reason."""
    tree = Tree()
    tree.put([A, B], payload(1))
    before = contents(tree)
    with pytest.raises(RefusedChangeError, match=reason):
        tree.put([A, last], payload(2))
    assert contents(tree) == before


def test_a_node_goes_with_the_one_that_keeps_it_and_empty_ones_above_go_too() -> None:
    """As a binding goes with its queue; one that cannot be kept is refused."""
    tree = Tree()
    keep = keep_while_of({Atom("keep_while"): {map_key([B]): (Atom("if_node_exists"), TRUE)}})
    with pytest.raises(RefusedChangeError, match="keep_while"):
        tree.put([A, C], payload("binding"), keep)
    assert contents(tree).keys() == {()}
    tree.put([B], payload("queue"))
    tree.put([A, C], payload("binding"), keep)
    assert tree.delete([B]).keys() == {(B,), (A, C), (A,)}
    assert contents(tree).keys() == {()}


def test_a_delete_takes_every_node_that_matches() -> None:
    """A pattern matches one level."""
    tree = Tree()
    for path in ([A, B], [A, C], [A, B, C]):
        tree.put(path, payload(0))
    tree.put([C], payload(1))
    assert tree.delete([A, ANY]).keys() == {(A, B), (A, C), (A, B, C), (A,)}
    assert contents(tree).keys() == {(), (C,)}


def test_reverted_changes_leave_the_tree_as_it_was() -> None:
    """Puts, deletes and conditions."""
    tree = Tree()
    keep = keep_while_of({Atom("keep_while"): {map_key([B]): (Atom("if_node_exists"), TRUE)}})
    tree.put([B], payload(1))
    tree.put([A, C], payload(2), keep)
    tree.commit()
    before, mark = contents(tree), tree.mark()
    tree.put([A, C], payload(3), {})
    tree.put([C, C], payload(4))
    tree.delete([B])
    assert contents(tree) != before
    tree.revert(mark)
    assert contents(tree) == before
    assert (A, C) in tree.delete([B])


def test_a_key_with_a_list_in_it_is_kept_as_it_was() -> None:
    """A set of bindings is a map whose keys have lists of arguments."""
    key: Any = (Atom("binding"), [(b"n", 1)])
    found: Any = decode(encode(())[:1] + b"t\0\0\0\1" + encode(key)[1:] + b"j")
    assert [key_term(one) for one in found] == [key] and isinstance(next(iter(found)), TermKey)
    assert map_key(key) in found and key_term(b"plain") == b"plain"


@pytest.mark.parametrize("missing", [("sets", "add_element", 2), ("khepri_tx_adv", "put", 2)])
def test_an_unknown_function_is_named_and_the_rest_is_read(
    missing: tuple[str, str, int], node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has no effect here, which the exit code tells."""
    whole = TransactionRunner._functions
    monkeypatch.setattr(TransactionRunner, "_functions", lambda self: without(whole(self), missing))
    known = functions.library
    monkeypatch.setattr("rabbitstore.khepri.transaction.library", lambda interpreter: without(known(interpreter), missing))
    found = read_definitions(str(node))
    assert {(one.kind, str(one.found)) for one in found.problems} == {
        ("unsupported_format", f"function of a transaction {missing[0]}:{missing[1]}/{missing[2]}")
    }
    assert all(one.file.endswith(".wal") and one.offset for one in found.problems)
    assert len(found.content["exchanges"]) == 3


def without(natives: dict[Any, Any], missing: tuple[str, str, int]) -> dict[Any, Any]:
    return {name: function for name, function in natives.items() if name != missing}


def test_a_function_that_does_not_end_is_stopped(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of steps is bounded."""
    monkeypatch.setattr(execution, "_STEPS_MAX", 30)
    assert {one.found for one in read_definitions(str(node)).problems} == {"number of steps of a transaction 31"}


@pytest.mark.deep
def test_damaged_code_ends_with_a_named_error(
    transactions: list[tuple[Any, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte of several functions in turn is changed: the function runs, fails, or is refused."""
    monkeypatch.setattr(execution, "_STEPS_MAX", 3000)
    kinds = {str(function[1]): (function, arguments) for function, arguments in transactions}
    assert len(kinds) > 8
    for function, arguments in kinds.values():
        code = function[2]
        for at in range(0, len(code), 23):
            damaged = code[:at] + bytes([code[at] ^ (1 << at % 8)]) + code[at + 1 :]
            changed = (*function[:2], damaged, *function[3:])
            try:
                TransactionRunner(Tree()).apply(changed, arguments)
            except (StoreCorrupt, UnsupportedFormat):
                continue


def test_a_cut_module_is_refused(transactions: list[tuple[Any, list[Any]]]) -> None:
    """A file without its code, and bytes that are no module."""
    code = transactions[0][0][2]
    for data in (b"", b"FOR1", code[:40], b"x" + code[1:]):
        with pytest.raises(StoreCorrupt, match="not a compiled module"):
            read_module(data, "m")


def test_a_command_that_a_client_sends_again_counts_once() -> None:
    """Until the client tells that it has the answer."""
    reader: Any = store._Reader(SimpleNamespace(node=SimpleNamespace(problems=[])))  # type: ignore[arg-type]
    reference = Opaque(90, b"1")
    for value in (1, 2):
        reader._apply((Atom("dedup"), reference, 0, (Atom("put"), [A], payload(value), {})))
    assert reader._transactions.tree.get([A])[1].payload == payload(1)
    reader._apply((Atom("dedup_ack"), reference))
    reader._apply((Atom("dedup"), reference, 0, (Atom("put"), [A], payload(3), {})))
    assert reader._transactions.tree.get([A])[1].payload == payload(3)
    with pytest.raises(UnsupportedFormat, match="command"):
        reader._apply((Atom("later"), [A]))
