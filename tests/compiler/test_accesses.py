"""The machine code of loads and stores: as wide as what is known allows, never in local memory."""

import re
import struct

import pytest

import tilekit as tk

TARGETS = ["sm_80", "sm_90a"]


def saxpy(y, a, x):
    y.store(a * tk.load_tile_like(x, y) + y.load())


def double(y, x):
    t = tk.load_tile_like(x, y)
    y.store(t + t)


def invert(y, x):
    y.store(~tk.load_tile_like(x, y))


def copy(y, x):
    y.store(tk.load_tile_like(x, y))


def masked(made):
    """Which kinds of access, `ld` and `st`, have predicates."""
    return set(re.findall(r"@p (ld|st)\.global", made.kernel.ptx))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_saxpy_is_128_bits_wide(compiled, tensor, dtype, target):
    made = compiled(saxpy, tensor.inout(4096, 1024, dtype), float, tensor(4096, dtype), target=target)
    assert made.accesses == {"LDG.E.128": 4, "STG.E.128": 2}
    assert not made.uses_local_memory
    assert made.kernel.shared_bytes == 0
    assert made.kernel.registers <= 40


def test_saxpy_takes_no_branch_and_no_mask(compiled, tensor):
    made = compiled(saxpy, tensor.inout(4096, 1024), float, tensor(4096))
    assert not re.search(r"\bsetp\b|\bbra\b", made.kernel.ptx)
    assert len(re.findall(r"fma\.rn\.f32", made.kernel.ptx)) == 8


def test_half_precision_is_computed_in_pairs(compiled, tensor):
    made = compiled(saxpy, tensor.inout(4096, 1024, "float16"), float, tensor(4096, "float16"))
    assert len(re.findall(r"\bHFMA2\b", made.kernel.sass)) >= 8


@pytest.mark.parametrize("dtype", [d.name for d in tk.dtypes.ALL])
def test_every_dtype_moves_16_bytes(compiled, tensor, dtype):
    kernel = invert if dtype == "bool" else copy if dtype.startswith("float8") else double
    made = compiled(kernel, tensor.out(8192, 1024, dtype), tensor(8192, dtype))
    assert made.bits == {128}
    assert not made.uses_local_memory


def test_mixed_widths_share_a_layout(compiled, tensor):
    made = compiled(saxpy, tensor.inout(8192, 1024, "float32"), float, tensor(8192, "float16"))
    assert made.bits == {64, 128}, "what is written is one access of a lane, by which a warp fills sectors"
    assert not made.uses_local_memory


@pytest.mark.parametrize(
    ("extent", "widths"),
    [(1004, {128}), (1002, {64, 128}), (1001, {32, 128}), ((1 << 33) + 3, {32, 128}), (1 << 33, {128})],
    ids=["whole vectors", "whole halves", "odd", "wide and odd", "wide"],
)
def test_only_the_edge_is_narrower(compiled, tensor, extent, widths):
    made = compiled(saxpy, tensor.inout(extent, 1024), float, tensor(extent))
    assert made.bits == widths
    assert made.accesses["LDG.E.128"] == 4
    assert not made.uses_local_memory


@pytest.mark.parametrize(("align", "bits"), [(8, 64), (4, 32)])
def test_the_address_limits_the_width(compiled, tensor, align, bits):
    assert compiled(double, tensor.out(4096, 1024, align=align), tensor(4096, align=align)).bits == {bits}


@pytest.mark.parametrize(
    ("shape", "tile", "bits"),
    [
        ((128, 128), (32, 32), 128),
        ((100, 100), (32, 32), 128),
        ((101, 101), (32, 32), 32),
        ((777, 1000), (1, 1024), 128),
        ((64, 64, 64), (4, 8, 16), 128),
        ((63, 63, 63, 62), (2, 4, 8, 16), 64),
        ((64,), (1,), 32),
        ((64,), (4,), 128),
    ],
)
def test_ranks(compiled, tensor, shape, tile, bits):
    made = compiled(double, tensor.out(shape, tile), tensor(shape))
    assert made.bits == {bits}
    assert not made.uses_local_memory


