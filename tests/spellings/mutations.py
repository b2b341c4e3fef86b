"""Other spellings of a kernel: changes of its source, under a seed, that leave what it computes as it is.

`mutated(source, seed)` gives the text of a module's functions: the kernel, and the helpers that were extracted from it. A kernel
that is to be changed assigns to plain names; its expressions have no effects but those of `store`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import random
from collections.abc import Callable, Iterator

__all__ = ["MUTATIONS", "mutated"]

_CALLS_AS_METHODS = ("transpose", "reshape", "permute")


def mutated(source: str, seed: int, count: int = 8) -> str:
    """A kernel's source behind so many changes, as far as there are places for them."""
    draw, module = random.Random(seed), ast.parse(source)
    state = _Module(module, draw)
    done = 0
    for _ in range(6 * count):
        change = draw.choice(MUTATIONS)
        done += bool(change(state))
        ast.fix_missing_locations(module)
        module = ast.parse(ast.unparse(module))
        state = _Module(module, draw)
        if done == count:
            break
    return ast.unparse(module)


class _Module:
    """The functions of a module.

    Attributes:
        kernel: the last of them; the others are helpers.
        names: all that occur.
    """

    def __init__(self, tree: ast.Module, draw: random.Random) -> None:
        self.tree, self.draw = tree, draw
        self.functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.kernel = self.functions[-1]
        self.names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self.names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {f.name for f in self.functions}

    def fresh(self, stem: str) -> str:
        name = next(name for n in range(10_000) if (name := f"{stem}{self.draw.randrange(10_000)}") not in self.names)
        self.names.add(name)
        return name

    def blocks(self) -> list[list[ast.stmt]]:
        """All blocks of statements, of helpers too."""
        return [
            getattr(node, part)
            for function in self.functions
            for node in ast.walk(function)
            for part in ("body", "orelse")
            if isinstance(getattr(node, part, None), list) and getattr(node, part)
        ]

    def places(self, fits: Callable[[ast.stmt], bool]) -> list[tuple[list[ast.stmt], int]]:
        """Where statements of a kind are."""
        return [(block, at) for block in self.blocks() for at, statement in enumerate(block) if fits(statement)]


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _assigns_one(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)


def _has_effects(statement: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in ("store", "assert_") for n in ast.walk(statement))


def _pick(state: _Module, places: list) -> tuple | None:
    return state.draw.choice(places) if places else None


# ------------------------------------------------------------------------------------------------------------------ the changes


def rename(state: _Module) -> bool:
    """A variable gets another name."""
    parameters = {arg.arg for f in state.functions for arg in f.args.args}
    names = sorted({name for f in state.functions for name in _stored(f)} - parameters)
    if not names:
        return False
    old = state.draw.choice(names)
    new = state.fresh("x")
    for node in ast.walk(state.tree):
        if isinstance(node, ast.Name) and node.id == old:
            node.id = new
    return True


def join_assignments(state: _Module) -> bool:
    """Two assignments that do not need each other become one, of a tuple."""
    place = _pick(state, [
        (block, at) for block, at in state.places(_assigns_one)
        if at + 1 < len(block) and _assigns_one(block[at + 1])
        and not _stored(block[at]) & (_loaded(block[at + 1]) | _stored(block[at + 1]))
    ])  # fmt: skip
    if place is None:
        return False
    block, at = place
    first, second = block[at], block[at + 1]
    targets = ast.Tuple([first.targets[0], second.targets[0]], ast.Store())
    block[at : at + 2] = [ast.Assign([targets], ast.Tuple([first.value, second.value], ast.Load()))]
    return True


def take_apart(state: _Module) -> bool:
    """An assignment of a tuple becomes several, by way of new variables."""

    def fits(statement: ast.stmt) -> bool:
        return (
            isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)
            and isinstance(statement.value, ast.Tuple) and all(isinstance(t, ast.Name) for t in statement.targets[0].elts)
        )  # fmt: skip

    place = _pick(state, state.places(fits))
    if place is None:
        return False
    block, at = place
    targets, values = block[at].targets[0].elts, block[at].value.elts
    names = [state.fresh("part") for _ in targets]
    early = [ast.Assign([ast.Name(name, ast.Store())], value) for name, value in zip(names, values, strict=True)]
    late = [ast.Assign([target], ast.Name(name, ast.Load())) for target, name in zip(targets, names, strict=True)]
    block[at : at + 1] = [*early, *late]
    return True


