"""What collectives cost on larger machines: a model with constants fitted to measured figures, and the tables of its page.

    python docs/tools/collective_costs.py          # writes the tables into docs/concepts/collective-costs.md

Times are in microseconds, sizes in bytes: KB, MB and GB are powers of 1024, as the measuring programs had them. `n` GPUs are
`n / 8` nodes of eight, or part of one node. `size` is that of the whole tensor: of `all_reduce` what each GPU has, of
`all_gather` what each gets, of `reduce_scatter` what each has before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "concepts" / "collective-costs.md"
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30

# ------------------------------------------------------------------------------------------------------------------- measured
# On two H200 (NVLink with 18 links, multicast off; NCCL 2.28.9, PyTorch 2.11), by the prototype of these collectives.

WHO = ("torch", "prototype, a process for each GPU", "prototype, one process")
STREAM: Mapping[str, Mapping[int, tuple[float, float, float]]] = {  # an op in the stream, in the order of WHO
    "all_reduce": {64 * KB: (40, 47, 68), 32 * MB: (137, 138, 142), GB: (3259, 3280, 3253)},
    "all_gather": {64 * KB: (37, 52, 105), 32 * MB: (90, 91, 112), GB: (2017, 1980, 1996)},
}
GRAPH: Mapping[str, Mapping[int, float]] = {  # an all_reduce in a CUDA graph
    "NCCL": {KB: 6.1, 64 * KB: 7.1, 512 * KB: 9.8, 4 * MB: 32.1},
    "tile kernel": {KB: 4.0, 64 * KB: 4.9, 512 * KB: 6.4, MB: 8.0, 4 * MB: 17.9},
}
BARRIER = 1.8  # of both GPUs, in a kernel: a word to the other, and the other's word seen
# Products of matrices in bfloat16: who, the collective, M, N, K; the product alone, collective and product in turn, overlapped.
PRODUCTS: tuple[tuple[str, str, tuple[int, int, int], tuple[float, float, float]], ...] = (
    ("torch", "all_gather", (8192, 8192, 8192), (609, 996, 809)),
    ("prototype", "all_gather", (8192, 8192, 8192), (732, 1046, 1002)),
    ("torch", "all_gather", (2048, 8192, 8192), (199, 314, 368)),
    ("prototype", "all_gather", (2048, 8192, 8192), (295, 509, 1240)),
    ("torch", "reduce_scatter", (8192, 8192, 8192), (720, 1063, 909)),
    ("prototype", "reduce_scatter", (8192, 8192, 8192), (746, 1084, 1205)),
    ("torch", "reduce_scatter", (2048, 8192, 8192), (184, 287, 268)),
    ("prototype", "reduce_scatter", (2048, 8192, 8192), (203, 320, 844)),
)

# -------------------------------------------------------------------------------------------------------------------- assumed
NODE = 8  # GPUs of a node, each with a network adapter of its own
NETWORK_LATENCY = 5.0  # of a message from GPU to GPU of another node
NETWORK_GB_S = 45.0  # reached of the 50 GB/s that 400 Gb/s are, for each GPU
TFLOP_S = 720.0  # of a product of matrices in bfloat16
OVERLAPS = (0.0, 0.45, 0.6)
SIZES = (64 * KB, 32 * MB, GB)
COUNTS = (8, 64, 1024)
ROWS, INNER, HIDDEN = 65536, 8192, 28672  # of the sharded products: rows of the batch, features, features of the hidden layer


# ------------------------------------------------------------------------------------------------------------------ the model


class Line(NamedTuple):
    """A straight line through measured times.

    Attributes:
        start: the time for no bytes.
        slope: the time for each byte of the tensor.
    """

    start: float
    slope: float

    def at(self, size: float) -> float:
        """The time for so many bytes."""
        return self.start + self.slope * size


def fit(points: list[tuple[float, float]]) -> Line:
    """The line with the smallest sum of squares of relative residuals, `line.at(size) / time - 1`.

    Args:
        points: sizes and times, of at least two sizes.
    """
    weights = [(1 / time, size / time) for size, time in points]
    aa, ab, bb = (sum(w[i] * w[j] for w in weights) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(w[i] for w in weights) for i in (0, 1))
    determinant = aa * bb - ab * ab
    return Line((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant)


def _of_table(name: str) -> list[tuple[float, float]]:
    """The large sizes, of those whose host is fast enough."""
    return [(size, time) for size, times in STREAM[name].items() if size > MB for time in times[:2]]


SMALL = fit(list(GRAPH["NCCL"].items()))
LARGE = fit(_of_table("all_reduce"))
GATHER = fit(_of_table("all_gather"))
DIRECT = fit(list(GRAPH["tile kernel"].items()))


class Mode(NamedTuple):
    """A way to move data: an op costs `fixed + steps * alpha + sent * beta`.

    Attributes:
        fixed: what an op costs once: its launch, and until its pipeline is full.
        alpha: the latency of a step.
        beta: the time for each byte that a GPU sends.
    """

    fixed: float
    alpha: float
    beta: float

    def time(self, steps: float, sent: float) -> float:
        """The time of an op in which each GPU sends `sent` bytes in `steps` steps."""
        return self.fixed + steps * self.alpha + sent * self.beta


class Plan(NamedTuple):
    """What an algorithm does: how many steps follow each other, and how many bytes a GPU sends in all of them."""

    steps: float
    sent: float


def _mode(line: Line, steps: int, share: float) -> Mode:
    """The line as a mode: it was measured where an op had `steps` steps, in which a GPU sent `share` of the bytes."""
    return Mode(line.start - steps * BARRIER, BARRIER, line.slope / share)


# NCCL changes from one to the other as the tensor grows. A ring of two: two steps and all bytes; an all-gather has half of that.
SMALL_MODE, LARGE_MODE = _mode(SMALL, 2, 1), _mode(LARGE, 2, 1)
REDUCING = (SMALL_MODE, LARGE_MODE)
GATHERING = (SMALL_MODE, _mode(GATHER, 1, 0.5))
DIRECTLY = (_mode(DIRECT, 1, 1),)


class Network(NamedTuple):
    """What joins nodes: the latency of a message, and the GB/s that each GPU reaches."""

    latency: float = NETWORK_LATENCY
    gb_s: float = NETWORK_GB_S

    @property
    def mode(self) -> Mode:
        """Over the network nothing is paid once: the op pays that in the node."""
        return Mode(0.0, self.latency, 1e-3 / self.gb_s)


ASSUMED = Network()


def fastest(modes: tuple[Mode, ...], plan: Plan) -> float:
    """The time of a plan by the mode that is faster for it."""
    return min(mode.time(*plan) for mode in modes)


def _log(n: int) -> int:
    """The steps that double something until it is `n`."""
    return math.ceil(math.log2(n))


def ring(n: int, size: float) -> Plan:
    """Parts go round, once to be summed and once to be handed out."""
    return Plan(2 * (n - 1), 2 * (n - 1) / n * size)


def two_trees(n: int, size: float) -> Plan:
    """Up two binary trees, each with half of the tensor, and down again."""
    return Plan(2 * _log(n), 2 * size if n > 1 else 0)


def recursive_doubling(n: int, size: float) -> Plan:
    """All of the tensor to and from a partner, whose distance doubles."""
    return Plan(_log(n), _log(n) * size)


def halving_doubling(n: int, size: float) -> Plan:
    """Half of what is left to a partner, then back: Rabenseifner's algorithm."""
    return Plan(2 * _log(n), 2 * (n - 1) / n * size)


