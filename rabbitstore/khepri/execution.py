"""Execute the function of a transaction (docs/formats/rabbitmq-metadata.md#transactions).

The server writes a transaction as a compiled function, and each member of the cluster executes it.  So does this reader: what
a function does differs from release to release.  It may only compute and ask for nodes of the tree: nothing else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

from ..format.terms import FALSE, TRUE, Atom, Improper, Opaque, map_key
from ..format.terms_cy import decode
from .beam import LABEL, LIST, Module, Operand, X, Y, read_module

HORUS_FUN = "horus_fun"
_MODULE, _CODE, _ARITY, _LITERAL_FUNS, _ENV = 1, 2, 3, 4, 6
_FUN_SIZE = 8
_NAMED = 113  # tag of a function that is only named
_STEPS_MAX = 20_000_000
_DEPTH_MAX = 100
ERROR = Atom("error")


class Closure(NamedTuple):
    """A function as a value."""

    module: Module
    label: int
    arity: int
    free: tuple[Any, ...]


class RaisedError(Exception):
    """An exception of the executed function: its class, `error`, `exit` or `throw`, and its reason."""

    def __init__(self, kind: str, reason: Any) -> None:
        """Take the two parts of an exception."""
        super().__init__(f"{kind}: {reason!r}"[:200])
        self.kind = Atom(kind)
        self.reason = reason


def failed(reason: str, *more: Any) -> RaisedError:
    """Return an error with this reason, such as `badarg`."""
    return RaisedError("error", (Atom(reason), *more) if more else Atom(reason))


Native = Callable[..., Any]


class Interpreter:
    """Executes functions; `natives` are those of other modules by module, name and arity."""

    def __init__(self, natives: dict[tuple[str, str, int], Native]) -> None:
        """Nothing is loaded yet."""
        self.natives = natives
        self._modules: dict[str, Module] = {}
        self._steps = 0
        self._depth = 0

    def start(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Execute a transaction; raise `RaisedError` if it fails.

        Raise `UnsupportedFormat` for what this version cannot execute, and `StoreCorrupt` for damaged code.
        """
        self._steps = 0
        try:
            return self.call(function, arguments)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StoreCorrupt("not a transaction", file="", offset=0, expected="a function", found=repr(error)[:60]) from error

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Call a function that is a value."""
        if isinstance(function, Closure):
            if len(arguments) != function.arity:
                raise failed("badarity")
            return self.run(function.module, function.label, [*arguments, *function.free])
        if isinstance(function, Opaque) and function.tag == _NAMED:
            module, name, _arity = _name_of(function)
            return self.native(module, name, arguments)
        if not is_horus_fun(function) or len(arguments) != function[_ARITY]:
            raise failed("badfun")
        for literal in function[_LITERAL_FUNS]:
            self._load(literal)
        module = self._load(function)
        every = [*arguments, *function[_ENV]]
        return self.run(module, module.exports[("run", len(every))], every)

    def _load(self, function: Any) -> Module:
        """Return the module of a function; its name has a hash of its code."""
        name = str(function[_MODULE])
        if name not in self._modules:
            self._modules[name] = read_module(function[_CODE], name)
        return self._modules[name]

    def native(self, module: str, name: str, arguments: Sequence[Any]) -> Any:
        """Call a function of another module."""
        if module in self._modules:
            found = self._modules[module]
            return self.run(found, found.exports[(name, len(arguments))], list(arguments))
        function = self.natives.get((module, name, len(arguments)))
        if function is None:
            raise _unsupported("function", f"{module}:{name}/{len(arguments)}")
        try:
            return function(*arguments)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise failed("badarg") from error

    def run(self, module: Module, label: int, arguments: list[Any]) -> Any:
        """Execute from a label until the function returns."""
        self._depth += 1
        try:
            if self._depth > _DEPTH_MAX:
                raise _unsupported("depth of calls", str(self._depth))
            return self._execute(_Run(self, module, label, arguments))
        finally:
            self._depth -= 1

    def _execute(self, run: _Run) -> Any:
        while run.module is not None:
            self._steps += 1
            if self._steps > _STEPS_MAX:
                raise _unsupported("number of steps", str(self._steps))
            number, operands = run.module.code[run.position]
            run.position += 1
            operation = _OPERATIONS.get(number)
            if operation is None:
                raise _unsupported("instruction", str(number))
            try:
                operation(run, *operands)
            except RaisedError as error:
                run.catch(error)
        return run.x[0]


def _name_of(function: Opaque) -> Any:
    """Return module, name and number of arguments of a function that is only named."""
    return decode(b"\x83h\3" + function.data)


def is_horus_fun(term: Any) -> bool:
    """Return whether a term is a compiled function."""
    return isinstance(term, tuple) and len(term) == _FUN_SIZE and term[0] == HORUS_FUN and isinstance(term[_CODE], bytes)


def _unsupported(what: str, found: str) -> UnsupportedFormat:
    return UnsupportedFormat(f"{what} of a transaction", file="", offset=0, found=found, supported="those that servers wrote")


class _Handler(NamedTuple):
    """Where an exception continues, and what was on the stacks then."""

    module: Module
    label: int
    frames: int
    returns: int
    is_catch: bool


class _Run:
    """Registers, stacks and position of one execution; `module` is None after the last return."""

    def __init__(self, interpreter: Interpreter, module: Module, label: int, arguments: list[Any]) -> None:
        self.interpreter = interpreter
        self.module: Module | None = module
        self.position = module.labels[label]
        self.x: dict[int, Any] = dict(enumerate(arguments))
        self.frames: list[dict[int, Any]] = []
        self.returns: list[tuple[Module, int]] = []
        self.handlers: list[_Handler] = []

    def get(self, operand: Operand) -> Any:
        kind, value = operand
        if kind == X:
            return self.x[value]
        return self.frames[-1].get(value) if kind == Y else value

    def values(self, operand: Operand) -> list[Any]:
        return [self.get(one) for one in operand[1]]

    def set(self, operand: Operand, value: Any) -> None:
        if operand[0] == X:
            self.x[operand[1]] = value
        else:
            self.frames[-1][operand[1]] = value

    def arguments(self, count: int) -> list[Any]:
        return [self.x[number] for number in range(count)]

    def jump(self, operand: Operand) -> None:
        assert self.module is not None
        self.position = self.module.labels[operand[1]]

    def jump_unless(self, is_true: bool, label: Operand) -> None:
        if not is_true:
            self.jump(label)

    def enter(self, operand: Operand) -> None:
        """Call a local function."""
        assert self.module is not None
        self.returns.append((self.module, self.position))
        self.jump(operand)

    def leave(self) -> None:
        """Return to the caller."""
        self.module, self.position = self.returns.pop() if self.returns else (None, 0)

    def call(self, import_: Operand) -> None:
        """Call a function of another module, and leave its value in the first register."""
        assert self.module is not None
        found = self.module.imports[import_[1]]
        self.x[0] = self.interpreter.native(found.module, found.name, self.arguments(found.arity))

    def compute(self, import_: Operand, values: list[Any], label: Operand, target: Operand) -> None:
        """Call a built-in function; a guard's failure jumps."""
        assert self.module is not None
        found = self.module.imports[import_[1]]
        try:
            self.set(target, self.interpreter.native(found.module, found.name, values))
        except RaisedError:
            if not label[1]:
                raise
            self.jump(label)

    def catch(self, error: RaisedError) -> None:
        """Continue at the newest handler; raise the error again without one."""
        if not self.handlers:
            raise error
        found = self.handlers.pop()
        del self.frames[found.frames :], self.returns[found.returns :]
        self.module, self.position = found.module, found.module.labels[found.label]
        if not found.is_catch:
            self.x |= {0: error.kind, 1: error.reason, 2: error.kind}  # in place of the trace
        elif error.kind == "throw":
            self.x[0] = error.reason
        else:
            self.x[0] = (Atom("EXIT"), (error.reason, []) if error.kind == "error" else error.reason)

    def protect(self, label: Operand, *, is_catch: bool) -> None:
        assert self.module is not None
        self.handlers.append(_Handler(self.module, label[1], len(self.frames), len(self.returns), is_catch))

    def end_catch(self) -> None:
        """End a `catch` without an exception; after one its handler is gone."""
        top = self.handlers[-1] if self.handlers else None
        if top is not None and top.is_catch and (top.frames, top.returns) == (len(self.frames), len(self.returns)):
            self.handlers.pop()


