"""Kernels that cannot be compiled: the message says what to change, and points at the user's line. numba never shows."""

import math
import types

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.frontend.syntax import check_syntax

N = 1024
FREE = tk.generics("FREE")
HUGE = 2**70
A_LIST, A_DICT, A_SET = [1, 2], {"one": 1}, {1}


# Each kernel has one wrong line, with the expected message after `#:`. A kernel takes what its parameters are named after:
# y: an InOut partition, o: an Out partition, k: an int32 one, q: one of rank 2, x: a tensor, d: a float64 tensor,
# m: one of rank 2, n: an int.


def reads_out(o):
    o.store(o.load())  #: load: o is declared Out, which is written only; annotate it InOut to read it


def writes_in(y, x):
    x.store(y.load())  #: store: x is a tensor without tiles of its own: writing needs a partition; pass x.partition(...)


def loads_in(y, x):
    y.store(x.load())  #: load: x is a tensor without tiles of its own


def narrows(y, d):
    y.store(tk.load_tile_like(d, y))  #: store: a float64 tile does not fit y, a float32 tensor, without loss; write .astype(


def runtime_shape(y, x, n):
    y.store(tk.load(x, 0, n))  #: load: the tile shape must be known when the kernel is compiled: make it a generic


def list_that_changes(y):
    parts = [y.load()]
    parts.append(y.load())  #: a tuple has no attribute append: nothing changes a list or tuple in a kernel; make another
    y.store(parts[0])


def odd_shape(y):
    y.store(tk.zeros(1000))  #: zeros: every extent of a tile is a power of two; 1000 in 1000 is not


def float_shape(y):
    y.store(tk.zeros((1024.0,)))  #: zeros: a tile shape is an int or a tuple of ints, not


def other_rank(y, m):
    y.store(tk.load_tile_like(m, y))  #: load_tile_like: m has 2 dimensions, y has 1; use tk.load with an index of its own


def index_rank(y, x):
    y.store(tk.load(x, (0, 0), N))  #: load: 2 indices for x, which has 1 dimensions


def index_float(y, x):
    y.store(tk.load(x, 1.5, N))  #: load: a tile index is an int or a tuple of ints, not a scalar (float)


def other_shape(y):
    y.store(y.load() + tk.zeros(512))  #: +: tiles of shapes (1024,) and (512,) do not match


def stores_other_shape(y):
    y.store(tk.zeros(512))  #: store: a tile of shape (512,) into y, whose tiles are (1024,)


def stores_text(y):
    y.store("one")  #: store: the value is a tile or a scalar, not the string 'one'


def missing_argument(y, x):
    y.store(tk.load(x, 0))  #: load: missing a required argument: 'shape'; it is called as load(array, index, shape, *


def unknown_keyword(y, x):
    y.store(tk.load(x, 0, N, padding="nan"))  #: load: got an unexpected keyword argument 'padding'


def unknown_padding(y, x):
    y.store(tk.load(x, 0, N, padding_mode="edge"))  #: load: padding_mode is one of 'zero', 'neg_zero', 'nan', 'inf', '-inf', not


def integer_padding(k):
    k.store(tk.load(k, 0, N, padding_mode="nan"))  #: load: padding_mode 'nan' needs a floating-point tensor; k is int32


def runtime_axis(y, n):
    y.store(tk.bid(n))  #: bid: the axis is 0, 1 or 2, known when the kernel is compiled, not a value that is computed


def far_axis(y):
    y.store(tk.num_blocks(3))  #: num_blocks: the axis is 0, 1 or 2, known when the kernel is compiled, not 3


def signed_with_unsigned(k):
    k.store(k.load() + k.load().astype(tk.uint32))  #: +: no common dtype of int32 and uint32; cast one of them with .astype(...)


def bool_arithmetic(y):
    y.store((y.load() > 0) + 1 > 1)
    y.store((y.load() > 0) + (y.load() > 1))  #: +: bool tiles have no arithmetic; cast with .astype(tk.int32), or use & | ~


def float_bits(y):
    y.store(y.load() & 1)  #: &: needs bool or integer tiles, not float32


def integer_exp(k):
    k.store(tk.exp(k.load()))  #: exp: needs a floating-point tile, not int32; cast with .astype(tk.float32)


def scalar_exp(y):
    y.store(tk.exp(1.0))  #: exp: needs a tile, not a scalar (float); for a scalar use math.exp