@pytest.mark.parametrize(("shape", "strides"), [((4096,), (2,)), ((4096,), (0,)), ((128, 128), (256, 2))])
def test_strided_tensors_are_read_element_by_element(compiled, tensor, shape, strides):
    tile = (1024,) if len(shape) == 1 else (32, 32)
    made = compiled(double, tensor.out(shape, tile), tensor(shape, strides=strides))
    assert {"LDG.E", "STG.E.128"} == set(made.accesses)
    assert not made.uses_local_memory


def test_column_major_tensors_are_read_and_written_along_their_columns(compiled, tensor):
    shape, strides = (128, 128), (1, 128)
    made = compiled(double, tensor.out(shape, (32, 32), strides=strides), tensor(shape, strides=strides))
    assert {"LDG.E.128", "STG.E.128"} == set(made.accesses)
    assert not made.kernel.shared_bytes
    turned = compiled(double, tensor.out(shape, (32, 32)), tensor(shape, strides=strides))
    assert made.bits == turned.bits == {128}
    assert turned.kernel.shared_bytes


def test_threads_that_hold_copies_do_not_store(compiled, tensor):
    made = compiled(double, tensor.out(64, 16), tensor(64))
    assert made.accesses == {"LDG.E.128": 1, "STG.E.128": 1}
    assert masked(made) == {"st"}


def by_index(y, x, i):
    y.store(tk.load(x, i, 1024))


def by_block(y, x):
    tk.store(y, tk.num_blocks(0) - 1 - tk.bid(0), tk.load(x, (tk.bid(0),), (1024,), padding_mode="nan"))


def test_an_index_is_checked_in_64_bits(compiled, tensor):
    made = compiled(by_index, tensor.out(4096, 1024), tensor(4096), int)
    assert re.search(r"setp\.\w+\.u64", made.kernel.ptx)
    assert masked(made) == {"ld"}
    assert made.bits == {128}


def test_a_computed_index_is_masked_and_wide(compiled, tensor):
    made = compiled(by_block, tensor.out(4096, 1024), tensor(4096))
    assert made.bits == {128}
    assert masked(made) == {"ld", "st"}
    assert "0x7fc00000" in made.kernel.ptx or "2143289344" in made.kernel.ptx


def test_a_tensor_that_the_grid_does_not_cover_is_masked(compiled, tensor):
    made = compiled(double, tensor.out(4096, 1024), tensor(4096, covered=False))
    assert made.accesses == {"LDG.E.128": 2, "STG.E.128": 2}
    assert masked(made) == {"ld"}


def accumulate(y, x, n):
    total = tk.zeros(y.tile_shape)
    for i in range(n):
        total = total + tk.load(x, i, y.tile_shape)
        if i > 3:
            total *= 0.5
    y.store(total)


def test_a_tile_stays_in_registers_around_a_loop(compiled, tensor):
    made = compiled(accumulate, tensor.out(4096, 1024), tensor(4096), int)
    assert made.bits == {128}
    assert not made.uses_local_memory


_WIDTHS = {
    "u64": 8,
    "s64": 8,
    "b64": 8,
    "f64": 8,
    "u32": 4,
    "s32": 4,
    "b32": 4,
    "f32": 4,
    "u16": 2,
    "b16": 2,
    "u8": 1,
    "b8": 1,
    "s8": 1,
}


@pytest.mark.parametrize("wide", [False, True])
def test_parameters_are_what_the_format_says(compiled, tensor, wide):
    from tilekit.compiler.facts import ScalarFacts

    def kernel(y, x, a, b, c, d):
        y.store(tk.load(x, (0, 0, 0), (4, 4, 4)) * a + b)

    shape = (1 << 32 if wide else 64, 64, 64)
    scalars = [ScalarFacts(name) for name in ("float16", "int8", "bool", "uint16")]
    made = compiled(kernel, tensor.out(shape, (4, 4, 4)), tensor(shape, strides=(2, 4, 8)), *scalars)
    sizes = [_WIDTHS[kind] for kind in re.findall(r"\.param \.(\w+) ", made.kernel.ptx)]
    form = made.kernel.param_format
    codes = [code for code in re.sub(r"\dx", "", form) if code != "<"]
    assert sizes == [struct.calcsize(code) for code in codes]
    assert struct.calcsize(form) == 8 * len(codes)


