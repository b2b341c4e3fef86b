"""How long a product by warpgroups takes, by a model of the GPU, and the tiles, parts and clusters with which it is done first.

In clocks: the tensor cores multiply and add so many elements, and wait so long in each step; so many bytes come from the L2 cache
to each multiprocessor, whether it asks for them or another block of its cluster, and to all of them; and so many from memory.
These go on at the same time, and delay each other the more, the more alike they are, and the fewer stages lie between them (a
norm, of higher order with more of these); what comes before and after the loop is not hidden. The numbers are an H200's: fitted
to random products with all tiles and numbers of parts, to some of which one side is short, and to many with many ways. Of those
that still hold (115, 9 and 515, in tests/kernels/gemm) the choices are 2, 5 and 2 to 3 % slower than the best.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tilekit.kernels._gemm.abreast import columns_of
from tilekit.kernels._gemm.stream_k import StreamK, stream_k
from tilekit.kernels._staging import SECTOR

__all__ = [
    "CLUSTER", "FEW_ROWS", "LARGE", "MOST_SPLITS", "STAGED_BYTES", "Product", "Way", "cheapest", "clocks", "held", "together",
]  # fmt: skip

STAGED_BYTES = 128  # along K: what one swizzle covers
ACCESS = 16  # bytes that a thread stores at once
MOST_SPLITS = 64
LARGE = 128 * 128  # elements of a tile
# Of a multiprocessor, in a clock: products of elements, by the bytes that each has. A step along K takes so many clocks at least,
# waiting for the tiles, and saying that they were read. So many bytes go to and from shared memory.
_PRODUCTS, _WAITING, _SHARED = 4200, 50, 175
# Clocks for which a tile is on its way, as others are of the stages of a block, of which some are being read: 4, or up to 8 where
# it is alone on a multiprocessor, of so many bytes together (see `compiler.nvidia.multibuffer`).
_COMING, _HELD, _STAGES, _STAGES_ALONE, _ROOM = 870, 2, 4, 8, 224 << 10
# The order of the norm, and how fast it grows with the stages beyond four.
_ORDER, _DEEPER = 3.75, 0.2
# Bytes that come to a multiprocessor in a clock, of what it asks the L2 cache for, and of what another one has asked for; and
# bytes to all of them, fewer where rows lie across its lines, or along K those of both operands.
_FETCHED, _ARRIVING, _CACHED, _ACROSS, _ALONG = 85, 138, 13500, 5200, 3570
# So many times as much where rows of 128 bytes are parts of two lines each, of operands across K, and of others: 744 x 256 x
# 2480 takes 8.4 us with `a` along K, and 11 with its transpose, or 8.6 where two blocks load that; 1000 x 1000 x 1000 9.8, and
# 8.2 where two do.
_TWO_LINES, _SHIFTED = 1.81, 1.47
# For each column of a tile of `b` that is turned over in a step, which the next product waits for.
_TURNING = 1.95
# Rows that a tile has beyond a matrix are zeros, which come so slowly to blocks that load it together: with tiles of 128 x 128,
# 256 x 8192 x 8192 took 50 us, and with 224, 194, 160, 129 rows 51, 73, 83, 93.
_BEYOND = 1000
# The same where short sums of 8-bit floats are added up: by one warpgroup, and by several, of which another multiplies meanwhile.
_SUMMING_WAITS, _SUMMING, _SUMMING_TOGETHER = 105, 1.95, 1.24
# Clocks before the first tile has come and after the last, with `_STORED` elements of the result written in one; fewer by the
# factors of a transpose, whose rows lie across what a warp has: of rows that begin between two sectors of the cache, and the last
# if no access of 16 bytes fits them.
_LATENCY, _STORED, _TURNED, _TURNED_BETWEEN, _TURNED_ODD = 2400, 7.5, 1.2, 1.3, 2.5
# Where rows begin between two sectors, the same for tiles whose rows several instructions store. (34 x 5776 x 2824 x 16 takes 356
# us with 128 x 256, and 378 with 128 x 128, of 8 warps; 505 to 610 with 64 rows, of 4.)
_SPLIT_ROWS = 1.35
# What is stored of a line of the cache at each end of a row of a tile, where rows begin anywhere in one: so much of a line.
_PART = 0.63
# Of a GPU: bytes a clock from memory or to it, of operands that are not in the L2 cache; of so many bytes all are, and of so many
# none. And clocks from the end of one kernel to the work of the next.
_MEMORY, _STAYS, _GONE, _NEXT = 2400, 36 << 20, 46 << 20, 5500
# Bytes a clock that an operand is read at from that cache, once for each block that loads it, but no more often than that: others
# load it at the same time. (128 x 4096 x 4096 takes 9.1 us with tiles of 128 x 64, and 11.9 with 64 x 128, which load the larger
# operand twice; 331 x 4096 x 4096 24.4 with 128 x 96 of the transpose, four times, and 19.1 with 64 x 176, twice.)
_NEAR, _APART = 5450, 4
# Of tiles next to each other, which are stored one after the other: the clocks in which a block finds out which the next ones
# are, and its warps wait for each other before they store, what short sums do not hide.
# (Without these, 12088 x 304 x 8 in three turns would take 4.7 us, and took 9; 11336 x 1904 x 24 in seven 15.9, and took 21.2.)
_BETWEEN = 1000
# Tiles for operands in stages of shared memory: rows, columns, warps. Each warpgroup has 64 rows, or more.
_STAGED = ((128, 256, 8), (128, 128, 8), (64, 256, 4), (64, 128, 4), (128, 64, 8), (64, 64, 4), (64, 32, 4))
_MOST_HELD = 144  # columns of a tile of four warps, of which a multiprocessor has registers for two
_WIDEST_SUMMED = 208  # columns whose sums, and short ones of 8-bit floats, fit the registers
# Tall tiles load the least for what they multiply: 16384 x 8192 x 8192 takes 2.81 ms with 256 x 192, and 2.96 with 128 x 256;
# 976 x 14664 x 13488 546 us with 256 x 160, and 583. The sums of those with more than so many columns take so many of a thread's
# registers that they are stored as they are, 16 bytes at a time; those of more elements than others have are not split, and their
# products take so much longer for each.
_TALL_ROWS, _ANY_EPILOGUE, _WIDEST, _SPLIT, _TALL = 256, 128, 192, 128 * 256, 1.0
# Tiles of up to so many columns (of few rows the transpose is taken, see `products`): rows and warps, and the most bytes of a
# stage, of which long ones have more along K. Of an eighth of these, zeros may come for what is beyond the end of K.
FEW_ROWS = 32
_LEAST_COLUMNS, _FEW_TILES, _STAGE, _MOST_DEPTH, _LINE = 16, ((64, 4), (128, 8), (256, 8)), 32 << 10, 512, 128
# Blocks that share the turns of a tile, in a cluster, have so many stages at least. They get a piece of its columns each, of so
# many, and the others' sums of that: so many bytes in a clock, or more where the first gets all. So many of the multiprocessors
# have room for clusters of two, of three, ...
_LEAST_STAGES, _LEAST_PIECE, _SENT, _GATHERED, _PLACES = 3, 8, 16, 75, {2: 1.0, 3: 0.88, 4: 0.9, 6: 0.77, 8: 0.9}
# With tiles of so many bytes for each element of a large one beside it, its accumulator does not fit the registers.
_BESIDE = 4
# Blocks next to each other, or one below the other, that load a tile once for all of them. Of large tiles, two do if they visit
# several. Those that have one do where the model says so, if as many fit on the GPU, which has parts of 16 or 18 multiprocessors.
# They have the larger operand's tiles in common, or the other's if no two blocks can have those. (75 x 10240 x 8192 with tiles of
# 128 x 128: 60 us, with clusters of two 57, of four 48; 194 x 8192 x 8192: 73, with those of the larger operand 60, else 71.)
# Where neither an eighth of the rows lies beyond the operand, nor that comes from memory, they wait for each other for nothing:
# 2048 x 512 x 4096 takes 14.7 us, and 16 in clusters.
CLUSTER = (2, 1)
_EIGHTH, _FROM_MEMORY = 8, 32 << 20
# Also where they load less by it of an operand that is `ragged`; then pairs of blocks that stay, too, and of those whose tiles
# have other columns than powers of two: 13 x 1800 x 272 x 14232 takes 376 us, and 483 without; where lines are whole, pairs of
# these gain nothing (224 x 10240 x 8192: 62 us, and 61). Blocks of a cluster begin and end together, in so many clocks.
_PAIRS, _TOGETHER, _MEETING, _FITTING = ((2, 1), (1, 2)), 1.02, 1060, 0.91
_CLUSTERS, _LEAST_PART = (*_PAIRS, (4, 1), (1, 4), (2, 2)), 8


class Product(NamedTuple):
    """A product.

    Attributes:
        shape: `(batch, M, N, K)`.
        count: of multiprocessors.
        itemsize: of the operands.
        beside: the bytes of an element of all matrices that the epilogue takes.
        summed: whether short sums of 8-bit floats are added up in float32 (see `tk.mma`).
        turned: whether it is the transpose that is stored, whose rows go across what a warp has.
        lines: whether rows, or columns, of the operands are whole lines of the cache, of 128 bytes.
        clusters: whether blocks may load tiles together, and have shares of one, which those of kernels that find their tiles by
            themselves do not.
        over: whether tiles of the second operand are turned over on their way, whose columns tensor cores take as rows.
        ragged: of each operand, whether its rows, or columns, are no whole lines of the cache.
        across: of each, whether it lies across K.
        stored: the bytes of an element of the result.
        begins: the rows of the result begin at multiples of so many bytes, as far as a line of the cache.
        plain: whether sums are products of tensor cores alone, and stored as they are.
    """

    shape: tuple[int, int, int, int]
    count: int
    itemsize: int
    beside: int = 0
    summed: bool = False
    turned: bool = False
    lines: bool = True
    clusters: bool = True
    over: bool = False
    ragged: tuple[bool, bool] = (False, False)
    across: tuple[bool, bool] = (False, False)
    stored: int = 2
    begins: int = STAGED_BYTES
    plain: bool = False


class Way(NamedTuple):
    """How it is dealt out: tiles of so many rows and columns, the warps of a block, the parts that sums are taken in or how the
    last tiles are dealt out, how many blocks, below and next to each other, load tiles together, how many share the turns of each
    tile, and the bytes of a stage along K.
    """

    rows: int
    columns: int
    warps: int
    parts: int | StreamK = 1
    cluster: tuple[int, int] | None = None
    sharing: int = 1
    depth: int = STAGED_BYTES


def held(count: int, columns: int, warps: int) -> int:
    """How many blocks with tiles of so many columns, and so many warps, multiprocessors hold."""
    return count * (1 if warps >= 8 or (warps == 4 and columns > _MOST_HELD) else 4 // warps * 2)


def together(rows: int, columns: int, warps: int) -> bool:
    """Whether tiles are so large that a tile of `b` is loaded once for two blocks, if they visit several."""
    return rows * columns > LARGE and warps >= 8


def cheapest(product: Product, splits: int | str | None = None, abreast: tuple[int, ...] = ()) -> tuple[Way, float]:
    """The way that takes the fewest clocks, and how many.

    Args:
        product: which.
        splits: the parts of sums, or "stream", if somebody says so.
        abreast: columns that a tile may have besides powers of two.
    """
    (batch, m, n, k), count = product.shape, product.count
    best, chosen = math.inf, Way(128, 128, 8)
    steps = -(-k * product.itemsize // STAGED_BYTES)
    for bm, bn, warps, depth in _tiles(product, abreast):
        odd = bn in abreast
        whole = bm * bn > _SPLIT
        if (product.beside >= _BESIDE and bm * bn > LARGE) or (odd and splits == "stream") or (whole and splits not in (None, 1)):
            continue
        tiles = max(1, batch * -(-m // bm) * -(-n // bn))
        limit = 1 if whole else min(MOST_SPLITS, steps, max(1, 2 * count // tiles))
        ways: list[int | StreamK] = [splits] if isinstance(splits, int) else [1] if splits else list(range(1, limit + 1))
        if splits == "stream" and depth == STAGED_BYTES:
            stream = stream_k(-(-m // bm), -(-n // bn), steps, held(count, bn, warps))
            ways = ways if stream is None else [stream]
        every = [Way(bm, bn, warps, parts, depth=depth) for parts in ways]
        every += [way._replace(cluster=cluster) for way in every for cluster in _clusters_of(product, (bm, bn, warps), way.parts)]
        if splits is None and not whole:
            every += [every[0]._replace(sharing=blocks) for blocks in _sharing(product, every[0])]
        for way in every:
            taken = clocks(product, way)
            if taken < best:
                best, chosen = taken, way
    return chosen, best


def _tiles(product: Product, abreast: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Rows, columns, warps, and bytes along K, of the tiles that a product may have."""
    _, _, n, k = product.shape
    if n <= FEW_ROWS:
        columns = max(_LEAST_COLUMNS, 1 << (n - 1).bit_length())
        return [(rows, columns, warps, _depth(k * product.itemsize, _STAGE // rows)) for rows, warps in _FEW_TILES]
    fitting = [columns for columns in abreast if columns_of(columns)[0] < n]  # else the second tile has none
    if product.summed:
        fitting = [columns for columns in fitting if columns <= _WIDEST_SUMMED]
    more = [(rows, columns, warps) for columns in fitting for rows, warps in ((128, 8), (64, 4))]
    widest = _WIDEST if product.plain and product.begins >= ACCESS else _ANY_EPILOGUE
    abreast = () if product.beside else tuple(fitting)  # what is loaded beside these takes room from stages
    powers = (64, 128) if product.over else (64,)  # 128 of the transpose are as good, unless it is columns that are turned over
    more += [(_TALL_ROWS, columns, 8) for columns in (*powers, *abreast) if columns <= widest]
    return [(*tile, STAGED_BYTES) for tile in (*_STAGED, *more)]


def _depth(nbytes: int, most: int) -> int:
    """The bytes of a stage along K, of `nbytes`: the most of those with which the fewest zeros come from beyond its end."""
    depths = [STAGED_BYTES << n for n in range(3) if STAGED_BYTES << n <= min(most, _MOST_DEPTH)]
    least = min(-(-nbytes // depth) * depth for depth in depths)
    return next(depth for depth in reversed(depths) if _EIGHTH * (-(-nbytes // depth) * depth - least) <= least)


def _sharing(product: Product, way: Way) -> list[int]:
    """How many blocks may share the turns of each tile: all have one at the same time, and room for the others' sums."""
    batch, m, n, k = product.shape
    tiles = max(1, batch * -(-m // way.rows) * -(-n // way.columns))
    turns, stage = -(-k * product.itemsize // way.depth), (way.rows + way.columns) * way.depth
    return [
        blocks
        for blocks, places in _PLACES.items()
        if product.clusters
        and tiles * blocks <= product.count * places
        and 2 * blocks <= turns
        and _received(way._replace(sharing=blocks)) + _LEAST_STAGES * stage <= _ROOM
    ]


def _pieces(way: Way) -> int:
    """How many of the blocks that share a tile get a piece of it: a power of two; the first gets all of several tiles abreast."""
    pieces = 1 if columns_of(way.columns) else max(1, min(way.sharing, way.columns // _LEAST_PIECE))
    return 1 << pieces.bit_length() - 1


def _received(way: Way) -> int:
    """The bytes that each of them gets from the others."""
    return 4 * way.rows * way.columns // _pieces(way) * (way.sharing - 1)


def _clusters_of(product: Product, tile: tuple[int, int, int], parts: int | StreamK) -> list[tuple[int, int]]:
    """The clusters that blocks may have which visit tiles of so many rows and columns, with so many warps."""
    (batch, m, n, k), (rows, columns, warps) = product.shape, tile
    down, across = -(-m // rows), -(-n // columns)
    if not product.clusters or isinstance(parts, StreamK) or n <= FEW_ROWS or (parts > 1 and columns_of(columns)):
        return []
    if batch * down * across * parts > product.count:
        if not (parts == 1 and any(product.ragged) and together(rows, columns, warps)):
            return []
        little = all(_EIGHTH * (there - extent) <= extent for extent, there in ((m, down * rows), (n, across * columns)))
        return [cluster for cluster in _PAIRS if little and down % cluster[0] == across % cluster[1] == 0]

    def worth(extent: int, there: int) -> bool:
        return _EIGHTH * (there - extent) >= extent or batch * extent * k * product.itemsize >= _FROM_MEMORY

    ragged = product.ragged if _cached(product) else (False, False)
    of_a = ragged[0] or (worth(m, down * rows) and (m >= n or down % 2 > 0))
    of_b = ragged[1] or (worth(n, across * columns) and (n >= m or across % 2 > 0))
    return [
        (below, beside)
        for below, beside in _CLUSTERS
        if down % below == across % beside == 0
        and batch * down * across * parts <= product.count * (1 if below * beside == 2 else _FITTING)
        and (below == 1 or of_b)
        and (beside == 1 or of_a)
    ]


def _mine(columns: int, below: int) -> float:
    """How many of a tile's columns a block loads for as many blocks: all of tiles abreast that are too small for a part each."""
    return sum(size if size % (_LEAST_PART * below) else size / below for size in columns_of(columns) or (columns,))


def _cached(product: Product) -> bool:
    """Whether the operands come from the L2 cache."""
    batch, m, n, k = product.shape
    return batch * (m * k + k * n) * product.itemsize <= _FROM_MEMORY


def clocks(product: Product, way: Way) -> float:
    """How long it takes in this way."""
    (batch, m, n, k), count = product.shape, product.count
    bm, bn, warps, parts, cluster, sharing, depth = way
    steps, each = -(-k * product.itemsize // STAGED_BYTES), held(count, bn, warps) // count
    down, across = -(-m // bm), -(-n // bn)
    tiles, deep = max(1, batch * down * across), depth // STAGED_BYTES
    products = bm * bn * STAGED_BYTES / _PRODUCTS * (_TALL if bm * bn > _SPLIT else 1)
    rows = parts.top if isinstance(parts, StreamK) else down
    visiting = product.clusters and together(bm, bn, warps) and tiles > held(count, bn, warps) and rows % CLUSTER[0] == 0
    below, beside = cluster or (CLUSTER if visiting and columns_of(bn) is None else (1, 1))
    # Of what lies across K, short rows take as long as longer ones: it comes in panels.
    panels = [STAGED_BYTES // product.itemsize if across else 1 for across in product.across]
    # And no more comes of what lies along K than there is, to blocks that load alone.
    lone = (not product.across[0] and beside == 1, not product.across[1] and below == 1)
    sizes = (min(bm, m) if lone[0] else bm, min(bn, n) if lone[1] else bn)
    high, wide = (-(-size // panel) * panel for size, panel in zip(sizes, panels, strict=True))
    mine_of_a, mine_of_b = high / beside, wide / below if product.across[1] or below == 1 else _mine(bn, below)
    room = bn if columns_of(bn) is None else wide  # columns of a stage: the second of two tiles has panels like the first's
    fetched = (mine_of_a + mine_of_b) * STAGED_BYTES
    once = not isinstance(parts, StreamK) and tiles * parts * sharing <= count
    alone = each == 1 or once
    again = sum(
        size * ((_TWO_LINES if lies else _SHIFTED) - 1)
        for size, ragged, lies in zip((mine_of_a, mine_of_b), product.ragged, product.across, strict=True)
        if ragged
    )
    stages = max(2, min(_STAGES_ALONE if alone else _STAGES, (_ROOM - _received(way)) // ((bm + room) * depth)))
    waiting = (_WAITING + _COMING / max(1, stages - _HELD)) / deep

    def step(blocks: int) -> float:
        """Of the blocks of a multiprocessor."""
        if product.summed:
            return _SUMMING_WAITS + (_SUMMING if blocks * warps <= 4 else _SUMMING_TOGETHER) * blocks * products
        over = _TURNING * bn if product.over else 0
        return max(blocks * (products + over), waiting)

    def turns_of(pieces: int) -> tuple[int, float]:
        """How many of these a multiprocessor has, and the clocks of a step in all of its turns."""
        turns = -(-pieces // count)
        return turns, turns // each * step(each) + (step(turns % each) if turns % each else 0)

    if isinstance(parts, StreamK):
        # Rounds of whole tiles, and the blocks of a multiprocessor that each have a share, with two ends at most.
        turns, whole = turns_of(parts.top * parts.columns)
        loop, stored = whole * steps + parts.share * step(each), turns + 2 * each
        mine, every = turns * steps + each * parts.share, (parts.top * parts.columns + parts.tiles) * steps
        after = _NEXT + 8 * parts.places * bm * bn / _MEMORY + _LATENCY
    else:
        share = -(-steps // (parts * sharing * deep)) * deep
        stored, whole = turns_of(tiles * parts * sharing)
        loop, mine, every = whole * share, stored * share, tiles * parts * sharing * share
        after = _NEXT + 8 * batch * m * n * parts / _MEMORY if parts > 1 else 0  # they are written, and read
        after += _received(way) / (_SENT if _pieces(way) > 1 else _GATHERED)
    # Of few rows, those of the other operand that lie across lines of the cache are read the better the longer they are.
    longer = 1 + _LINE / (bm * product.itemsize) if product.ragged[0] and product.across[0] and n <= FEW_ROWS else 1
    of_a, of_b = (batch * k * extent * product.itemsize for extent in (m * longer, n))
    stays = min(1.0, max(0.0, (_GONE - of_a - of_b) / (_GONE - _STAYS)))
    memory = (1 - stays) * (of_a + of_b) / _MEMORY
    near = (of_a * min(_APART, across / beside) + of_b * min(_APART, down / below)) / _NEAR
    # What the tiles have beyond the operands: it does not come to blocks that load alone, and the others get zeros.
    less, more = max(0, (down - 1) * bm + sizes[0] - m), max(0, (across - 1) * bn + (room if sizes[1] == bn else sizes[1]) - n)
    beyond = [batch * steps * STAGED_BYTES * size for size in (less * across / beside, more * down / below)]
    zeros = sum(size for size, absent in zip(beyond, lone, strict=True) if not absent)
    cache = _CACHED if product.lines else _ALONG if all(product.ragged) and not any(product.across) else _ACROSS
    cached = (every * fetched - sum(beyond)) / cache + zeros / _BEYOND
    own = mine_of_a + mine_of_b
    fetching = mine * STAGED_BYTES * ((own + again) / _FETCHED + (high + wide - own) / _ARRIVING)
    order = _ORDER * (stages / _STAGES) ** _DEEPER
    # What tensor cores read of shared memory, which the tiles come to: 64 rows and all columns at a time.
    reading = mine * STAGED_BYTES * (bm / 64 * (64 + bn) + high + wide) / _SHARED
    hidden = sum(one**order for one in (loop, fetching, cached, memory, near, reading)) ** (1 / order)
    storing = stored * bm * bn / _pieces(way) / _STORED
    if product.turned:
        storing *= _TURNED if product.begins >= SECTOR else _TURNED_BETWEEN if product.begins >= ACCESS else _TURNED_ODD
    elif product.begins < SECTOR and (warps < 8 or columns_of(bn) is not None):
        storing *= _SPLIT_ROWS
    if product.begins < _LINE:
        storing *= 1 + _PART * _LINE / (product.stored * (bm if product.turned else bn))
    if columns_of(bn) is not None:
        storing += max(0, stored / each - 1) * _BETWEEN
    waits = 1.0 if cluster is None else _TOGETHER ** math.log2(below * beside)
    after += 0 if cluster is None and sharing == 1 else _MEETING
    return (hidden + storing + _LATENCY + after) * waits