def no_condition(y):
    y.store(tk.where(y.load(), 1.0, 0.0))  #: where: the condition is a bool tile, such as the result of a comparison


def no_dtype(y):
    y.store(y.load().astype("complex64"))  #: astype: 'complex64' is not a dtype of tilekit; there are bool, int8,


def bool_range(y):
    y.store(tk.arange(N, dtype=tk.bool_))  #: arange: a range of bool does not exist


def truth(y):
    if y.load() > 0:  #: if: a tile has no single truth value: use tk.where(condition, x, y) to choose by element
        y.store(1)


def iterates(y):
    for t in y.load():  #: for: a tile cannot be iterated over
        y.store(t)


def indexes(y):
    y.store(y.load()[0])  #: []: of a tile's elements none can be picked


def multiplies_matrices(q):
    q.store(q.load() @ tk.zeros((16, 32)))  #: @: shapes (32, 32) and (16, 32) do not fit: rows of 32 elements meet columns of 16


def tile_attribute(y):
    y.store(y.load().sum())  #: a tile has no attribute sum: write tk.sum(x)


def tensor_attribute(y):
    y.store(y.rows)  #: a tensor in a kernel has no attribute rows; there are shape, dtype, ndim, tile_shape, and the methods


def tensor_arithmetic(y):
    y.store(y + 1)  #: a tensor in a kernel has no +: load a tile of it


def tensor_assignment(y):
    y[0] = 1.0  #: a tensor in a kernel has no assignment to an index


def numpy_function(y):
    y.store(np.exp(y.load()))  #: exp does not take tiles: the operations on tiles are tk.*


def undefined_name(y):
    y.store(no_such_name + 1)  #: no_such_name is not defined  # noqa: F821


def two_types(y, n):
    total = 0.0
    for i in range(n):
        total = total + y.load() * i  #: total is a scalar (float) and a float32 tile of shape (1024,): on every path through
    y.store(total)


def returns(y):
    return y.load()  #: a kernel returns nothing: store the result into a partition


def catches(y):
    try:  #: kernels cannot raise or catch exceptions
        y.store(1)
    except ValueError:
        y.store(2)


def raises(y):
    raise ValueError("no")  #: kernels cannot raise or catch exceptions


def asserts(y):
    assert y.ndim == 2, "rows"  #: assert: the condition does not hold: rows


def enters(y):
    with open("file"):  #: a with block does not exist in kernels
        y.store(1)


def yields(y):
    yield y.load()  #: a kernel is a plain function: async, await and yield belong on the host


def builds_dict(y):
    names = {"one": 1}  #: dictionaries do not exist in kernels
    y.store(names["one"])


def builds_set(y):
    y.store(len({1, 2}))  #: sets do not exist in kernels


def comprehends(y):
    y.store([2 * i for i in range(tk.bid(0))][1])  #: a comprehension goes over a tuple, or over a range whose bounds are known


def formats(y):
    tk.print(f"{y.ndim}")  #: formatted strings do not exist in kernels: pass the parts to tk.print one by one


def imports(y):
    import math  #: a kernel cannot import: import at the top of the file

    y.store(math.pi)


def assigns_global(y):
    global N  #: a kernel sees module and enclosing variables as constants: it cannot assign to them
    N = 1


def compares_in_a_chain(y):
    if 0 < y.load() < 1:  #: if: a tile has no single truth value: use tk.where(condition, x, y) to choose by element
        y.store(1)


def joins_by_and(y):
    t = y.load()
    y.store(tk.where(t > 0 and t < 1, t, 0))  #: if: a tile has no single truth value: use tk.where(condition, x, y) to choose


def joins_by_or(y):
    t = y.load()
    y.store(tk.where(t > 0 or t < 1, t, 0))  #: if: a tile has no single truth value: use tk.where(condition, x, y) to choose


def negates_a_tile(y):
    t = y.load()
    y.store(tk.where(not t, 1, 0))  #: if: a tile has no single truth value: use tk.where(condition, x, y) to choose


def adds_up_a_tile_in_a_scalar(y):
    s = 0.0
    for _ in range(4):
        s += tk.sum(y.load())  #: s is a scalar (float) and a float32 tile of shape (): on every path
    y.store(s)


def makes_a_tile_an_int(y):
    y.store(int(tk.sum(y.load())))  #: int does not take tiles: cast with .astype(tk.int32); of one element write .item()