def one_shot(n: int, size: float) -> Plan:
    """Everyone gets everyone's tensor."""
    return Plan(min(n - 1, 1), (n - 1) * size)


def two_shot(n: int, size: float) -> Plan:
    """Everyone sums a part, and gets the other sums."""
    return Plan(min(2 * (n - 1), 2), 2 * (n - 1) / n * size)


def gather(n: int, size: float) -> Plan:
    """Half of a ring's all-reduce: an all-gather, or a reduce-scatter."""
    return Plan(n - 1, (n - 1) / n * size)


def nodes(n: int) -> tuple[int, int]:
    """How many nodes `n` GPUs are, and how many GPUs of each take part.

    Raises:
        ValueError: GPUs that are no full nodes, or not a power of two.
    """
    if n < 1 or n & (n - 1):
        raise ValueError(f"the model has powers of two, and not {n} GPUs")
    return max(n // NODE, 1), min(n, NODE)


def flat_ring(n: int, size: float, network: Network = ASSUMED) -> float:
    """A ring through all GPUs. Eight of them, side by side, use all adapters of a node; a step waits for its slowest hop."""
    count, members = nodes(n)
    if count == 1:
        return fastest(REDUCING, ring(n, size))
    plan, mode = ring(n, size), network.mode
    return min(m.fixed + plan.steps * mode.alpha + plan.sent * max(m.beta, mode.beta / members) for m in REDUCING)


def flat_trees(n: int, size: float, network: Network = ASSUMED) -> float:
    """Two trees over the nodes, and a chain through the GPUs of each."""
    count, members = nodes(n)
    if count == 1:
        return fastest(REDUCING, two_trees(n, size))
    plan, mode = two_trees(count, size), network.mode
    latency = plan.steps * mode.alpha
    return min(m.time(2 * (members - 1), 0) + latency + plan.sent * max(m.beta, mode.beta / members) for m in REDUCING)


def flat_doubling(n: int, size: float, network: Network = ASSUMED) -> float:
    """Recursive doubling, with partners of the same node first."""
    count, members = nodes(n)
    return fastest(REDUCING, recursive_doubling(members, size)) + network.mode.time(*recursive_doubling(count, size))


def flat_halving(n: int, size: float, network: Network = ASSUMED) -> float:
    """Rabenseifner's algorithm, with partners of the same node first: so only an eighth goes over the network."""
    count, members = nodes(n)
    return fastest(REDUCING, halving_doubling(members, size)) + network.mode.time(*halving_doubling(count, size / members))


def _hierarchical(
    modes: tuple[Mode, ...], inside: Callable[[int, float], Plan], between: Callable[[int, float], Plan], pieces: bool = False
) -> Callable[..., float]:
    """Reduce-scatter in the node, all-reduce of each GPU's part over the network, all-gather in the node.

    Args:
        modes: of the node.
        inside: the algorithm in the node: its first half, and after the network its second.
        between: the algorithm among GPUs of all nodes that have the same part.
        pieces: the tensor is cut into so many pieces that node and network work at the same time.
    """

    def time(n: int, size: float, network: Network = ASSUMED) -> float:
        count, members = nodes(n)
        own, others = inside(members, size), between(count, size / members)
        if not pieces:
            return fastest(modes, own) + network.mode.time(*others)
        latency = network.mode.time(others.steps, 0)
        return min(m.time(own.steps, 0) + latency + max(own.sent * m.beta, others.sent * network.mode.beta) for m in modes)

    return time


def _in_node(plan: Callable[[int, float], Plan]) -> Callable[..., float]:
    def time(n: int, size: float, network: Network = ASSUMED) -> float:
        return fastest(DIRECTLY, plan(n, size)) if n <= NODE else math.inf

    return time


# What a row of a table says, and the time for `n` GPUs, a size, and a network; infinite where the algorithm does not go so far.
ALL_REDUCE: Mapping[str, Callable[..., float]] = {
    "one-shot": _in_node(one_shot),
    "two-shot": _in_node(two_shot),
    "recursive doubling": flat_doubling,
    "halving and doubling": flat_halving,
    "two trees": flat_trees,
    "ring": flat_ring,
    "hierarchical: two-shot, recursive doubling": _hierarchical(DIRECTLY, two_shot, recursive_doubling),
    "hierarchical: ring, ring": _hierarchical(REDUCING, ring, ring),
    "hierarchical: ring, halving and doubling": _hierarchical(REDUCING, ring, halving_doubling),
    "the same, in pieces": _hierarchical(REDUCING, ring, halving_doubling, pieces=True),
}


def best(n: int, size: float, network: Network = ASSUMED) -> float:
    """The time of the fastest algorithm for an all-reduce."""
    return min(time(n, size, network) for time in ALL_REDUCE.values())


def all_gather(n: int, size: float, network: Network = ASSUMED) -> float:
    """An all-gather, or its mirror image, a reduce-scatter: over the network an eighth, then a ring in the node."""
    count, members = nodes(n)
    parts = Plan(_log(count), (count - 1) / count * size / members)
    return fastest(GATHERING, gather(members, size)) + network.mode.time(*parts)


def product(m: int, n: int, k: int, gpus: int) -> float:
    """A product of (m, k) and (k, n), whose arithmetic is dealt out to so many GPUs."""
    return 2 * m * n * k / gpus / (TFLOP_S * 1e6)


def overlapped(computing: float, communicating: float, share: float) -> float:
    """The time of both, if this share of the shorter one is hidden behind the longer one."""
    return computing + communicating - share * min(computing, communicating)


# ----------------------------------------------------------------------------------------------------------------- the tables


def shown(us: float) -> str:
    """A time with three digits."""
    if math.isinf(us):
        return "-"
    value, unit = (us / 1000, "ms") if us >= 1000 else (us, "µs")
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f} {unit}"