def is_list(term: Any) -> bool:
    """Return whether a term is a list."""
    return isinstance(term, list | Improper)


def is_tuple(term: Any) -> bool:
    """Return whether a term is a tuple; other terms are Python's tuples, too."""
    return isinstance(term, tuple) and not isinstance(term, Opaque | Improper | Closure) and not is_horus_fun(term)


def is_number(term: Any) -> bool:
    """Return whether a term is a number."""
    return isinstance(term, int | float)


def is_function(term: Any) -> bool:
    """Return whether a term is a function."""
    return isinstance(term, Closure) or is_horus_fun(term) or (isinstance(term, Opaque) and term.tag == _NAMED)


def arity_of(function: Any) -> int:
    """Return the number of arguments of a function."""
    if isinstance(function, Opaque):
        return int(_name_of(function)[2])
    return function.arity if isinstance(function, Closure) else int(function[_ARITY])


def same(left: Any, right: Any) -> bool:
    """Compare as `=:=`, which tells 1 from 1.0."""
    return isinstance(left, float) == isinstance(right, float) and bool(left == right)


_RANKS: list[tuple[Callable[[Any], bool], int]] = [
    (is_number, 0),
    (lambda term: isinstance(term, Atom), 1),
    (is_function, 3),
    (lambda term: isinstance(term, Opaque), 2),
    (is_tuple, 4),
    (lambda term: isinstance(term, dict), 5),
    (is_list, 7),
    (lambda term: isinstance(term, bytes), 8),
]