def makes_a_tile_a_float(y):
    y.store(float(y.load()))  #: float does not take tiles: cast with .astype(tk.float32); of one


def looks_for_a_value(y):
    if y.load() in (1, 2):  #: if: a tile has no single truth value: use tk.where(condition, x, y) to choose by element
        y.store(1)


def asks_for_the_length(y):
    y.store(len(y.load()))  #: len: a tile has no len; its extents are tile.shape


def counts_to_a_tile(y):
    for i in range(y.load()):  #: range does not take tiles: the operations on tiles are tk.*
        y.store(i)


def assigns_an_element(y):
    t = y.load()
    t[0] = 1.0  #: []: elements cannot be assigned to: tile operations work on all its elements at once; use tk.where or tk.insert
    y.store(t)


def slices(y):
    y.store(y.load()[1:3])  #: []: of a tile's elements none can be picked: [:, None], [None] and [..., None] insert dimensions


def picks_by_mask(y):
    t = y.load()
    y.store(t[t > 0])  #: []: of a tile's elements none can be picked: [:, None], [None] and [..., None] insert dimensions


def unpacks(y):
    a, b = y.load()  #: a tile cannot be iterated over: tile operations work on all its elements at once
    y.store(a + b)


def wrong_axis(y):
    y.store(tk.sum(y.load(), 1))  #: sum: axis 1 of a tile with 1 dimensions; there are -1 to 0


def wrong_permutation(y):
    y.store(tk.permute(y.load(), (1, 0)))  #: permute: axis 1 of a tile with 1 dimensions; there are -1 to 0


def reshapes_to_another_size(y):
    y.store(tk.reshape(y.load(), (32, 16)))  #: reshape: a tile of shape (1024,) has 1024 elements, one of shape (32, 16)


def joins_other_shapes(y):
    y.store(tk.cat((y.load(), tk.zeros(512)), 0))  #: cat: takes two tiles of one shape, so that the extents of the result are


def broadcasts_to_less(y):
    y.store(tk.broadcast_to(y.load(), 512))  #: broadcast_to: a tile of shape (1024,) does not broadcast to (512,)


def extracts_beyond(y):
    y.store(tk.extract(y.load(), 2, 512))  #: extract: index


def inserts_too_much(y):
    y.store(tk.insert(y.load(), 0, tk.zeros(2048)))  #: insert: parts of shape (2048,) of a tile of shape (1024,)


def stores_wider(y):
    y.store(y.load().astype(tk.float64))  #: store: a float64 tile does not fit y, a float32 tensor, without loss; write .astype(


def item_of_many(y):
    y.store(y.load().item())  #: item: a tile of shape (1024,) has more than one element; reduce it first (tk.sum, tk.max...)


def misspelled(y):
    y.store(tk.sqrtt(y.load()))  #: tk.sqrtt does not exist; did you mean sqrt?


def unbound_generic(y):
    y.store(tk.zeros(FREE))  #: generic FREE is not bound: give it a value with .generics(FREE=...)


def divides_by_zero(y):
    y.store(1 / 0)  #: 1 / 0: division by zero


def gathers_by_float(y, x):
    y.store(tk.gather(x, y.load()))  #: gather: indices are integer tiles and ints, one for each dimension of the tensor, not


def gathers_in_two_dimensions(y, x):
    t = tk.arange(N)
    y.store(tk.gather(x, (t, t)))  #: gather: 2 indices for x, which has 1 dimensions


def scatters_into_an_input(y, x):
    tk.scatter(x, tk.arange(N), y.load())  #: scatter: x is a tensor that is only read


def stores_a_tuple(y):
    y.store(y.shape)  #: store: the value is a tile or a scalar, not


def adds_none(y):
    y.store(y.load() + None)  #: +: operands are tiles and scalars, not


def adds_a_complex_number(y):
    y.store(y.load() + 1j)  #: +: operands are tiles and scalars, not a complex


def takes_many(y):
    def first(**values):  #: **values does not exist in kernels, which have no dictionaries: give each parameter a name
        return values["a"]

    y.store(first(a=1.0))


def recurses(y):
    def down(n):  #: down calls itself: recursion does not exist in kernels; write a loop
        return down(n - 1) if n > 0 else 1.0

    y.store(down(3))


def assigns_within(y):
    y.store(1.0 if y.ndim == 1 else (t := 2.0))  #: (t := 2.0) stands where it may not be reached, or more than  # noqa: F841