# ------------------------------------------------------------------------------------- windows, masks, gather, scatter, atomics


def product(y, x, other):
    y.store((tk.load_tile_like(x, y).astype(tk.float32) * tk.load_tile_like(other, y).astype(tk.float32)).astype(y.dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool"])
def test_tiles_inside_wait_for_no_load_where_those_at_the_edge_have_others(compiled, tensor, dtype):
    """Of one tensor after the other. Where both kinds of tiles meet, what was loaded is still in the registers of the access."""
    made = compiled(product, tensor.out(8191, 1024, dtype), tensor(8191, dtype), tensor(8191, dtype))
    blocks = re.split(r"(?m)^\.L_\S+:|BRA ", made.kernel.sass)
    wide = [block for block in blocks if re.search(r"LDG\.E\.(128|64)", block)]
    assert len(wide) == 2
    for block in wide[:1]:  # behind the second they are used
        behind = block[re.search(r"LDG\.E\.(128|64)", block).start() :]
        assert not re.search(r"\b(PRMT|HADD2|SHF|LOP3|I2F)\b", behind), behind


def reordered(y, x):
    y.store(tk.load(x, (tk.bid(1), tk.bid(0)), (32, 32), order="F"))


def test_an_order_renames_dimensions(compiled, tensor):
    made = compiled(reordered, tensor.out((128, 128), (32, 32)), tensor((128, 128)))
    assert made.bits == {128}
    assert made.kernel.shared_bytes, "rows become columns"
    column_major = compiled(reordered, tensor.out((128, 128), (32, 32), strides=(1, 128)), tensor((128, 128)))
    assert column_major.bits == {128}
    assert not column_major.kernel.shared_bytes, "nothing moves"


def some_of(y, x, keep):
    t = tk.load(x, tk.bid(0), 1024, mask=tk.load(keep, tk.bid(0), 1024), padding_value=1.0)
    tk.store(y, tk.bid(0), t, mask=t > 0.0)


def test_masked_accesses_stay_wide(compiled, tensor):
    made = compiled(some_of, tensor.out(4096, 1024), tensor(4096), tensor(4096, "bool"))
    # One warp, for a thread's vector of bools would be 16 bytes; but what is written is one access of a lane: 4 bools.
    counts = {"LDG.E": 8, "LDG.E.128": 8, "STG.E.128": 8, "STG.E": 32}
    assert made.accesses == counts, "single ones where the mask cuts a vector"
    assert not made.uses_local_memory


def least_by_value(y, x):
    t = tk.load(x, (tk.bid(0), 0), (16, 128), padding_value=-float("inf"))
    y.store(tk.max(t, 0, keepdims=True))


def least_by_name(y, x):
    t = tk.load(x, (tk.bid(0), 0), (16, 128), padding_mode="-inf")
    y.store(tk.max(t, 0, keepdims=True))


def test_a_constant_padding_is_written_ahead_of_loads(compiled, tensor):
    """What is chosen behind a load waits for it, and keeps other loads from being in flight."""
    by_value, by_name = (
        compiled(k, tensor.out((9, 125), (1, 128), "bfloat16"), tensor((129, 125), "bfloat16")).kernel.ptx
        for k in (least_by_value, least_by_name)
    )
    assert len(re.findall(r"@p ld\.global", by_value)) >= 16
    assert by_value.count("selp.b16") == by_name.count("selp.b16")


def windows(y, x):
    y.store(x.tiled_view(1024, traversal_steps=512).load(tk.bid(0)))


def odd_windows(y, x):
    y.store(x.tiled_view(1024, traversal_steps=6).load(tk.bid(0)))


@pytest.mark.parametrize(("kernel", "widths"), [(windows, {128}), (odd_windows, {64, 128})])
def test_the_step_limits_the_width_of_windows(compiled, tensor, kernel, widths):
    made = compiled(kernel, tensor.out(4096, 1024), tensor(4096))
    assert made.bits == widths
    assert not made.uses_local_memory


def row_sums(y, x):
    total = tk.zeros((4, 256))
    for t in x.tiles((4, 256))[tk.bid(0), :]:
        total += t
    y.store(tk.sum(total, 1))


def test_a_row_of_tiles_is_only_checked_across_it(compiled, tensor):
    made = compiled(row_sums, tensor.out(128, 4), tensor((128, 4096)))
    assert made.accesses["LDG.E.128"] >= 2
    assert not made.uses_local_memory
    assert len(re.findall(r"\bldu?\.global", made.kernel.ptx)) in (2, 4, 8), "once, or unrolled by NVVM"


def sliced(y, x, start, stop):
    y.store(tk.load(x.slice(0, start, stop), (tk.bid(0), 0), (4, 256)))


def test_rows_of_a_slice_are_wide(compiled, tensor):
    made = compiled(sliced, tensor.out((128, 256), (4, 256)), tensor((999, 256)), int, int)
    assert made.bits == {128}
    assert not made.uses_local_memory


def shifted(y, x):
    place = tk.bid(0) * 1024 + tk.arange(1024)
    tk.scatter(y, place, tk.gather(x, place))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_indices_of_neighbours_make_wide_accesses(compiled, tensor, dtype, target):
    made = compiled(shifted, tensor(4096, dtype, role="inout"), tensor(4096, dtype), target=target)
    registers = {"float32": 8, "float16": 8, "float64": 8}[dtype]
    vectors = registers * {"float32": 4, "float16": 2, "float64": 8}[dtype] // 16
    assert made.accesses["LDG.E.128"] == made.accesses["STG.E.128"] == vectors
    assert not made.uses_local_memory
    # At the edge each element has a predicate. That the indices are neighbours is known: nothing compares them.
    compared = re.findall(r"\bsetp\.(?:eq|ne)\b", made.kernel.ptx.replace("setp.ne.b32 p,", ""))
    assert len(compared) <= 2


def rows_of(y, table, ids):
    rows = tk.load(ids, tk.bid(0), 4)
    y.store(tk.gather(table, (rows[:, None], tk.arange(256))))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_table_are_gathered_in_vectors(compiled, tensor, target):
    made = compiled(rows_of, tensor.out((128, 256), (4, 256)), tensor((999, 256)), tensor(128, "int32"), target=target)
    assert made.accesses["LDG.E.128"] >= 2
    assert made.bits == {32, 128}
    assert not made.uses_local_memory


def count(y, x):
    tk.atomic_add(y, tk.load(x, tk.bid(0), 1024), 1)


def counted(y, x, before):
    before.store(tk.atomic_add(y, tk.load(x, tk.bid(0), 1024), 1))


def atomics(made):
    return set(re.findall(r"\b((?:ATOM|RED)[.\w]*)", made.kernel.sass))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "float64", "float16"])
