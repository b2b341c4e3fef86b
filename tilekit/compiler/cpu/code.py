"""LLVM for the CPU: vectors and scalars, loops, scratch memory, and the function that a block of a kernel becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from llvmlite import ir
from llvmlite.binding import llvm_version_info

from tilekit import dtypes
from tilekit.compiler.cpu.kernel import PRINTER
from tilekit.compiler.cpu.machine import Machine
from tilekit.compiler.ir.nodes import Location
from tilekit.dtypes import DType

__all__ = ["Code", "Number", "f32", "f64", "i1", "i8", "i16", "i32", "i64", "pointer", "storage_type", "type_of"]

i1, i8, i16, i32, i64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
f16, f32, f64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
pointer = ir.PointerType()

Number: TypeAlias = int | ir.Value
"""An integer that is known while compiling, or an i64."""

_ALIGNMENT = 64
_SHORT_FORM = llvm_version_info >= (20, 0, 0)
_FLOATS = {dtypes.float16: f16, dtypes.float32: f32, dtypes.float64: f64}


def type_of(dtype: DType) -> ir.Type:
    """What an element is in a register. bfloat16 and 8-bit floats are their bits."""
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    return i1 if dtype == dtypes.bool_ else ir.IntType(8 * dtype.itemsize)


def storage_type(dtype: DType) -> ir.Type:
    """What it is in memory."""
    return i8 if dtype == dtypes.bool_ else type_of(dtype)


class Code:
    """The code of one block of a kernel, while it is written.

    Attributes:
        b: the builder, at the place that is being written.
        machine: what it is compiled for.
        index, grid: the block's, and how many there are along each axis; i64.
        arguments, scratch, report: pointers to the kernel's arguments (eight bytes each), to memory of the thread's own, and to
            where the block says what went wrong, and finds what prints for it. What begins the scratch memory holds nothing: what
            does not exist is read and written there.
        scratch_bytes: how much memory that is.
        functions: that are declared, or defined, in the module, by their names.
        sites: what may go wrong, and where: kinds, with what they are about, and locations.
        notes: for `explain`, what was done: a line, a word for it, and what it is about.
        location, what: where the operation stands that is being lowered, and what messages call it.
    """

    location: Location

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.module = ir.Module("kernel")
        target = machine.target()
        self.module.triple, self.module.data_layout = target.triple, str(target.target_data)
        kind = ir.FunctionType(ir.VoidType(), [pointer, *[i64] * 6, pointer, pointer])
        self.function = ir.Function(self.module, kind, "block")
        self.function.linkage = "internal"
        self.arguments, *numbers, self.scratch, self.report = self.function.args
        for argument in (self.arguments, self.scratch, self.report):
            argument.add_attribute("noalias")
        self.index, self.grid = tuple(numbers[:3]), tuple(numbers[3:])
        self._entry = self.function.append_basic_block("entry")
        start = self.function.append_basic_block("start")
        self.b = ir.IRBuilder(start)
        self._slots = ir.IRBuilder(self._entry)
        self._slots.branch(start)
        self._slots.position_before(self._entry.terminator)
        self.exit = self.function.append_basic_block("exit")
        self.functions: dict[str, ir.Function] = {}
        self.scratch_bytes = self._free = _ALIGNMENT
        self.sites: list[tuple[tuple[Any, ...], Location]] = []
        self.notes: list[tuple[Any, ...]] = []
        self.what = ""

    def finish(self) -> str:
        """The module's text, the code being whole."""
        if not self.b.block.is_terminated:
            self.b.branch(self.exit)
        ir.IRBuilder(self.exit).ret_void()
        self._deal_out()
        return str(self.module)

    def _deal_out(self) -> None:
        """The entry `run`: blocks in order, as many at a time as a chunk has, from a counter that threads share."""
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, i64, i64, i64, i64, pointer, pointer])
        run = ir.Function(self.module, kind, "run")
        arguments, counter, chunk, gx, gy, gz, scratch, report = run.args
        entry, claim, loop, following, done = (
            run.append_basic_block(name) for name in ("entry", "claim", "loop", "next", "done")
        )
        b = ir.IRBuilder(entry)
        total = b.mul(b.mul(gx, gy), gz)
        b.branch(claim)
        b.position_at_end(claim)
        first = b.atomic_rmw("add", counter, chunk, "monotonic")
        last = b.add(first, chunk)
        last = b.select(b.icmp_signed("<", last, total), last, total)
        b.cbranch(b.icmp_signed("<", first, total), loop, done)
        b.position_at_end(loop)
        at = b.phi(i64)
        at.add_incoming(first, claim)
        row = b.udiv(at, gx)
        b.call(self.function, [arguments, b.urem(at, gx), b.urem(row, gy), b.udiv(row, gy), gx, gy, gz, scratch, report])
        after = b.add(at, i64(1))
        at.add_incoming(after, following)
        # A block that fails in another thread stops this one at the end of its chunk: the counter is past the last block then.
        b.cbranch(b.icmp_signed("!=", b.load(report, typ=i64), i64(0)), done, following)
        b.position_at_end(following)
        b.cbranch(b.icmp_signed("<", after, last), loop, claim)
        b.position_at_end(done)
        b.ret_void()

    # --------------------------------------------------------------------------------------------------------------- numbers

    def number(self, value: Number) -> ir.Value:
        """As an i64."""
        return i64(value) if isinstance(value, int) else value

    def add(self, x: Number, y: Number) -> Number:
        """The sum of two indices."""
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        if isinstance(x, int) and x == 0:
            return y
        return x if isinstance(y, int) and y == 0 else self.b.add(self.number(x), self.number(y))

    def mul(self, x: Number, y: Number) -> Number:
        """The product of two indices."""
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        for one, other in ((x, y), (y, x)):
            if isinstance(one, int) and one in (0, 1):
                return other if one else 0
        return self.b.mul(self.number(x), self.number(y))

    def ceiling(self, x: Number, divisor: int) -> Number:
        """The quotient of a number that is not negative, rounded up."""
        if isinstance(x, int):
            return -(-x // divisor)
        return self.b.udiv(self.b.add(x, i64(divisor - 1)), i64(divisor)) if divisor > 1 else x

    def least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The smaller one of two i64."""
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    # --------------------------------------------------------------------------------------------------------------- vectors

    def splat(self, value: ir.Value, lanes: int) -> ir.Value:
        """A scalar in all lanes."""
        if lanes == 1:
            return value
        kind = ir.VectorType(value.type, lanes)
        if isinstance(value, ir.Constant):
            return _everywhere(value, lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        one = self.b.insert_element(undefined, value, i32(0))
        return self.b.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))

    def alike(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Values in as many lanes each as the widest has."""
        lanes = max((value.type.count for value in values if isinstance(value.type, ir.VectorType)), default=1)
        return [value if isinstance(value.type, ir.VectorType) else self.splat(value, lanes) for value in values]

    def like(self, number: Any, value: ir.Value) -> ir.Constant:
        """A constant of the type of a value."""
        kind = value.type
        return _everywhere(kind.element(number), kind.count) if isinstance(kind, ir.VectorType) else kind(number)

    def steps(self, lanes: int, kind: ir.Type = i64) -> ir.Constant:
        """0, 1, 2... in the lanes."""
        return ir.Constant(ir.VectorType(kind, lanes), [kind(n) for n in range(lanes)])

    def part(self, vector: ir.Value, start: int, lanes: int, step: int = 1) -> ir.Value:
        """Some lanes of a vector, `step` apart."""
        chosen = ir.Constant(ir.VectorType(i32, lanes), list(range(start, start + step * lanes, step)))
        return self.b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)

    def joined(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The lanes of two vectors, one behind the other."""
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(i32, 2 * x.type.count), list(range(2 * x.type.count))))

    def reversed(self, vector: ir.Value) -> ir.Value:
        """The lanes the other way round."""
        lanes = vector.type.count
        chosen = ir.Constant(ir.VectorType(i32, lanes), list(reversed(range(lanes))))
        return self.b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)

    def folded(self, vector: ir.Value, function: Any) -> ir.Value:
        """All lanes of a vector by an associative function of vectors, and of scalars."""
        lanes = vector.type.count
        while lanes > 1:
            lanes //= 2
            halves = [self.part(vector, start, lanes) for start in (0, lanes)] if lanes > 1 else [vector, vector]
            if lanes == 1:
                return function(*(self.b.extract_element(vector, i32(n)) for n in range(2)))
            vector = function(*halves)
        return vector

    @staticmethod
    def with_lanes(kind: ir.Type, like: ir.Value) -> ir.Type:
        """A type of elements with as many lanes as a value has."""
        return ir.VectorType(kind, like.type.count) if isinstance(like.type, ir.VectorType) else kind

    @staticmethod
    def mangled(kind: ir.Type) -> str:
        """How the names of LLVM's intrinsics say a type."""
        if isinstance(kind, ir.VectorType):
            return f"v{kind.count}{Code.mangled(kind.element)}"
        if isinstance(kind, ir.PointerType):
            return "p0"
        return {"half": "f16", "float": "f32", "double": "f64"}.get(str(kind), str(kind))

    def call(self, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        """Call a function of LLVM's or the C library's."""
        return self.b.call(self.declared(name, result, [a.type for a in args]), args)

    def declared(self, name: str, result: ir.Type, args: Sequence[ir.Type]) -> ir.Function:
        """A function of the module, or of another, by its name."""
        if name not in self.functions:
            self.functions[name] = ir.Function(self.module, ir.FunctionType(result, args), name)
        return self.functions[name]

    def intrinsic(self, name: str, *args: ir.Value, result: ir.Type | None = None) -> ir.Value:
        """`llvm.<name>` of the type of its first operand, or of its result and that."""
        first = args[0].type
        suffix = self.mangled(first) if result is None else f"{self.mangled(result)}.{self.mangled(first)}"
        return self.call(f"llvm.{name}.{suffix}", result or first, args)

    def by_lane(self, function: Any, *vectors: ir.Value) -> ir.Value:
        """A function of scalars, lane by lane."""
        if not isinstance(vectors[0].type, ir.VectorType):
            return function(*vectors)
        result: ir.Value | None = None
        for lane in range(vectors[0].type.count):
            one = function(*(self.b.extract_element(vector, i32(lane)) for vector in vectors))
            if result is None:
                result = ir.Constant(ir.VectorType(one.type, vectors[0].type.count), ir.Undefined)
            result = self.b.insert_element(result, one, i32(lane))
        return result

    # ---------------------------------------------------------------------------------------------------------------- memory

    def reserve(self, nbytes: int) -> int:
        """Where in the scratch memory that many bytes are free; they are until `released` ends."""
        at = self._free
        self._free += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.scratch_bytes = max(self.scratch_bytes, self._free)
        return at

    @contextmanager
    def released(self) -> Iterator[None]:
        """What is reserved while the block runs is free behind it."""
        free = self._free
        yield
        self._free = free

    def offset(self, address: ir.Value, nbytes: Number) -> ir.Value:
        """A pointer moved on."""
        if isinstance(nbytes, int) and nbytes == 0:
            return address
        return self.b.gep(address, [self.number(nbytes)], source_etype=i8)

    def slot(self, kind: ir.Type) -> ir.Value:
        """A variable of the function."""
        return self._slots.alloca(kind)

    def read(
        self,
        address: ir.Value,
        dtype: DType,
        lanes: int,
        step: Number,
        mask: ir.Value | None = None,
        other: ir.Constant | None = None,
    ) -> ir.Value:
        """Elements from memory.

        Args:
            address: of the first.
            dtype: theirs.
            lanes: how many.
            step: from one to the next, in bytes.
            mask: which of them exist; None for all.
            other: a constant, what those are that do not.
        """
        kind, align = storage_type(dtype), i32(dtype.itemsize)
        if lanes == 1:
            value = self._read_one(address, kind, mask, other)
        else:
            many = ir.VectorType(kind, lanes)
            fill = ir.Constant(many, [kind(0) if other is None else other] * lanes)
            if step == dtype.itemsize:
                if mask is None:
                    value = self.b.load(address, typ=many, align=dtype.itemsize)
                else:
                    value = self.call(f"llvm.masked.load.{self.mangled(many)}.p0", many, [address, align, mask, fill])
            elif isinstance(step, int) and step == 0:
                one = self.splat(self.b.load(address, typ=kind, align=dtype.itemsize), lanes)
                value = one if mask is None else self.b.select(mask, one, fill)
            else:
                value = self.gather(self._places(address, lanes, step), dtype, mask, other)
        return self.b.icmp_unsigned("!=", value, self.like(0, value)) if dtype == dtypes.bool_ else value

    def _read_one(self, address: ir.Value, kind: ir.Type, mask: ir.Value | None, other: ir.Constant) -> ir.Value:
        if mask is None:
            return self.b.load(address, typ=kind, align=_bytes_of(kind))
        value = self.b.load(self.b.select(mask, address, self.scratch), typ=kind, align=1)
        return self.b.select(mask, value, other)

    def _places(self, address: ir.Value, lanes: int, step: Number) -> ir.Value:
        return self.addresses(address, self.b.mul(self.steps(lanes), self.splat(self.number(step), lanes)))

    def addresses(self, address: ir.Value, offsets: ir.Value) -> ir.Value:
        """A pointer moved on by a vector of i64, in bytes."""
        first = self.splat(self.b.ptrtoint(address, i64), offsets.type.count)
        return self.b.inttoptr(self.b.add(first, offsets), ir.VectorType(pointer, offsets.type.count))

    def gather(self, places: ir.Value, dtype: DType, mask: ir.Value | None, other: ir.Constant | None = None) -> ir.Value:
        """Elements from a vector of addresses, as they are in memory; lane by lane, which is faster than CPUs' own gathers."""
        kind, lanes = storage_type(dtype), places.type.count
        vector: ir.Value = ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)
        for lane in range(lanes):
            address = self.b.extract_element(places, i32(lane))
            if mask is not None:
                address = self.b.select(self.b.extract_element(mask, i32(lane)), address, self.scratch)
            vector = self.b.insert_element(vector, self.b.load(address, typ=kind, align=1), i32(lane))
        return vector if mask is None else self.b.select(mask, vector, self.splat(kind(0) if other is None else other, lanes))

    def write(self, address: ir.Value, dtype: DType, lanes: int, step: Number, mask: ir.Value | None, value: ir.Value) -> None:
        """Elements into memory; see `read`."""
        if dtype == dtypes.bool_:
            value = self.b.zext(value, self.with_lanes(i8, value))
        align = i32(dtype.itemsize)
        if lanes == 1:
            if mask is None:
                self.b.store(value, address, align=dtype.itemsize)
            else:
                with self.b.if_then(mask):
                    self.b.store(value, address, align=dtype.itemsize)
        elif step == dtype.itemsize:
            if mask is None:
                self.b.store(value, address, align=dtype.itemsize)
            else:
                name = f"llvm.masked.store.{self.mangled(value.type)}.p0"
                self.call(name, ir.VoidType(), [value, address, align, self._veiled(mask, value)])
        else:
            self.scatter(self._places(address, lanes, step), mask, value)

    def _veiled(self, mask: ir.Value, value: ir.Value) -> ir.Value:
        """A mask for the store of a value, of which LLVM does not know that it is constant.

        Of one that lets a single lane through, LLVM 22 makes a store of one number for AVX-512, and that of as many bytes as the
        number had before it was made narrower, so that the neighbours are overwritten. No instruction comes of this.
        """
        if self.machine.vector_bytes < 64 or not isinstance(value.type.element, ir.IntType) or value.type.element.width > 32:
            return mask
        lanes = mask.type.count
        chosen = ir.Constant(ir.VectorType(i32, max(8, lanes)), [min(n, lanes) for n in range(max(8, lanes))])
        wide = self.b.shuffle_vector(mask, ir.Constant(mask.type, ir.Undefined), chosen)  # as many as a register of masks has
        same = ir.InlineAsm(ir.FunctionType(wide.type, [wide.type]), "", "=k,0")
        return self.part(self.b.call(same, [wide]), 0, lanes)

    def scatter(self, places: ir.Value, mask: ir.Value | None, value: ir.Value) -> None:
        """Elements, as they are in memory, to a vector of addresses; of equal ones the last lane's stays."""
        for lane in range(places.type.count):
            address = self.b.extract_element(places, i32(lane))
            if mask is not None:
                address = self.b.select(self.b.extract_element(mask, i32(lane)), address, self.scratch)
            self.b.store(self.b.extract_element(value, i32(lane)), address, align=1)

    def any_lane(self, mask: ir.Value) -> ir.Value:
        """Whether an i1 holds, in any lane."""
        if not isinstance(mask.type, ir.VectorType):
            return mask
        return self.call(f"llvm.vector.reduce.or.{self.mangled(mask.type)}", i1, [mask])

    def first_lane(self, mask: ir.Value) -> ir.Value:
        """The number of the first lane in which an i1 holds, an i32."""
        if not isinstance(mask.type, ir.VectorType):
            return i32(0)
        bits = self.b.bitcast(mask, ir.IntType(mask.type.count))
        wide = self.b.zext(bits, i64) if mask.type.count < 64 else bits
        return self.b.trunc(self.call("llvm.cttz.i64", i64, [wide, i1(1)]), i32)

    # ---------------------------------------------------------------------------------------------------------- control flow

    @contextmanager
    def counted(self, count: Number, step: int = 1) -> Iterator[Number]:
        """A loop over 0, `step`, 2 * `step`... below a count; what is known to have one turn is none."""
        if isinstance(count, int) and count <= step:
            if count > 0:
                yield 0
                return
            raise ValueError("a loop of no turns")
        b = self.b
        before = b.block
        head, body, end = (self.function.append_basic_block(name) for name in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        at = b.phi(i64)
        at.add_incoming(i64(0), before)
        b.cbranch(b.icmp_signed("<", at, self.number(count)), body, end)
        b.position_at_end(body)
        yield at
        at.add_incoming(b.add(at, i64(step), flags=("nsw",)), b.block)
        b.branch(head)
        b.position_at_end(end)

    def site(self, kind: str, *about: Any) -> int:
        """The number of something that may go wrong in the operation that is being lowered; see `kernel.Site`."""
        self.sites.append(((kind, *about), self.location))
        return len(self.sites) - 1

    @contextmanager
    def counters(self, counts: Sequence[int], steps: Sequence[int] | None = None) -> Iterator[tuple[Number, ...]]:
        """Loops inside of each other, see `counted`: the first one outermost."""
        with ExitStack() as stack:
            steps = [1] * len(counts) if steps is None else steps
            yield tuple(stack.enter_context(self.counted(n, step)) for n, step in zip(counts, steps, strict=True))

    def note(self, kind: str, *about: Any) -> None:
        """For `explain`: something was done in the operation that is being lowered."""
        self.notes.append((self.location.line, kind, self.what, *about))

    def check(self, wrong: ir.Value, site: int, values: Callable[[], Sequence[Number]]) -> None:
        """Where `wrong` holds, end the block, and report the site and these values, which are computed there."""
        bad, good = (self.function.append_basic_block(name) for name in ("bad", "good"))
        self.b.cbranch(wrong, bad, good)
        self.b.position_at_end(bad)
        for at, value in enumerate((site + 1, *self.index, *values())):
            self.b.store(self.number(value), self.offset(self.report, 8 * at))
        self.b.branch(self.exit)
        self.b.position_at_end(good)

    def say(self, site: int) -> ir.Value:
        """Have printed what a site says, with values in the scratch memory; whether that failed, an i1."""
        kind = ir.FunctionType(i64, [i64, pointer, i64, i64, i64])
        printer = self.b.load(self.offset(self.report, 8 * PRINTER), typ=kind.as_pointer(), align=8)
        return self.b.icmp_unsigned("!=", self.b.call(printer, [i64(site), self.scratch, *self.index]), i64(0))


class _Everywhere(ir.Constant):
    """A vector of one number, in the short form that LLVM has for it: of formulas, the long one is most of the text."""

    def _get_reference(self) -> str:
        one = self.constant[0]
        return f"splat ({one.type} {one.get_reference()})" if _SHORT_FORM else str(super()._get_reference())


def _everywhere(value: ir.Constant, lanes: int) -> ir.Constant:
    return _Everywhere(ir.VectorType(value.type, lanes), [value] * lanes)


def _bytes_of(kind: ir.Type) -> int:
    return {f16: 2, f32: 4, f64: 8}.get(kind) or max(1, kind.width // 8)