def order(term: Any) -> Any:
    """Return a key that sorts terms as Erlang does."""
    rank = 6 if term == [] else next(rank for is_kind, rank in _RANKS if is_kind(term))
    if rank == 4:
        return rank, len(term), [order(part) for part in term]
    if rank == 5:
        return rank, len(term), sorted(repr(key) for key in term)
    if rank == 7:
        return rank, [order(part) for part in (term if isinstance(term, list) else term.items)]
    return (rank, repr(term)) if rank in (2, 3) else (rank, term)


def _parts(term: Any) -> tuple[Any, Any]:
    """Return head and tail of a list."""
    if isinstance(term, Improper):
        return term.items[0], Improper(term.items[1:], term.tail) if len(term.items) > 1 else term.tail
    return term[0], term[1:]


def _put_list(run: _Run, head: Operand, tail: Operand, target: Operand) -> None:
    first, rest = run.get(head), run.get(tail)
    if isinstance(rest, Improper):
        run.set(target, Improper((first, *rest.items), rest.tail))
    else:
        run.set(target, [first, *rest] if isinstance(rest, list) else Improper((first,), rest))


def _get_list(run: _Run, source: Operand, head: Operand, tail: Operand) -> None:
    first, rest = _parts(run.get(source))
    run.set(head, first)
    run.set(tail, rest)


def _get_map_elements(run: _Run, label: Operand, source: Operand, pairs: Operand) -> None:
    found, selected = run.get(source), pairs[1]
    keys = [map_key(run.get(key)) for key in selected[::2]]
    if any(key not in found for key in keys):
        run.jump(label)
        return
    for key, target in zip(keys, selected[1::2], strict=True):
        run.set(target, found[key])


def _put_map(run: _Run, _label: Operand, source: Operand, target: Operand, _live: Operand, pairs: Operand) -> None:
    values = run.values(pairs)
    run.set(target, run.get(source) | dict(zip(map(map_key, values[::2]), values[1::2], strict=True)))