def test_an_atomic_whose_result_is_unused_is_a_reduction(compiled, tensor, dtype, target):
    y, x = tensor(256, dtype, role="inout"), tensor(4096, "int32")
    made = compiled(count, y, x, target=target)
    assert all(name.startswith("RED") for name in atomics(made))
    assert not made.uses_local_memory
    used = compiled(counted, y, x, tensor.out(4096, 1024, dtype), target=target)
    assert all(name.startswith("ATOM") for name in atomics(used))
    assert not used.uses_local_memory


def putting(order):
    def put(y, x):
        tk.atomic_xchg(y, tk.load(x, tk.bid(0), 1024), 1, memory_order=order)

    return put


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "bits"), [("int32", 32), ("float32", 32), ("uint64", 64), ("float64", 64)])
@pytest.mark.parametrize("order", ["relaxed", "release", "acquire"])
def test_an_exchange_whose_result_is_unused_is_a_store(compiled, tensor, dtype, bits, order, target):
    made = compiled(putting(order), tensor(256, dtype, role="inout"), tensor(4096, "int32"), target=target)
    stores = re.findall(rf"\bst\.{order}\.gpu\.global\.b{bits}\b", made.kernel.ptx)
    if order == "acquire":  # which a store has not
        assert atomics(made) and not stores
    else:
        assert stores and not atomics(made)