def computes_strings(y):
    y.store(len("one".upper()))  #: strings in a kernel are constants: nothing is computed with them


def defines_a_class(y):
    class Pair:  #: a class cannot be defined in a kernel
        pass

    y.store(1)


def deletes(y):
    t = y.load()
    del t  #: del does not exist in kernels


def generates(y):
    y.store(sum(i for i in range(3) if i > tk.bid(0)))  #: what a comprehension leaves out must be known when the kernel is


def matches(y):
    match y.ndim:  #: match does not exist in kernels: use if and elif
        case 1:
            y.store(1)


def streams_outside_of_a_loop(y, x):
    tiles = tk.pipelined(x.tiles(32))  #: pipelined: stands in a for statement: for ta, tb in tk.pipelined(...):
    for t in tiles:
        y.store(tk.sum(t))


def streams_counted(y, x):
    for _, t in zip(x.tiles(32), tk.pipelined(x.tiles(32))):  #: pipelined: stands in a for statement: for ta, tb in tk.pipelined(
        y.store(tk.sum(t))


def no_streams(y):
    for t in tk.pipelined():  #: pipelined: at least one stream of tiles
        y.store(t)


def streams_of_a_tensor(y, x):
    for t in tk.pipelined(x):  #: pipelined: a stream of tiles is a row such as x.tiles((BM, BK))[i, :], or all of x.tiles((BM
        y.store(tk.sum(t))


def streams_of_one_tile(y, x):
    for t, _ in tk.pipelined(x.tiles(32)[0], x.tiles(32)):  #: pipelined: a stream of tiles is a row such as
        y.store(tk.sum(t))


def streams_of_a_number(y, x, n):
    for t, _ in tk.pipelined(x.tiles(32), n):  #: pipelined: a stream of tiles is a row such as x.tiles((BM, BK))[i, :], or
        y.store(tk.sum(t))


def one_stage(y, x):
    for t in tk.pipelined(x.tiles(32), stages=0):  #: pipelined: stages is an int from 1 to 16, or None, not 0
        y.store(tk.sum(t))


def too_many_stages(y, x):
    for t in tk.pipelined(x.tiles(32), stages=17):  #: pipelined: stages is an int from 1 to 16, or None, not 17
        y.store(tk.sum(t))


def stages_as_text(y, x):
    for t in tk.pipelined(x.tiles(32), stages="3"):  #: pipelined: stages is an int from 1 to 16, or None, not '3'
        y.store(tk.sum(t))


def stages_at_run_time(y, x, n):
    for t in tk.pipelined(x.tiles(32), stages=n):  #: pipelined: stages is a constant, known when the kernel is compiled
        y.store(tk.sum(t))


def specialised_by_number(y, x):
    for t in tk.pipelined(x.tiles(32), warp_specialize=1):  #: pipelined: warp_specialize is True, False or None, not 1
        y.store(tk.sum(t))


def specialised_at_run_time(y, x, n):
    for t in tk.pipelined(x.tiles(32), warp_specialize=n > 1):  #: pipelined: warp_specialize is a constant, known when the
        y.store(tk.sum(t))


def unknown_option(y, x):
    for t in tk.pipelined(x.tiles(8), d=3):  #: pipelined: there is no option d; there are stages, warp_specialize, rotate and
        y.store(tk.sum(t))


def unpacks_with_a_star(y):
    a, *b, c = (1,)  #: there are 2 names to assign to, and the tuple has fewer values
    y.store(a + b[0] + c)


def unpacks_with_a_star_in_a_loop(y):
    for a, *_ in (y.load(),):  #: a tile cannot be iterated over: tile operations work on all its elements at once
        y.store(a)


def goes_back_over_tiles(y, x):
    for t in reversed(x.tiles(8)):  #: reversed: goes over tuples, and over ranges with one or two bounds; of anything else count
        y.store(tk.sum(t))


def stores_a_huge_int(y):
    y.store(2**70)  #: 1180591620717411303424 does not fit into 64 bits: ints in a kernel are from -2**63 to 2**64 - 1


def adds_a_huge_int(y):
    y.store(y.load() + 2**70)  #: 1180591620717411303424 does not fit into 64 bits


def computes_a_huge_int(y, n):
    m = n - HUGE  #: 1180591620717411303424 does not fit into 64 bits
    y.store(m)