def split_expression(state: _Module) -> bool:
    """A part of an expression gets a variable."""

    def parts(statement: ast.stmt) -> Iterator[ast.expr]:
        value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
        for node in ast.walk(value) if value is not None else ():
            if (
                node is not value
                and isinstance(node, (ast.Call, ast.BinOp))
                and not _is_type_or_stream(node)
                and not _has_effects(node)
            ):
                yield node

    places = [(block, at, part) for block, at in state.places(lambda s: True) for part in parts(block[at])]
    place = _pick(state, places)
    if place is None:
        return False
    block, at, part = place
    name = state.fresh("t")
    value = copy.deepcopy(part)
    _replace(block[at], part, ast.Name(name, ast.Load()))
    block.insert(at, ast.Assign([ast.Name(name, ast.Store())], value))
    return True


def join_expressions(state: _Module) -> bool:
    """A variable that the next statement alone reads, once, goes."""
    places = []
    for block, at in state.places(_assigns_one):
        name = block[at].targets[0].id
        reads = [n for f in state.functions for n in ast.walk(f) if isinstance(n, ast.Name) and n.id == name]
        if at + 1 < len(block) and isinstance(block[at + 1], ast.Assign) and len(reads) == 2:
            inside = [n for n in ast.walk(block[at + 1].value) if isinstance(n, ast.Name) and n.id == name]
            if len(inside) == 1 and not isinstance(block[at].value, (ast.Tuple, ast.IfExp)):
                places.append((block, at, inside[0]))
    place = _pick(state, places)
    if place is None:
        return False
    block, at, read = place
    _replace(block[at + 1], read, block[at].value)
    del block[at]
    return True


def extract_helper(state: _Module) -> bool:
    """The value of an assignment, of the kernel or of a helper, becomes a helper's."""

    def fits(statement: ast.stmt) -> bool:
        return (
            _assigns_one(statement)
            and isinstance(statement.value, (ast.Call, ast.BinOp))
            and not _is_type_or_stream(statement.value)
        )

    place = _pick(state, state.places(fits))
    if place is None:
        return False
    block, at = place
    value, name = block[at].value, state.fresh("helper")
    known = {n for f in state.functions for n in _stored(f)} | {arg.arg for f in state.functions for arg in f.args.args}
    names = sorted(_loaded(value) & known)
    state.draw.shuffle(names)
    arguments = ast.arguments(posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[])
    helper = ast.FunctionDef(
        name=name, args=arguments, body=[ast.Return(copy.deepcopy(value))],
        decorator_list=[ast.Attribute(ast.Name("tk", ast.Load()), "function", ast.Load())],
    )  # fmt: skip
    block[at].value = ast.Call(ast.Name(name, ast.Load()), [ast.Name(n, ast.Load()) for n in names], [])
    state.tree.body.insert(min(state.tree.body.index(f) for f in state.functions), helper)
    return True


def _counts(statement: ast.stmt) -> bool:
    """Whether it is a loop over a range, in steps of 1, that nothing leaves early."""
    ranged = isinstance(statement, ast.For) and isinstance(statement.iter, ast.Call) and isinstance(statement.iter.func, ast.Name)
    if not ranged or statement.iter.func.id != "range" or not isinstance(statement.target, ast.Name) or statement.orelse:
        return False
    leaves = any(isinstance(n, (ast.Continue, ast.Break)) for n in ast.walk(statement))
    return len(statement.iter.args) <= 2 and not leaves and statement.target.id not in set().union(*map(_stored, statement.body))


