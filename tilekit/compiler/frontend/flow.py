"""Definite assignment, a data-flow analysis: variables that are unset on a path.

A path can be taken unless constants say otherwise, or another test of the same thing: what was assigned under `if a > 0:` is
there under a later `if a > 0:`, and what a loop assigned in a later loop over the same range. The first turn of a loop is
followed by itself, so that `if i == 0:` may begin what later turns go on with. What types decide is left to them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilekit.compiler.frontend.bound import stored
from tilekit.compiler.frontend.folding import BINARY, COMPARE, MISSING, UNARY, value_of
from tilekit.compiler.frontend.source import KernelSource

__all__ = ["UNSET", "check_flow"]

UNSET = "{name} may be used before it has a value: assign it on every path"

Fact = tuple[str, bool]  # what a condition says, as text, and whether it holds
Guard = frozenset[Fact]
_MOST_ROUNDS = 8
_TYPED = ("dtype", "ndim", "shape", "tile_shape", "itemsize", "name")


def check_flow(definition: ast.FunctionDef, source: KernelSource) -> None:
    """Check definite assignment in a function whose constants are put in.

    Raises:
        CompileError: a variable may be used before it has a value.
    """
    _Flow(definition, source).run()


@dataclass(frozen=True)
class _State:
    """What is known where execution may be.

    Attributes:
        assigned: the variables that have a value.
        maybe: of others, under which conditions they have one: all of a guard's hold.
        facts: the conditions that hold.
        constants: the variables whose value is known.
    """

    assigned: frozenset[str]
    maybe: Mapping[str, frozenset[Guard]]
    facts: Mapping[str, tuple[bool, frozenset[str]]]
    constants: Mapping[str, Any]

    def with_values(self, names: Iterable[str], constants: Mapping[str, Any] | None = None) -> _State:
        """After these have been assigned: nothing that was known of them holds any more."""
        new = frozenset(names)
        gone = {text for text, (_, used) in self.facts.items() if used & new}
        maybe = {n: kept for n, g in self.maybe.items() if n not in new and (kept := _without(g, new))}
        return _State(
            self.assigned | new,
            maybe,
            {text: fact for text, fact in self.facts.items() if text not in gone},
            {n: v for n, v in self.constants.items() if n not in new} | dict(constants or {}),
        )

    def has(self, name: str) -> bool:
        if name in self.assigned:
            return True
        held = {(text, holds) for text, (holds, _) in self.facts.items()}
        return any(guard <= held for guard in self.maybe.get(name, ()))


def _without(guards: Iterable[Guard], names: frozenset[str]) -> frozenset[Guard]:
    """The guards that do not mention these names."""
    return frozenset(g for g in guards if not any(_names_in(text) & names for text, _ in g))


@functools.lru_cache(1024)
def _names_in(text: str) -> frozenset[str]:
    return _names(ast.parse(text, mode="eval"))


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


class _Flow:
    def __init__(self, definition: ast.FunctionDef, source: KernelSource) -> None:
        self.definition, self.source = definition, source
        parameters = [a.arg for a in ast.walk(definition.args) if isinstance(a, ast.arg)]
        self.parameters = frozenset(parameters)
        self.locals = {n.id for n in _own(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.typed: set[str] = set()
        before = -1
        while before < len(self.typed):
            before = len(self.typed)
            for node in ast.walk(definition):
                if isinstance(node, ast.Assign) and self._by_types(node.value):
                    self.typed |= stored(n for t in node.targets for n in ast.walk(t))
        self.breaks: list[list[_State]] = []
        self.continues: list[list[_State]] = []

    def run(self) -> None:
        self._block(self.definition.body, _State(self.parameters, {}, {}, {}))

    # statements

    def _block(self, statements: Sequence[ast.stmt], state: _State | None) -> _State | None:
        for node in statements:
            if state is None:
                return None
            state = self._statement(node, state)
        return state

    def _statement(self, node: ast.stmt, state: _State) -> _State | None:
        if named := _named_in(node):
            state = state.with_values(named)
        match node:
            case ast.Assign(targets=targets, value=value):
                self._look(value, state)
                for target in targets:
                    state = self._store(target, value, state)
                return state
            case ast.AnnAssign(target=target, value=value):
                if value is None:
                    return state
                self._look(value, state)
                return self._store(target, value, state)
            case ast.AugAssign(target=target, op=op, value=value):
                reading = ast.copy_location(ast.BinOp(_loaded(target), op, value), node)
                self._look(reading, state)
                return self._store(target, reading, state)
            case ast.If(test=test, body=body, orelse=other):
                self._look(test, state)
                return self._branches(test, body, other, state)
            case ast.For():
                return self._for(node, state)
            case ast.While():
                return self._while(node, state)
            case ast.Break():
                self.breaks[-1].append(state)
                return None
            case ast.Continue():
                self.continues[-1].append(state)
                return None
            case ast.Return(value=value):
                if value is not None:
                    self._look(value, state)
                return None
            case ast.FunctionDef(name=name):
                return state.with_values([name])
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._look(child, state)
        return state

    def _store(self, target: ast.expr, value: ast.expr, state: _State) -> _State:
        if isinstance(target, ast.Name):
            known = _constant(value, state.constants)
            return state.with_values([target.id], {} if known is MISSING else {target.id: known})
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            before = state
            constants = {
                t.id: known
                for t, v in zip(target.elts, value.elts, strict=True)
                if isinstance(t, ast.Name) and (known := _constant(v, before.constants)) is not MISSING
            }
            return state.with_values(stored(ast.walk(target)), constants)
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._use(node, state)
        return state.with_values(stored(ast.walk(target)))

    def _branches(self, test: ast.expr, body: list[ast.stmt], other: list[ast.stmt], state: _State) -> _State | None:
        yes, no = _assumed(state, test, True), _assumed(state, test, False)
        first, second = self._block(body, yes), self._block(other, no)
        if first is None or second is None:
            return first or second
        if self._by_types(test):
            either = first.assigned | second.assigned
            return _joined(replace(first, assigned=either), replace(second, assigned=either))
        changed = _names(test) & (stored(n for s in (*body, *other) for n in ast.walk(s)))
        guards = (None, None) if changed else (_guard(test, True), _guard(test, False))
        return _joined(first, second, *guards)

    def _by_types(self, node: ast.expr) -> bool:
        """Whether types may decide a value: they know dtypes, the shapes of tiles, and what a function is given of such."""
        for part in ast.walk(node):
            match part:
                case ast.Attribute(value=owner, attr=attribute) if attribute in _TYPED:
                    tensor = isinstance(owner, ast.Name) and owner.id in self.parameters and not self.source.calls
                    if attribute != "shape" or not tensor:
                        return True
                case ast.Call(func=ast.Name(id="len")) | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn():
                    return True
                case ast.Name(id=name) if name in self.typed or (name in self.parameters and self.source.calls):
                    return True
        return False

    # loops

    def _for(self, node: ast.For, state: _State) -> _State | None:
        self._look(node.iter, state)
        turns, first = _turns(node.iter, state.constants)
        targets = stored(ast.walk(node.target))
        inside = stored(n for s in node.body for n in ast.walk(s)) | targets
        text = ast.unparse(node.iter)
        known: dict[str, tuple[bool, frozenset[str]]] = {text: (True, _names(node.iter))}
        over = _range_of(node.iter)
        guards = {frozenset({(text, True)})}
        if over is not None and len(over) == 1:
            for more, holds in _positive(over[0]):
                known[more] = holds, _names(over[0])
                guards.add(frozenset({(more, holds)}))
        if _names(node.iter) & inside:
            known, guards = {}, set()

        def enter(before: _State, constants: Mapping[str, Any]) -> _State:
            entered = before.with_values(targets, constants)
            return replace(entered, facts={**entered.facts, **known})

        constants = {node.target.id: first} if isinstance(node.target, ast.Name) and first is not MISSING else {}
        opening = enter(state, constants)
        if isinstance(node.target, ast.Name) and over is not None and len(over) > 1 and not constants:
            fact = _fact(ast.Compare(node.target, [ast.Eq()], [over[0]]), True)
            names = _names(over[0]) | {node.target.id}
            if not names & (inside - targets):
                opening = replace(opening, facts={**opening.facts, fact[0]: (fact[1], names)})
        ends, breaks = self._rounds(node.body, opening, None if turns == 1 else lambda end: enter(end, {}))
        left = ends if turns else _joined_to(state, ends, guards, inside)
        return _meet([self._block(node.orelse, left), *breaks])

    def _while(self, node: ast.While, state: _State) -> _State | None:
        self._look(node.test, state)
        entered = _assumed(state, node.test, True)
        leaving = [_assumed(state, node.test, False)]

        named = _named_in(node)

        def enter(end: _State) -> _State | None:
            end = end.with_values(named) if named else end
            self._look(node.test, end)
            leaving.append(_assumed(end, node.test, False))
            return _assumed(end, node.test, True)

        breaks: list[_State | None] = []
        if entered is not None:
            end, broken_off = self._rounds(node.body, entered, enter)
            breaks = list(broken_off)
            if end is not None:
                leaving.append(_assumed(end, node.test, False))
        return _meet([self._block(node.orelse, _meet(leaving)), *breaks])

    def _rounds(self, body: list[ast.stmt], state: _State, enter: Any) -> tuple[_State | None, list[_State]]:
        """Turns of a loop up to a fixed point: what is known after any turn, and where a turn breaks off."""
        end, breaks = self._turn(body, state)
        known: _State | None = end
        for number in range(_MOST_ROUNDS):
            if end is None or enter is None:
                break
            begin = known if number < _MOST_ROUNDS - 2 or known is None else replace(known, constants={}, facts={}, maybe={})
            entered = None if begin is None else enter(begin)
            if entered is None:
                break
            end, more = self._turn(body, entered)
            breaks += more
            wider = _meet([known, end])
            if wider == known:
                break
            known = wider
        return known, breaks

    def _turn(self, body: list[ast.stmt], state: _State) -> tuple[_State | None, list[_State]]:
        self.breaks.append([])
        self.continues.append([])
        end = self._block(body, state)
        return _meet([end, *self.continues.pop()]), self.breaks.pop()

    # expressions

    def _look(self, node: ast.expr, state: _State | None) -> None:
        """The variables that an expression reads, and what it divides by."""
        if state is None:
            return
        match node:
            case ast.Name(ctx=ast.Load()):
                self._use(node, state)
                return
            case ast.Lambda():
                return
            case ast.GeneratorExp(elt=element, generators=generators):
                for generator in generators:
                    self._look(generator.iter, state)
                    state = state.with_values(stored(ast.walk(generator.target)))
                    for condition in generator.ifs:
                        self._look(condition, state)
                self._look(element, state)
                return
            case ast.IfExp(test=test, body=body, orelse=other):
                self._look(test, state)
                self._look(body, _assumed(state, test, True))
                self._look(other, _assumed(state, test, False))
                return
            case ast.BoolOp(op=op, values=values):
                left: _State | None = state
                for value in values:
                    self._look(value, left)
                    left = None if left is None else _assumed(left, value, isinstance(op, ast.And))
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._look(child, state)
            elif isinstance(child, ast.keyword):
                for inner in ast.iter_child_nodes(child):
                    if isinstance(inner, ast.expr):
                        self._look(inner, state)

    def _use(self, node: ast.Name, state: _State) -> None:
        if node.id in self.locals and not state.has(node.id):
            raise self.source.error(UNSET.format(name=node.id), node.lineno, node.id)


def _named_in(node: ast.stmt) -> set[str]:
    """The variables that expressions of a statement assign to, without those of statements in it."""
    expressions = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return stored(inner.target for part in expressions for inner in ast.walk(part) if isinstance(inner, ast.NamedExpr))


def _own(definition: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(definition):
        if isinstance(child, ast.FunctionDef):
            yield ast.copy_location(ast.Name(child.name, ast.Store()), child)
        elif not isinstance(child, ast.Lambda):
            yield child
            yield from _own(child)


def _loaded(target: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Name(target.id, ast.Load()), target) if isinstance(target, ast.Name) else target


def _constant(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """The value of an expression, if constants decide it."""
    known = value_of(node)
    if known is not MISSING:
        return known
    match node:
        case ast.Name(id=name):
            return constants.get(name, MISSING)
        case ast.UnaryOp(op=op, operand=operand):
            return _computed(UNARY.get(type(op)), _constant(operand, constants))
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(BINARY.get(type(op)), _constant(left, constants), _constant(right, constants))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _computed(COMPARE.get(type(op)), _constant(left, constants), _constant(right, constants))
        case ast.BoolOp(op=op, values=values):
            parts = [_constant(v, constants) for v in values]
            decides = isinstance(op, ast.Or)
            if any(p is not MISSING and bool(p) is decides for p in parts):
                return decides
            return MISSING if any(p is MISSING for p in parts) else not decides
    return MISSING


def _computed(function: Any, *values: Any) -> Any:
    if function is None or any(not isinstance(v, (bool, int, float)) for v in values):
        return MISSING
    try:
        return function(*values)
    except (ArithmeticError, TypeError, ValueError):
        return MISSING


# ------------------------------------------------------------------------------------------------------------- conditions


def _fact(test: ast.expr, holds: bool) -> Fact:
    """A condition in one of the forms that mean the same: `a >= b` is not `a < b`, and `a > b` is `b < a`."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right, op = ast.unparse(test.left), ast.unparse(test.comparators[0]), test.ops[0]
        if isinstance(op, (ast.Gt, ast.LtE)):
            left, right = right, left
        if isinstance(op, (ast.Lt, ast.Gt, ast.LtE, ast.GtE)):
            return f"{left} < {right}", holds is isinstance(op, (ast.Lt, ast.Gt))
        if isinstance(op, (ast.Eq, ast.NotEq)):
            return f"{left} == {right}", holds is isinstance(op, ast.Eq)
    return ast.unparse(test), holds