def _put_map_exact(run: _Run, label: Operand, source: Operand, target: Operand, live: Operand, pairs: Operand) -> None:
    for key in run.values(pairs)[::2]:
        if map_key(key) not in run.get(source):
            raise failed("badkey", key)
    _put_map(run, label, source, target, live, pairs)


def _select(run: _Run, value: Any, label: Operand, pairs: Operand) -> None:
    for known, target in zip(pairs[1][::2], pairs[1][1::2], strict=True):
        if same(value, run.get(known)):
            run.jump(target)
            return
    run.jump(label)


def _update_record(run: _Run, _hint: Operand, _size: Operand, source: Operand, target: Operand, pairs: Operand) -> None:
    found = list(run.get(source))
    values = run.values(pairs)
    for number, value in zip(values[::2], values[1::2], strict=True):
        found[number - 1] = value
    run.set(target, tuple(found))


def _make_function(run: _Run, number: Operand, target: Operand, free: Operand) -> None:
    assert run.module is not None
    found = run.module.functions[number[1]]
    run.set(target, Closure(run.module, found.label, found.arity, tuple(run.values(free))))


def _make_function_2(run: _Run, number: Operand) -> None:
    assert run.module is not None
    free = tuple((X, at) for at in range(run.module.functions[number[1]].free))
    _make_function(run, number, (X, 0), (LIST, free))


def _call_function(run: _Run, count: int, function: Any) -> None:
    run.x[0] = run.interpreter.call(function, run.arguments(count))


def _deallocate(run: _Run) -> None:
    run.frames.pop()


def _trim(run: _Run, count: Operand) -> None:
    run.frames[-1] = {at - count[1]: value for at, value in run.frames[-1].items() if at >= count[1]}


def _swap(run: _Run, left: Operand, right: Operand) -> None:
    first, second = run.get(left), run.get(right)
    run.set(left, second)
    run.set(right, first)


def _raise(run: _Run, error: RaisedError) -> None:
    raise error


def _raw_raise(run: _Run) -> None:
    raise RaisedError(str(run.x[0]), run.x[1])


def _nothing(_run: _Run, *_operands: Operand) -> None:
    """Do nothing: the instruction is about memory."""


def _last_call(run: _Run, label: Operand) -> None:
    run.frames.pop()
    run.jump(label)


def _call_and_leave(run: _Run, import_: Operand, *, has_frame: bool) -> None:
    run.call(import_)
    if has_frame:
        run.frames.pop()
    run.leave()


def _test(is_true: Callable[..., bool]) -> Native:
    """Return the instruction that jumps unless a test of values holds."""
    return lambda run, label, *values: run.jump_unless(is_true(*map(run.get, values)), label)


def _is_tagged(term: Any, size: Any, tag: Any) -> bool:
    return is_tuple(term) and len(term) == size and same(term[0], tag)


def _is_boolean(term: Any) -> bool:
    return isinstance(term, Atom) and term in (TRUE, FALSE)