def count_backwards(state: _Module) -> bool:
    """`for j in range(n)` goes from the last to the first. With a mask it is another loop: that cuts the first turn then."""

    def fits(statement: ast.stmt) -> bool:
        return _counts(statement) and not any(isinstance(n, ast.Attribute) and n.attr == "where" for n in ast.walk(statement))

    place = _pick(state, state.places(fits))
    if place is None:
        return False
    block, at = place
    start, stop = [ast.Constant(0), *block[at].iter.args][-2:]
    last, before = ast.BinOp(stop, ast.Sub(), ast.Constant(1)), ast.BinOp(start, ast.Sub(), ast.Constant(1))
    block[at].iter.args = [last, before, ast.Constant(-1)]
    return True


def move_a_slice(state: _Module) -> bool:
    """`tk.load(x, (k, j), (64, 128))` is `tk.load(x.slice(0, k * 64), (0, j), (64, 128))`, for the counter of a loop."""
    counters = {statement.target.id for block, at in state.places(_counts) for statement in [block[at]]}
    places = [
        (load, d) for load in _loads(state) if isinstance(load.args[2], ast.Tuple)
        for d, part in enumerate(load.args[1].elts) if isinstance(part, ast.Name) and part.id in counters
    ]  # fmt: skip
    place = _pick(state, places)
    if place is None:
        return False
    load, d = place
    begins = ast.BinOp(load.args[1].elts[d], ast.Mult(), load.args[2].elts[d])
    load.args[0] = ast.Call(ast.Attribute(load.args[0], "slice", ast.Load()), [ast.Constant(d), begins], [])
    load.args[1].elts[d] = ast.Constant(0)
    return True


def count_by_while(state: _Module) -> bool:
    """`for j in range(n)`, which has turns, becomes a `while` that counts, with its condition at the top, behind a `break` there,
    or behind one at the end."""
    place = _pick(state, state.places(_counts))
    if place is None:
        return False
    block, at = place
    loop = block[at]
    start, stop = (ast.Constant(0), loop.iter.args[0]) if len(loop.iter.args) == 1 else loop.iter.args
    counter, end = loop.target.id, state.fresh("end")
    one = ast.AugAssign(ast.Name(counter, ast.Store()), ast.Add(), ast.Constant(1))
    goes_on, is_over = state.draw.choice([(ast.Lt(), ast.GtE()), (ast.NotEq(), ast.Eq())])
    below = ast.Compare(ast.Name(counter, ast.Load()), [goes_on], [ast.Name(end, ast.Load())])
    done = ast.Compare(ast.Name(counter, ast.Load()), [is_over], [ast.Name(end, ast.Load())])
    leave, way = ast.If(done, [ast.Break()], []), state.draw.randrange(3)
    if way == 0:
        new = ast.While(below, [*loop.body, one], [])
    else:
        turn = [leave, *loop.body, one] if way == 1 else [*loop.body, one, leave]
        new = ast.While(ast.Constant(True), turn, [])
    block[at : at + 1] = [
        ast.Assign([ast.Name(end, ast.Store())], stop), ast.Assign([ast.Name(counter, ast.Store())], start), new,
    ]  # fmt: skip
    return True


def call_otherwise(state: _Module) -> bool:
    """`x.reshape(s)` is `tk.reshape(x, s)`, `a @ b` `tk.matmul(a, b)`, `x.astype(t)` `tk.astype(x, t)`, and back."""
    places = []
    for function in state.functions:
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                places.append((node, ast.Call(_of_tk("matmul"), [node.left, node.right], [])))
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            if node.func.attr in (*_CALLS_AS_METHODS, "astype"):
                if isinstance(owner, ast.Name) and owner.id == "tk":
                    places.append((node, ast.Call(ast.Attribute(node.args[0], node.func.attr, ast.Load()), node.args[1:], [])))
                else:
                    places.append((node, ast.Call(_of_tk(node.func.attr), [owner, *node.args], [])))
    place = _pick(state, places)
    if place is None:
        return False
    node, new = place
    _replace(state.tree, node, new)
    return True