def _guard(test: ast.expr, holds: bool) -> Guard:
    """What a condition, or its contrary, says."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _guard(operand, not holds)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
            return frozenset().union(*(_guard(v, holds) for v in values))
    return frozenset({_fact(test, holds)})


def _assumed(state: _State, test: ast.expr, holds: bool) -> _State | None:
    """The state where a condition holds, or does not; None where that cannot be."""
    known = _constant(test, state.constants)
    if known is not MISSING:
        return state if bool(known) is holds else None
    facts = dict(state.facts)
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):  # it may say something else the next time
        return state
    for text, so in _guard(test, holds):
        before = facts.get(text)
        if before is not None and before[0] is not so:
            return None
        facts[text] = so, _names_in(text)
    assumed = replace(state, facts=facts)
    return replace(assumed, assigned=assumed.assigned | {name for name in assumed.maybe if assumed.has(name)})


def _positive(count: ast.expr) -> list[Fact]:
    """What tells that a number of turns is not 0."""
    text = ast.unparse(count)
    return [(f"0 < {text}", True), (f"{text} < 1", False), (f"{text} == 0", False), (text, True)]


# ------------------------------------------------------------------------------------------------------------------ joining


def _joined(first: _State, second: _State, yes: Guard | None = None, no: Guard | None = None) -> _State:
    """The join of two paths, what is known where they meet: of which one was taken under `yes`, the other under `no`."""
    maybe: dict[str, frozenset[Guard]] = {}
    both = first.assigned & second.assigned
    for name in (first.assigned | second.assigned | first.maybe.keys() | second.maybe.keys()) - both:
        mine, theirs = _guards(first, name), _guards(second, name)
        guards = set(mine & theirs)
        guards |= {g for g in mine if frozenset() in theirs} | {g for g in theirs if frozenset() in mine}
        for alternatives, here, there, condition in ((mine, first, second, yes), (theirs, second, first, no)):
            guards |= {g | condition for g in alternatives} if condition is not None else set()
            guards |= {g for g in alternatives if g and _contradicted(g, there)}
            guards |= {g | {fact} for g in alternatives for fact in _telling(here, there)}
        if guards:
            maybe[name] = frozenset(guards)
    facts = {text: fact for text, fact in first.facts.items() if second.facts.get(text) == fact}
    constants = {n: v for n, v in first.constants.items() if n in second.constants and _same(v, second.constants[n])}
    return _State(both, maybe, facts, constants)


def _contradicted(guard: Guard, state: _State) -> bool:
    """Whether what a guard says is known not to hold."""
    for text, holds in guard:
        known = _constant(ast.parse(text, mode="eval").body, state.constants)
        if (known is not MISSING and bool(known) is not holds) or state.facts.get(text, (holds,))[0] is not holds:
            return True
    return False


def _telling(here: _State, there: _State) -> Iterator[Fact]:
    """What variables that were set to other constants here and there tell, such as `found` that is True here."""
    for name, value in here.constants.items():
        other = there.constants.get(name, value)
        if type(other) in (bool, int) and type(value) in (bool, int) and other != value:
            yield f"{name} == {value!r}", True
            yield f"{name} == {other!r}", False
            if bool(value) is not bool(other):
                yield name, bool(value)


def _guards(state: _State, name: str) -> frozenset[Guard]:
    return frozenset({frozenset()}) if name in state.assigned else state.maybe.get(name, frozenset())


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _meet(states: Sequence[_State | None]) -> _State | None:
    met: _State | None = None
    for state in states:
        if state is not None:
            met = state if met is None else _joined(met, state)
    return met


def _joined_to(before: _State, after: _State | None, guards: set[Guard], inside: set[str]) -> _State:
    """What is known behind a loop that may have no turn: what it assigns is there if it has one."""
    if after is None:
        return before
    joined = _joined(before, after)
    maybe = dict(joined.maybe)
    for name in inside & after.assigned - joined.assigned:
        maybe[name] = maybe.get(name, frozenset()) | frozenset(guards)
    return replace(joined, maybe={n: g for n, g in maybe.items() if g})


def _range_of(node: ast.expr) -> list[ast.expr] | None:
    """The arguments of a range, or of one that is written out."""
    match node:
        case ast.Call(
            func=ast.Name(id="range" | "static_range") | ast.Attribute(attr="static_range"), args=args, keywords=[]
        ) if args:
            return args
    return None


def _turns(node: ast.expr, constants: Mapping[str, Any]) -> tuple[int, Any]:
    """How many turns a loop is sure to have, and what its variable is in the first; 0 where it is not sure."""
    if isinstance(node, ast.Tuple):
        return len(node.elts), value_of(node.elts[0]) if node.elts else MISSING
    args = _range_of(node)
    if args is None or len(args) > 3:
        return 0, MISSING
    values = [_constant(a, constants) for a in args]
    first = 0 if len(values) == 1 else values[0]
    if all(type(v) is int for v in values) and not (len(values) == 3 and values[2] == 0):
        turns = range(*values)
        return (len(turns) if -(2**63) < turns.stop - turns.start < 2**63 else 1), first
    return 0, first if type(first) is int else MISSING