def add_rows(y, x, ids):
    tk.atomic_add(y, (tk.load(ids, tk.bid(0), 4)[:, None], tk.arange(256)), tk.load(x, (tk.bid(0), 0), (4, 256)))


@pytest.mark.parametrize(("dtype", "name"), [("float32", "F32x4"), ("float16", "F16x8"), ("bfloat16", "BF16x8")])
def test_rows_are_added_in_vectors_on_sm_90(compiled, tensor, dtype, name):
    facts = tensor((999, 256), dtype, role="inout"), tensor((128, 256), dtype), tensor(128, "int32")
    made = compiled(add_rows, *facts)
    assert any(name in found for found in atomics(made))
    assert not made.uses_local_memory
    older = compiled(add_rows, *facts, target="sm_80")
    assert not any("x4" in found or "x8" in found for found in atomics(older))
    assert not older.uses_local_memory


def add_tile(y, x):
    at = tk.bid(0), tk.bid(1)
    tk.atomic_add_tile(y, at, tk.load(x, at, (32, 64)))


def add_first_tile(y, x):
    tk.atomic_add_tile(y, (0, 0), tk.load(x, (tk.bid(0), tk.bid(1)), (32, 64)))


def branches(made):
    """How many there are round atomic additions: predicates of their own, and jumps over several."""
    return len(re.findall(r"@%?p\S* red|@%p\d+ bra", made.kernel.ptx))


@pytest.mark.parametrize(
    ("dtype", "new", "old"),
    [
        ("float32", "v4.f32", "f32"), ("float16", "noftz.v4.f16x2", "noftz.f16x2"), ("bfloat16", "noftz.v4.bf16x2", None),
        ("float64", "f64", "f64"), ("int32", "u32", "u32"), ("uint64", "u64", "u64"),
    ],
)  # fmt: skip
def test_tiles_are_added_in_vectors_where_a_gpu_has_such(compiled, tensor, dtype, new, old):
    facts = tensor((256, 256), dtype, role="inout"), tensor((256, 256), dtype)
    for target, wanted in {"sm_90a": new, "sm_80": old}.items():
        made = compiled(add_tile, *facts, target=target)
        found = set(re.findall(r"red\.relaxed\.gpu\.global\.add\.(\S+) ", made.kernel.ptx))
        assert found == ({wanted} if wanted else set())
        assert not made.uses_local_memory
        assert not wanted or branches(made) == 1, "there is such a tile, or not: one branch round all of it"
    assert not branches(compiled(add_first_tile, *facts)), "there is a first tile"


@pytest.mark.parametrize(
    ("shape", "inside", "edge"),
    [((250, 256), "F32x4", "F32x4"), ((256, 252), "F32x4", "F32x4"), ((256, 250), "F32x2", "F32x2"), ((256, 251), "F32", "F32")],
    ids=str,
)
def test_tiles_inside_are_added_without_predicates(compiled, tensor, shape, inside, edge):
    made = compiled(add_tile, tensor(shape, role="inout"), tensor(shape))
    accesses = re.findall(r"(@p )?red\S+add\S*", made.kernel.ptx)
    assert accesses.count("") >= len(accesses) // 2, "of a tile inside, all"
    assert {re.search(r"F32(x\d)?", name)[0] for name in atomics(made)} == {inside, edge}
    assert not made.uses_local_memory


def add_product(y, x):
    t = tk.mma(tk.load(x, (0, tk.bid(0)), (128, 64)), tk.load(x, (tk.bid(0), 0), (64, 128)), tk.zeros((128, 128)))
    tk.atomic_add_tile(y, (0, 0), t)


def test_products_are_added_as_they_lie(compiled, tensor):
    made = compiled(add_product, tensor((256, 256), role="inout"), tensor((256, 256), "float16"))
    assert any("F32x2" in name for name in atomics(made)), "four threads fill a sector"
    assert not made.uses_local_memory


def tickets(y, seen):
    seen.store(tk.atomic_add(y, 0, 1))


def unseen(y, seen):
    tk.atomic_add(y, 0, 1)
    seen.store(1)