def percent(share: float, sign: bool = False) -> str:
    """A share in percent, with a minus sign that is as wide as a plus."""
    text = f"{share:{'+' if sign else ''}.0%}"
    return "0%" if text in ("+0%", "-0%") else text.replace("-", "\N{MINUS SIGN}")


def size_of(size: float) -> str:
    """A size in words."""
    unit, name = next((unit, name) for unit, name in ((GB, "GB"), (MB, "MB"), (KB, "KB")) if size >= unit)
    return f"{size / unit:g} {name}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]], right: int = 1) -> str:
    """Columns from `right` on stand to the right."""
    rule = ["---" if column < right else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" if row is not rule else f"|{'|'.join(row)}|" for row in (head, rule, *rows))


def predicted(name: str, size: float) -> float:
    """What the model says of a collective of two GPUs, by NCCL."""
    return fastest(REDUCING, ring(2, size)) if name == "all_reduce" else all_gather(2, size)


class Point(NamedTuple):
    """A measured time beside the model's.

    Attributes:
        what: the collective, and who measured it.
        size: in bytes.
        measured, model: times.
        fitted: whether the constants were fitted to it.
    """

    what: str
    size: int
    measured: float
    model: float
    fitted: bool

    @property
    def residual(self) -> float:
        """How far the model is off, as a share of what was measured."""
        return self.model / self.measured - 1


def points() -> Iterator[Point]:
    """All that was measured of collectives of two GPUs where the device takes the time, not the host."""
    for size, time in GRAPH["NCCL"].items():
        yield Point("all_reduce, NCCL in a graph", size, time, predicted("all_reduce", size), True)
    for name, row in STREAM.items():
        for size, times in row.items():
            for at, (who, time) in enumerate(zip(WHO, times)):
                if size > MB:
                    yield Point(f"{name}, {who}", size, time, predicted(name, size), at < 2)
    for size, time in GRAPH["tile kernel"].items():
        yield Point("all_reduce, tile kernel in a graph", size, time, fastest(DIRECTLY, one_shot(2, size)), True)


def largest(fitted: bool) -> float:
    """The largest residual of the points that the constants were fitted to, or of the others."""
    return max(abs(point.residual) for point in points() if point.fitted is fitted)


def constants_table() -> str:
    rows = [
        ("all_reduce, small", "NCCL in a graph, 1 KB to 4 MB", SMALL, SMALL_MODE),
        ("all_reduce, large", "`all_reduce`, 32 MB and 1 GB", LARGE, LARGE_MODE),
        ("all_gather, large", "`all_gather`, 32 MB and 1 GB", GATHER, GATHERING[1]),
        ("directly", "tile kernel in a graph, 1 KB to 4 MB", DIRECT, DIRECTLY[0]),
    ]
    head = ("mode", "fitted to", "for no bytes", "fixed", "latency", "bandwidth")
    cells = [
        (name, to, shown(line.start), shown(mode.fixed), shown(mode.alpha), f"{1e-3 / mode.beta:.0f} GB/s")
        for name, to, line, mode in rows
    ]
    return _table(head, cells, 2)


def residuals_table() -> str:
    rows = [
        (p.what + ("" if p.fitted else " *"), size_of(p.size), shown(p.measured), shown(p.model), percent(p.residual, True))
        for p in points()
    ]
    note = (
        f"\n\nThe largest residual of a fitted point is {percent(largest(True))}; "
        f"of the points with a star, to which nothing was fitted, {percent(largest(False))}."
    )
    return _table(("what", "size", "measured", "model", "residual"), rows) + note


def products_table() -> str:
    rows = []
    for who, name, (m, n, k), (alone, serial, over) in PRODUCTS:
        size = 2 * m * (k if name == "all_gather" else n)
        cost = serial - alone
        model = all_gather(2, size)
        cells = (size_of(size), shown(cost), shown(model), percent(model / cost - 1, True))
        hidden = percent((serial - over) / min(alone, cost))
        rows.append((f"{name}, {who}, {m} x {n} x {k}", *cells, f"{m * n * k / alone / 1e6:.0f}", hidden))
    return _table(("what", "size", "measured", "model", "residual", "TFLOP/s", "hidden"), rows)


def all_reduce_table(size: int) -> str:
    rows = [(name, *(shown(time(n, size)) for n in COUNTS)) for name, time in ALL_REDUCE.items()]
    return _table((f"all-reduce of {size_of(size)}", *(f"{n} GPUs" for n in COUNTS)), rows)


def networks_table() -> str:
    networks = [Network(latency, gb_s) for gb_s in (NETWORK_GB_S, NETWORK_GB_S / 2) for latency in (2.0, NETWORK_LATENCY, 10.0)]
    head = ("network", *(f"{size_of(size)}, {n} GPUs" for size in SIZES for n in COUNTS[1:]))
    rows = [
        (f"{net.latency:g} µs, {net.gb_s:g} GB/s", *(shown(best(n, size, net)) for size in SIZES for n in COUNTS[1:]))
        for net in networks
    ]
    return _table(head, rows)


def sharded(n: int, group: int) -> tuple[float, float]:
    """The times of the arithmetic and of the collective of a sharded product.

    Args:
        n: how many GPUs share the work.
        group: over so many of them the weights are split; over the rest, the rows.
    """
    size = 2 * ROWS * INNER * group / n
    return product(ROWS, HIDDEN, INNER, n), all_gather(group, size)


def sharded_table() -> str:
    rows = []
    for n in COUNTS:
        for group in sorted({n, NODE}, reverse=True):
            computing, communicating = sharded(n, group)
            times = [overlapped(computing, communicating, share) for share in OVERLAPS]
            used = (percent(computing / time) for time in (times[0], times[-1]))
            split = f"{n // group} x {group}"
            rows.append((f"{n}", split, shown(computing), shown(communicating), *map(shown, times), " to ".join(used)))
    head = (
        "GPUs",
        "rows x weights",
        "product",
        "collective",
        *(f"overlap {percent(share)}" for share in OVERLAPS),
        "share of the product",
    )
    return _table(head, rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "constants": constants_table,
    "residuals": residuals_table,
    "products": products_table,
    **{f"all-reduce {size_of(size)}": partial(all_reduce_table, size) for size in SIZES},
    "networks": networks_table,
    "sharded": sharded_table,
}
MARKED = re.compile(r"(<!-- table: (.*?) -->\n).*?(?=<!-- end -->)", re.S)


def with_tables(page: str) -> str:
    """The text of the page with the tables as they are now.

    Raises:
        KeyError: a mark names no table.
    """
    return MARKED.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n", page)


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