def goes_below_64_bits(y):
    m = -(2**63) - 1  #: -9223372036854775809 does not fit into 64 bits
    y.store(m)


def shifts_out_of_64_bits(y):
    y.store(1 << 400)  #: an int of 401 bits does not fit into 64 bits


def counts_beyond_64_bits(y):
    for i in range(2**64):  #: 18446744073709551616 does not fit into 64 bits
        y.store(i)


def reads_a_list(y):
    y.store(A_LIST[0])  #: A_LIST is a list: kernels read tuples, so make it one, or pass it as a tensor


def goes_over_a_list(y):
    for value in A_LIST:  #: A_LIST is a list: kernels read tuples, so make it one
        y.store(value)


def assigns_to_a_list(y):
    A_LIST[0] = 3  #: A_LIST is a list
    y.store(1)


def reads_a_dictionary(y):
    y.store(A_DICT["one"])  #: A_DICT is a dictionary, which does not exist in kernels: read what you need of it into names


def looks_into_a_set(y):
    y.store(1 if y.ndim in A_SET else 2)  #: A_SET is a set, which does not exist in kernels: make it a tuple


def assigns_an_attribute(y, x):
    x.foo = 1  #: x.foo cannot be assigned to: a kernel assigns to variables, and writes to tensors with .store(...)
    y.store(1)


def assigns_a_shape(y, x):
    x.shape = (1, 2)  #: x.shape cannot be assigned to
    y.store(1)


def assigns_an_attribute_of_a_tile(y):
    t = y.load()
    t.dtype = tk.float16  #: t.dtype cannot be assigned to
    y.store(t)


def adds_to_an_attribute(y):
    y.ndim += 1  #: y.ndim cannot be assigned to
    y.store(1)


def assigns_in_a_module(y):
    math.pi = 3  #: math.pi cannot be assigned to
    y.store(math.pi)


def counts_into_an_attribute(y, x):
    for x.foo in range(3):  #: x.foo cannot be assigned to
        y.store(1)


def sorts_a_tuple(y):
    y.store(sorted((3, 1, 2))[0])  #: sorted does not exist in kernels, which call tile operations (tk.*), functions of math


def maps_a_function(y):
    y.store(map(abs, (1, 2)))  #: map does not exist in kernels


def makes_a_list(y):
    y.store(list(y.shape)[0])  #: list does not exist in kernels  # noqa: RUF015


def asks_for_any(y):
    y.store(any(y.load()))  #: any does not take tiles: the operations on tiles are tk.*, the operators and abs; write tk.any


def prints_with_keywords(y):
    print(y.ndim, sep="")  #: print takes no keywords in a kernel  # noqa: T201
    y.store(1)


def takes_keywords_alone(y):
    add = lambda a, *, b: a + b  # noqa: E731
    y.store(add(1, 2))  #: the lambda: too many positional arguments; it is called as the lambda(a, *, b)


def calls_a_dtype(y):
    y.store(tk.float32(3))  #: tk.float32 is a dtype, which is not called: cast a tile with .astype(...), a scalar with tk.astile


def calls_a_number(y, n):
    y.store(n(1))  #: what is called here is no function: kernels call tile operations (tk.*), functions of math


def calls_a_tile(y):
    y.store(y.load()(1))  #: what is called here is no function


def calls_a_tensor(y, x):
    y.store(x(1))  #: what is called here is no function


def calls_a_tuple(y):
    t = (1, 2)
    y.store(t(0))  #: what is called here is no function


def unpacks_too_few(y, x):
    a, b = x.shape  #: there are 2 names to assign to, and the tuple has another number of values
    y.store(a + b)


def unpacks_too_many(y):
    a, b = (1, 2, 3)  #: there are 2 names to assign to, and the tuple has another number of values
    y.store(a + b)


def unpacks_a_number(y, n):
    a, b = n  #: only tuples can be unpacked in a kernel
    y.store(a + b)


def unpacks_a_number_into_an_index(y, x, n):
    y.store(tk.load(x, (*n,), (16,)))  #: only tuples can be unpacked in a kernel


def unpacks_a_tensor(y, x):
    a, b = x  #: only tuples can be unpacked in a kernel
    y.store(a + b)


def picks_beyond_a_tuple(y, x):
    y.store(x.shape[3])  #: index: the tuple has no such element


def ranges_by_keyword(y):
    for i in range(stop=3):  #: range: takes one to three ints, without keywords
        y.store(i)