def test_what_one_thread_got_reaches_the_others(compiled, tensor):
    facts = tensor(1, "int32", role="inout"), tensor.out(4096, 1024, "int32")
    made = compiled(tickets, *facts)
    assert "BAR.SYNC" in made.kernel.sass
    assert "BAR.SYNC" not in compiled(unseen, *facts).kernel.sass


# ------------------------------------------------------------------------------ hints to the caches, what is known to exist


def hinted(y, x, w):
    t = tk.load_tile_like(x, y, eviction_policy="no_allocate") + tk.load(w, 0, 1024, eviction_policy="evict_last")
    y.store(t, eviction_policy="evict_first")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_hint_is_in_the_instruction(compiled, tensor, dtype, target):
    made = compiled(hinted, tensor.out(4096, 1024, dtype), tensor(4096, dtype), tensor(1024, dtype), target=target)
    assert made.bits == {128}
    assert {"LDG.E.NA.128", "LDG.E.EL.128", "STG.E.EF.128"} == set(made.accesses)
    found = set(re.findall(r"(ld|st)\.global\.(\S+?)\.v\d", made.kernel.ptx))
    assert found == {("ld", "L1::no_allocate"), ("ld", "L1::evict_last"), ("st", "L1::evict_first")}


def test_a_hint_at_the_edge(compiled, tensor):
    made = compiled(hinted, tensor.out(1001, 1024), tensor(1001), tensor(1001))
    found = re.findall(r"(@p )?(ld|st)\.global\.(L1::\w+)?", made.kernel.ptx)
    hints = [("ld", "L1::no_allocate"), ("ld", "L1::evict_last"), ("st", "L1::evict_first")]
    assert set(found) == {(where, *hint) for where in ("", "@p ") for hint in hints}, "inside and at the edge"


def hinted_views(y, x, i):
    t = x.tiled_view(1024).load(tk.bid(0), eviction_policy="evict_first")
    places = tk.gather(i, tk.bid(0) * 1024 + tk.arange(1024), eviction_policy="evict_last")
    tk.scatter(y, places, t, eviction_policy="no_allocate")


def test_hints_of_views_and_indexed_elements(compiled, tensor):
    made = compiled(hinted_views, tensor.inout(4096, 1024), tensor(4096), tensor(4096, "int32"))
    kinds = {(name[:3], hint) for name in made.accesses for hint in re.findall(r"\.(EF|EL|NA)\b", name)}
    assert kinds == {("LDG", "EF"), ("LDG", "EL"), ("STG", "NA")}
    assert all(re.search(r"\.(EF|EL|NA)\b", name) for name in made.accesses)


def no_hint(y, x):
    y.store(tk.load(x, tk.bid(0), 1024, eviction_policy="evict_normal"))


def test_no_hint(compiled, tensor):
    assert "L1::" not in compiled(no_hint, tensor.out(4096, 1024), tensor(4096)).kernel.ptx


def by_constant(y, x):
    y.store(tk.load(x, 0, 1024) + tk.load(x, 3, 1024))


def by_constants(y, x):
    t = x.tiled_view((8, 32)).load((1, tk.bid(0))) + tk.load(x, (tk.bid(0), 1), (8, 32), order="F")
    y.store(t.reshape(y.tile_shape))


@pytest.mark.parametrize(
    ("extent", "kinds"), [(4096, set()), (8192, set()), (1024, {"ld"}), (1000, {"ld"}), (2048 + 1024, {"ld"})]
)
def test_a_constant_index_that_is_inside_takes_no_mask(compiled, tensor, extent, kinds):
    made = compiled(by_constant, tensor.out(4096, 1024), tensor(extent))
    assert masked(made) == kinds
    assert made.bits == {128}


def test_constants_along_some_dimensions(compiled, tensor):
    def comparisons(shape):
        made = compiled(by_constants, tensor.out(4096, 256), tensor(shape))
        return len(re.findall(r"\bsetp\.", made.kernel.ptx))

    # The tile of index 1 starts at row 32: of 64 rows it is one.
    assert comparisons((64, 64)) < comparisons((32, 64))


def test_no_element_of_an_empty_tensor_is_known_to_exist(compiled, tensor):
    made = compiled(by_constant, tensor.out(4096, 1024), tensor(0))
    assert masked(made) == {"ld"}
