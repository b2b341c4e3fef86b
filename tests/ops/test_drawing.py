"""SVG pictures of ops: every box has its place, arrows lead down, and very large pictures are cut."""

from __future__ import annotations

import itertools
import random
import re
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

import tilekit as tk
from tilekit import api
from tilekit.ops.drawing import Diagram
from tilekit.ops.svg import DRAWN

SPACE = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    text: str
    left: float
    top: float
    right: float
    bottom: float
    dashed: bool


class Picture:
    """What is in an SVG picture: boxes, arrows from a point to another, and the text below."""

    def __init__(self, svg: str) -> None:
        root = ElementTree.fromstring(svg)
        self.width, self.height = (float(root.attrib[key]) for key in ("width", "height"))
        self.title = root[0].text
        texts = [(float(t.attrib["x"]), float(t.attrib["y"]), t.text or "") for t in root.iter(f"{SPACE}text")]
        self.boxes: list[Box] = []
        for rect in list(root.iter(f"{SPACE}rect"))[1:]:  # behind the paper
            x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
            inside = [text for tx, ty, text in texts if x < tx < x + width and y < ty < y + height]
            self.boxes.append(Box("\n".join(inside), x, y, x + width, y + height, "stroke-dasharray" in rect.attrib))
        lowest = max((box.bottom for box in self.boxes), default=0)
        self.notes = [text for _, y, text in texts if y > lowest]
        lines = [path.attrib["d"] for path in root.iter(f"{SPACE}path") if path.attrib["fill"] == "none"]
        ends = [re.findall(r"[\d.]+,[\d.]+", line) for line in lines]
        self.arrows = [tuple(tuple(map(float, end.split(","))) for end in (points[0], points[-1])) for points in ends]

    def named_arrows(self) -> set[tuple[str, str]]:
        """Each arrow by the first lines of its boxes."""
        found = set()
        for (x1, y1), (x2, y2) in self.arrows:
            (start,) = [box for box in self.boxes if box.left < x1 < box.right and abs(y1 - box.bottom) < 0.2]
            (end,) = [box for box in self.boxes if box.left < x2 < box.right and abs(y2 - box.top) < 0.2]
            found.add((start.text.split("\n")[0], end.text.split("\n")[0]))
        return found

    def check(self) -> None:
        """No box is over another, or beyond the edge, and arrows lead down."""
        for one, other in itertools.combinations(self.boxes, 2):
            apart = one.right <= other.left or other.right <= one.left or one.bottom <= other.top or other.bottom <= one.top
            assert apart, (one, other)
        assert all(box.left >= 0 and box.right <= self.width and box.bottom <= self.height for box in self.boxes)
        assert all(start[1] < end[1] for start, end in self.arrows)


def ran(op):
    op.consumed()
    return op


def test_a_picture_shows_what_an_op_is_made_of(device):
    part = api.ones((2, 3)).named("part").shared()
    op = ran(tk.zip(part, part.map(len), tk.value(1)).apply(lambda *all: tk.value(all)))
    picture = Picture(op.svg())
    picture.check()
    assert picture.named_arrows() == {
        ("part float32[2, 3]", "Shared float32[2, 3]"),
        ("Shared float32[2, 3]", "Zip"),
        ("Shared float32[2, 3]", "Map"),
        ("Map", "Zip"),
        ("Value", "Zip"),
        ("Zip", "AndThen"),
    }
    assert {box.text for box in picture.boxes} >= {"Map\nlen", "AndThen"}
    assert (picture.title, picture.notes) == ("AndThen", [])


def test_a_launch_shows_its_arguments_and_device(device):
    @tk.kernel
    def scale(y: tk.InOut, a, x: tk.In):
        y.store(y.load() * a)

    x = api.ones(64).sync()
    picture = Picture(ran(scale(api.ones(64), 2.5, x).tile(16)).svg())
    lines = ["kernel scale", "a: 2.5", "x: float32[64]", f"on {device.label}"]
    assert "\n".join(lines) in [box.text for box in picture.boxes]
    assert Picture(ran(api.ones(3).on(device)).svg()).boxes[-1].text == f"on {device.label} float32[3]"


@pytest.mark.parametrize("seed", range(8))
def test_no_box_is_over_another(seed):
    rng = random.Random(seed)
    count = rng.randint(1, DRAWN)
    nodes = [["x" * rng.randint(1, 60) for _ in range(rng.randint(1, 4))] for _ in range(count)]
    edges = [(rng.randrange(end), end) for end in range(1, count) for _ in range(rng.randint(0, 3))]
    picture = Picture(Diagram(title="random", nodes=nodes, edges=edges).svg("a note"))
    picture.check()
    assert len(picture.boxes) == count
    assert len(picture.arrows) == len(set(edges))
    assert picture.notes == ["a note"]


def test_a_wide_row_is_broken():
    picture = Picture(ran(tk.zip(*(tk.value(at).named(f"the value that is number {at}") for at in range(50)))).svg())
    picture.check()
    assert len(picture.boxes) == 51
    assert picture.width < 1100


def test_neighbours_stand_in_the_order_that_crosses_no_arrows():
    pairs = [(at, 7 - at) for at in range(4)]
    nodes = [[f"node {at}"] for at in range(8)]
    picture = Picture(Diagram(title="", nodes=nodes, edges=pairs).svg())
    assert all(start[0] == pytest.approx(end[0]) for start, end in picture.arrows)


def test_a_large_picture_is_cut_and_says_so(device):
    op = tk.value(1)
    for _ in range(100_000):
        op = op.map(abs)
    picture = Picture(ran(op).svg())
    picture.check()
    assert len(picture.boxes) == DRAWN
    assert [box.dashed for box in picture.boxes].count(True) == 1
    assert picture.notes == [f"{100_001 - DRAWN} more are not drawn, beside the dashed boxes"]


def test_names_are_escaped_and_long_ones_cut(device):
    picture = Picture(ran(api.ones(3).named("<a & 'b'>" + 100 * "c")).svg())
    text = picture.boxes[0].text.split("\n")[0]
    assert text.startswith("<a & 'b'>ccc")
    assert text.endswith("…")
    assert len(text) < 60


def test_drawing_runs_nothing(device):
    called = []
    op = api.ones(3).then(lambda tensor: called.append(tensor) or tk.value(tensor))
    assert "<svg" in op.svg()
    assert "<svg" in op._repr_mimebundle_()["image/svg+xml"]
    assert not called
    assert op.sync() is called[0]


def test_an_empty_graph_is_a_picture(device):
    graph = tk.value(1).graph()
    assert len(graph) == 0
    assert Picture(graph.svg()).boxes == []