def ranges_of_four(y):
    for i in range(1, 2, 3, 4):  #: range: takes one to three ints, without keywords
        y.store(i)


def ranges_to_a_quotient(y, n):
    for i in range(n / 2):  #: range: its bounds and step are ints, not floats
        y.store(i)


def ranges_by_a_computed_float(y, n):
    step = n * 0.5
    for i in range(0, 4, step):  #: range: its bounds and step are ints, not floats
        y.store(i)


def ranges_of_nothing(y):
    for i in range():  #: range: takes one to three ints, without keywords
        y.store(i)


def adds_to_none(y):
    y.store(None + 1)  #: None + 1: unsupported operand type(s) for +: None and 'int'


WRONG = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__ and callable(value)]


def expected(function):
    """The line number of the wrong line, and the message that stands on it."""
    source = KernelSource(function)
    with open(source.filename) as file:
        lines = file.read().splitlines()
    at = next(n for n in range(source.tree.lineno, source.tree.end_lineno + 1) if "#:" in lines[n - 1])
    return at, lines[at - 1].split("#: ")[1].split("  # noqa")[0]


KINDS = {"y": tk.InOut, "o": tk.Out, "k": tk.InOut, "q": tk.InOut, "x": tk.In, "d": tk.In, "m": tk.In, "n": int}


def launch(function, tensor):
    """A launch of a kernel whose tensors are of a shape and dtype that `tensor` makes them of."""
    made = {
        "y": lambda: tensor(4096).partition(1024),
        "o": lambda: tensor(4096).partition(1024),
        "k": lambda: tensor(4096, tk.int32).partition(1024),
        "q": lambda: tensor((128, 128)).partition((32, 32)),
        "x": lambda: tensor(4096),
        "d": lambda: tensor(4096, tk.float64),
        "m": lambda: tensor((128, 128)),
        "n": lambda: 3,
    }
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    annotated = types.FunctionType(function.__code__, globals(), function.__name__, None, function.__closure__)
    annotated.__annotations__ = {name: KINDS[name] for name in names}
    return tk.kernel(annotated)(*(made[name]() for name in names))


@pytest.mark.parametrize("function", WRONG, ids=lambda f: f.__name__)
def test_both_devices_refuse_in_the_same_words_at_the_same_place(function, cpu):
    with pytest.raises(tk.CompileError) as compiling:
        launch(function, api.meta).compile(target="sm_90a")
    with pytest.raises(tk.CompileError) as running:
        launch(function, lambda *of: api.zeros(*of).sync()).sync()
    lineno, message = expected(function)
    error = compiling.value
    assert message in error.reason
    assert (error.lineno, error.filename) == (lineno, __file__)
    assert "numba" not in error.reason.replace("numba.cuda.jit", "")
    assert "^" in str(error).splitlines()[-1]
    assert not any(word in str(error) for word in ("Tile(", "Tensor(", "TensorFacts", "Literal["))
    assert str(running.value) == str(error)


def counted(y, x, n):
    if n < 0:
        y.store(tk.load(x, 0, n))


def test_what_is_wrong_is_said_before_the_launch(cpu):
    """No block need come by: the path is not taken."""
    with pytest.raises(tk.CompileError, match="load: the tile shape must be known when the kernel is compiled"):
        launch(counted, lambda *of: api.zeros(*of).sync()).sync()


def fine(y):
    twice = lambda t: t * 2  # noqa: E731
    scale = math.pi
    y.store(twice(y.load()) * scale)
    return


def allowed(y):
    a, b = divmod(HUGE, 2**68)
    most, least = 2**64 - 1, -(2**63)
    y.store(a + b + most + least)


def test_ints_of_64_bits_are_allowed_and_larger_ones_until_they_are_constants(compiled, tensor):
    compiled(allowed, tensor.inout(4096, 1024))


def test_what_numba_alone_knows_is_said_without_its_text():
    from tilekit.compiler.codegen.diagnose import compile_error

    said = compile_error(RuntimeError("Frobnication of Literal[int](3) in numba.core"), KernelSource(fine))
    assert "this cannot be compiled for a GPU: kernels take numbers, tuples" in said.reason
    assert "numba" not in str(said) and isinstance(said.__cause__, RuntimeError)


def test_what_is_allowed(compiled, tensor):
    check_syntax(KernelSource(fine))
    assert compiled(fine, tensor.inout(4096, 1024)).bits == {128}