_OPERATIONS: dict[int, Native] = {
    1: _nothing, 2: lambda run, *_: _raise(run, failed("function_clause")), 16: _nothing, 17: _nothing, 153: _nothing,
    172: _nothing, 179: _nothing, 183: _nothing,
    4: lambda run, _count, label: run.enter(label),
    5: lambda run, _count, label, _size: _last_call(run, label),
    6: lambda run, _count, label: run.jump(label),
    7: lambda run, _count, import_: run.call(import_),
    8: lambda run, _count, import_, _size: _call_and_leave(run, import_, has_frame=True),
    78: lambda run, _count, import_: _call_and_leave(run, import_, has_frame=False),
    9: lambda run, import_, target: run.compute(import_, [], (LABEL, 0), target),
    10: lambda run, label, import_, one, target: run.compute(import_, [run.get(one)], label, target),
    11: lambda run, label, import_, one, two, target: run.compute(import_, [run.get(one), run.get(two)], label, target),
    124: lambda run, label, _live, import_, one, target: run.compute(import_, [run.get(one)], label, target),
    125: lambda run, label, _live, import_, one, two, target: run.compute(
        import_, [run.get(one), run.get(two)], label, target
    ),
    152: lambda run, label, _live, import_, one, two, three, target: run.compute(
        import_, [run.get(one), run.get(two), run.get(three)], label, target
    ),
    **{number: lambda run, *_: run.frames.append({}) for number in (12, 13, 14, 15)},
    18: lambda run, _size: _deallocate(run),
    19: lambda run: run.leave(),
    39: _test(lambda left, right: order(left) < order(right)),
    40: _test(lambda left, right: order(left) >= order(right)),
    41: _test(lambda left, right: bool(left == right)),
    42: _test(lambda left, right: bool(left != right)),
    43: _test(same),
    44: _test(lambda left, right: not same(left, right)),
    45: _test(lambda term: isinstance(term, int)),
    46: _test(lambda term: isinstance(term, float)),
    47: _test(is_number),
    48: _test(lambda term: isinstance(term, Atom)),
    49: _test(lambda term: isinstance(term, Opaque) and term.tag in (88, 103)),
    50: _test(lambda term: isinstance(term, Opaque) and term.tag in (90, 114)),
    52: _test(lambda term: isinstance(term, list) and not term),
    53: _test(lambda term: isinstance(term, bytes)),
    55: _test(is_list),
    56: _test(lambda term: is_list(term) and term != []),
    57: _test(is_tuple),
    58: _test(lambda term, size: len(term) == size),
    59: lambda run, value, label, pairs: _select(run, run.get(value), label, pairs),
    60: lambda run, value, label, pairs: _select(run, len(run.get(value)), label, pairs),
    61: lambda run, label: run.jump(label),
    62: lambda run, _at, label: run.protect(label, is_catch=True),
    63: lambda run, _at: run.end_catch(),
    64: lambda run, source, target: run.set(target, run.get(source)),
    65: _get_list,
    66: lambda run, source, number, target: run.set(target, run.get(source)[number[1]]),
    69: _put_list,
    72: lambda run, value: _raise(run, failed("badmatch", run.get(value))),
    73: lambda run: _raise(run, failed("if_clause")),
    74: lambda run, value: _raise(run, failed("case_clause", run.get(value))),
    75: lambda run, count: _call_function(run, count[1], run.x[count[1]]),
    77: _test(is_function),
    103: _make_function_2,
    104: lambda run, _at, label: run.protect(label, is_catch=False),
    105: lambda run, _at: run.handlers.pop(),
    106: _nothing,
    107: lambda run, value: _raise(run, failed("try_clause", run.get(value))),
    108: lambda run, kind, value: _raise(run, RaisedError(str(run.get(kind)), run.get(value))),
    114: _test(_is_boolean),
    115: _test(lambda term, arity: is_function(term) and arity_of(term) == arity),
    129: _test(lambda term: isinstance(term, bytes)),
    136: lambda run, count, _left: _trim(run, count),
    154: _put_map,
    155: _put_map_exact,
    156: _test(lambda term: isinstance(term, dict)),
    157: lambda run, label, source, keys: run.jump_unless(
        all(map_key(key) in run.get(source) for key in run.values(keys)), label
    ),
    158: _get_map_elements,
    159: _test(_is_tagged),
    160: _nothing,
    161: _raw_raise,
    162: lambda run, source, target: run.set(target, _parts(run.get(source))[0]),
    163: lambda run, source, target: run.set(target, _parts(run.get(source))[1]),
    164: lambda run, target, parts: run.set(target, tuple(run.values(parts))),
    169: _swap,
    171: _make_function,
    178: lambda run, _tag, count, function: _call_function(run, count[1], run.get(function)),
    180: lambda run, value: _raise(run, failed("badrecord", run.get(value))),
    181: _update_record,
}  # fmt: skip