def load_otherwise(state: _Module) -> bool:
    """`tk.load(x, index, shape)` is `x.tiles(shape)[index]`."""
    node = _pick(state, _loads(state))
    if node is None:
        return False
    grid = ast.Call(ast.Attribute(node.args[0], "tiles", ast.Load()), [node.args[2]], [])
    _replace(state.tree, node, ast.Subscript(grid, node.args[1], ast.Load()))
    return True


def star(state: _Module) -> bool:
    """`tk.load(x, (i, j), shape)` is `tk.load(x, (*(i,), j), shape)`, or `tk.load(x, *((i, j), shape))`."""
    load = _pick(state, _loads(state))
    if load is None:
        return False
    if state.draw.random() < 0.5:
        _, *rest = load.args
        load.args[1:] = [ast.Starred(ast.Tuple(rest, ast.Load()), ast.Load())]
        return True
    index = load.args[1].elts
    at = state.draw.randrange(len(index))
    if not isinstance(index[at], ast.Starred):
        index[at] = ast.Starred(ast.Tuple([index[at]], ast.Load()), ast.Load())
    return True


def subtract_a_negative(state: _Module) -> bool:
    """`x + y` is `x - (-y)`."""
    places = [n for f in state.functions for n in ast.walk(f) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add)]
    node = _pick(state, places)
    if node is None:
        return False
    node.op, node.right = ast.Sub(), ast.UnaryOp(ast.USub(), node.right)
    return True


def reorder(state: _Module) -> bool:
    """Two statements that do not need each other change places."""

    def apart(first: ast.stmt, second: ast.stmt) -> bool:
        simple = isinstance(first, ast.Assign) and isinstance(second, ast.Assign)
        crossed = _stored(first) & (_loaded(second) | _stored(second)) or _stored(second) & _loaded(first)
        return simple and not crossed

    places = [(b, at) for b, at in state.places(lambda s: True) if at + 1 < len(b) and apart(b[at], b[at + 1])]
    place = _pick(state, places)
    if place is None:
        return False
    block, at = place
    block[at], block[at + 1] = block[at + 1], block[at]
    return True


def mask_otherwise(state: _Module) -> bool:
    """`tk.where(a <= b, x, y)` is `tk.where(a > b, y, x)`, or `tk.where(b >= a, x, y)`."""
    inverse = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
    mirrored = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
    places = [
        node for f in state.functions for node in ast.walk(f)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "where"
        and isinstance(node.args[0], ast.Compare) and type(node.args[0].ops[0]) in inverse
    ]  # fmt: skip
    node = _pick(state, places)
    if node is None:
        return False
    mask, x, y = node.args
    (op,), (right,) = mask.ops, mask.comparators
    if state.draw.random() < 0.5:
        node.args = [ast.Compare(mask.left, [inverse[type(op)]()], [right]), y, x]
    else:
        node.args = [ast.Compare(right, [mirrored[type(op)]()], [mask.left]), x, y]
    return True


MUTATIONS = [
    rename, join_assignments, take_apart, split_expression, join_expressions, extract_helper, count_by_while, call_otherwise,
    load_otherwise, reorder, mask_otherwise, count_backwards, move_a_slice, star, subtract_a_negative,
]  # fmt: skip


def _loads(state: _Module) -> list[ast.Call]:
    """`tk.load(x, (...), shape)`, without options, of a tensor with a name."""
    return [
        node for f in state.functions for node in ast.walk(f)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load"
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "tk" and len(node.args) == 3 and not node.keywords
        and isinstance(node.args[0], ast.Name) and isinstance(node.args[1], ast.Tuple)
    ]  # fmt: skip


def _of_tk(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("tk", ast.Load()), name, ast.Load())


def _is_type_or_stream(node: ast.AST) -> bool:
    """Whether an expression is none that a variable or a helper may hold: `float(...)`, a loop's `range` or `tk.pipelined`."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & set(vars(builtins)) - {"max", "min"}
    methods = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} & {"pipelined", "store"}
    return bool(names | methods)


def _replace(root: ast.AST, old: ast.expr, new: ast.expr) -> None:
    for parent in ast.walk(root):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list):
                for at, item in enumerate(value):
                    if item is old:
                        value[at] = new
