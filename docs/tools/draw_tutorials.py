"""Draw the pictures of the tutorials, guides and concept pages: python docs/tools/draw_tutorials.py"""

from __future__ import annotations

from pathlib import Path

from drawing import AMBER, BLUE, GREEN, GREY, PAPER, Drawing

IMAGES = Path(__file__).resolve().parent.parent / "images"


def hello() -> Drawing:
    d = Drawing(620, 250, "One kernel, launched on a grid of two by two blocks")
    d.box(20, 85, 170, 80, BLUE)
    d.text(105, 118, "hello()", mono=True)
    d.text(105, 142, "one kernel", 12)
    d.arrow(195, 125, 285, 125)
    d.text(240, 112, "grid (2, 2, 1)", 12)
    for i in range(2):
        for j in range(2):
            x, y = 300 + 150 * j, 45 + 95 * i
            d.box(x, y, 140, 85, GREEN)
            d.text(x + 70, y + 38, f"block ({i}, {j})")
            d.text(x + 70, y + 60, f"bid(0)={i}  bid(1)={j}", 11, mono=True)
    d.text(445, 28, "axis 1, second number", 12)
    d.text(300, 240, "axis 0, first number, runs downwards", 12, anchor="start")
    return d


def vecadd() -> Drawing:
    d = Drawing(720, 330, "Ten elements in tiles of four: the last tile hangs over the edge")
    for row, (name, fill) in enumerate((("x", BLUE), ("y", BLUE), ("z", GREEN))):
        y = 55 + 80 * row
        d.text(35, y + 27, name, 18, mono=True)
        for tile in range(3):
            for k in range(4):
                at = 4 * tile + k
                inside = at < 10
                x = 65 + 210 * tile + 48 * k
                d.box(x, y, 46, 42, fill if inside else PAPER, dashed=not inside)
                label = f"{name}{at}" if inside else ("0" if name != "z" else "-")
                d.text(x + 23, y + 27, label, 13, mono=True)
        if row < 2:
            d.text(370, y + 65, "+" if row == 0 else "=", 20)
    for tile in range(3):
        d.text(65 + 210 * tile + 95, 35, f"block {tile}", 14)
    d.text(360, 285, "Beyond the edge a load gives zeros, and a store writes nothing.", 13)
    d.text(360, 308, "grid = ceil(10 / 4) = 3 blocks", 13, mono=True)
    return d


def saxpy() -> Drawing:
    d = Drawing(720, 250, "saxpy: each block reads its tile of x and of y, and writes its tile of y")
    d.box(30, 45, 130, 60, BLUE)
    d.text(95, 70, "x", 16, mono=True)
    d.text(95, 92, "tensor, read", 12)
    d.box(30, 145, 130, 60, GREEN)
    d.text(95, 170, "y", 16, mono=True)
    d.text(95, 192, "partition, InOut", 12)
    d.box(290, 75, 240, 100, AMBER)
    d.text(410, 108, "a * x_tile + y_tile", 15, mono=True)
    d.text(410, 134, "in registers", 12)
    d.text(410, 156, "a: one scalar for all blocks", 12)
    d.arrow(165, 75, 285, 105)
    d.text(225, 75, "load", 12)
    d.arrow(165, 165, 285, 140)
    d.text(225, 172, "load", 12)
    d.box(590, 95, 100, 60, GREEN)
    d.text(640, 120, "y", 16, mono=True)
    d.text(640, 142, "same memory", 12)
    d.arrow(535, 125, 585, 125)
    d.text(560, 113, "store", 12)
    d.text(360, 232, "4 bytes of x and 4 of y read, 4 of y written: 12 bytes for each element", 13)
    return d


def flash_attention() -> Drawing:
    d = Drawing(720, 250, "attention: a block goes along keys and values, and corrects its sums as it goes")
    d.box(30, 130, 80, 44, BLUE)
    d.text(70, 156, "q, tile i", 13, mono=True)
    for j in range(4):
        x = 140 + 95 * j
        d.box(x, 30, 88, 32, AMBER if j == 1 else PAPER)
        d.text(x + 44, 51, f"k {j}", 13, mono=True)
        d.box(x, 130, 88, 44, GREEN if j == 1 else PAPER)
        d.text(x + 44, 156, f"p {j}", 13, mono=True)
        d.box(x, 76, 88, 32, AMBER if j == 1 else PAPER)
        d.text(x + 44, 97, f"v {j}", 13, mono=True)
    d.text(535, 60, "p = exp2(q @ k.T - most)", 13, anchor="start", mono=True)
    d.text(535, 100, "acc = acc * shrink", 13, anchor="start", mono=True)
    d.text(535, 120, "      + p @ v", 13, anchor="start", mono=True)
    d.text(535, 156, "only acc is stored", 13, anchor="start")
    d.text(330, 215, "a maximum and a sum for each row: when the maximum grows, what came before shrinks", 13)
    return d


def matmul() -> Drawing:
    d = Drawing(720, 330, "matmul: a block goes along a row of tiles of a and a column of tiles of b, and adds up their products")
    for j in range(3):
        for k in range(4):
            d.box(330 + 50 * j, 20 + 30 * k, 48, 28, AMBER if j == 1 else PAPER)
    d.text(300, 82, "b", 15, mono=True)
    for i in range(3):
        for k in range(4):
            d.box(90 + 50 * k, 160 + 42 * i, 48, 40, BLUE if i == 1 else PAPER)
        for j in range(3):
            d.box(330 + 50 * j, 160 + 42 * i, 48, 40, GREEN if i == j == 1 else PAPER)
    for k in range(4):
        d.text(114 + 50 * k, 227, f"ta {k}", 13, mono=True)
        d.text(404, 39 + 30 * k, f"tb {k}", 13, mono=True)
    d.text(404, 227, "acc", 13, mono=True)
    d.text(70, 227, "a", 15, mono=True)
    d.text(500, 227, "c", 15, mono=True)
    d.text(520, 60, "acc = mma(ta, tb, acc)", 13, anchor="start", mono=True)
    d.text(520, 84, "while the next ones come", 13, anchor="start")
    d.text(520, 200, "acc stays in registers,", 13, anchor="start")
    d.text(520, 220, "and is stored at the end", 13, anchor="start")
    d.text(360, 312, "each element of ta is used BN times, each of tb BM times", 13)
    return d


def softmax() -> Drawing:
    d = Drawing(720, 300, "softmax: a block loads a row, folds it twice, and stores it")
    for row in range(3):
        y = 50 + 60 * row
        for k in range(4):
            inside = k < 3
            fill = (AMBER if row == 1 else BLUE) if inside else PAPER
            d.box(40 + 48 * k, y, 46, 42, fill, dashed=not inside)
            d.text(63 + 48 * k, y + 27, f"x{row}{k}" if inside else "-inf", 13, mono=True)
    d.text(135, 35, "x, in tiles of (1, 4)", 13)
    d.arrow(236, 131, 285, 131)
    d.text(260, 119, "load", 12)
    d.box(290, 50, 200, 162, GREEN)
    for line, words in enumerate(("t - max(t)", "e = exp(...)", "e * (1 / sum(e))")):
        d.text(390, 90 + 42 * line, words, 14, mono=True)
    d.text(390, 232, "block 1: the row is in its registers", 12)
    d.arrow(495, 131, 545, 131)
    d.text(520, 119, "store", 12)
    for k in range(3):
        d.box(550 + 48 * k, 110, 46, 42, AMBER)
        d.text(573 + 48 * k, 137, f"y1{k}", 13, mono=True)
    d.text(360, 275, "each element is read once and written once", 13)
    return d


def ranks() -> Drawing:
    d = Drawing(735, 300, "How the dimensions of a partition become the axes of the launch grid")
    rows = (
        ("rank 1", ("d0",), ((0,), (), ())),
        ("rank 2", ("d0", "d1"), ((0,), (1,), ())),
        ("rank 3", ("d0", "d1", "d2"), ((0,), (1,), (2,))),
        ("rank 4", ("d0", "d1", "d2", "d3"), ((0, 1), (2,), (3,))),
    )
    for axis in range(3):
        d.text(445 + 110 * axis, 32, f"axis {axis}", 13)
    for row, (name, dims, axes) in enumerate(rows):
        y = 50 + 60 * row
        d.text(45, y + 26, name, 14)
        for k, dim in enumerate(dims):
            d.box(95 + 62 * k, y, 54, 42, BLUE)
            d.text(122 + 62 * k, y + 26, dim, 14, mono=True)
        d.arrow(350, y + 21, 385, y + 21)
        for axis, members in enumerate(axes):
            d.box(395 + 110 * axis, y, 100, 42, GREEN if members else GREY)
            label = " ".join(dims[m] for m in members) if members else "1"
            d.text(445 + 110 * axis, y + 26, label, 14, mono=True)
    return d


def overlap() -> Drawing:
    d = Drawing(720, 330, "Waiting at once puts host work behind device work; waiting later puts it beside")
    for y, words in ((30, "sync: wait, then work"), (180, "async: submit, work, wait for what is left")):
        d.text(20, y, words, 14, anchor="start")
        d.text(75, y + 37, "host", 13, anchor="end")
        d.text(75, y + 87, "device", 13, anchor="end")
    step = 148  # the time of one batch's work, on either side
    for batch in range(2):
        x = 90 + 2 * step * batch
        d.box(x, 95, step, 34, GREEN)
        d.text(x + step / 2, 117, f"batch {batch}", 13)
        d.box(x, 45, step, 34, PAPER, dashed=True)
        d.text(x + step / 2, 67, "waits", 13)
        d.box(x + step, 45, step, 34, BLUE)
        d.text(x + 1.5 * step, 67, "host work", 13)
        x = 90 + step * batch
        d.box(x, 245, step, 34, GREEN)
        d.text(x + step / 2, 267, f"batch {batch}", 13)
        d.box(x, 195, step, 34, BLUE)
        d.text(x + step / 2, 217, "host work", 13)
    d.arrow(90, 305, 690, 305)
    d.text(660, 322, "time", 12)
    return d


def lifecycle() -> Drawing:
    d = Drawing(740, 190, "From a description to a result: op, policy, stream, future")
    boxes = (
        (20, BLUE, "op", ("built: nothing", "has happened")),
        (205, AMBER, "policy", ("chooses", "the stream")),
        (390, GREEN, "stream", ("an in-order queue", "on the device")),
        (575, BLUE, "result", ("the future is", "complete")),
    )
    for x, fill, name, words in boxes:
        d.box(x, 25, 145, 90, fill)
        d.text(x + 72, 53, name, 16, mono=True)
        for line, word in enumerate(words):
            d.text(x + 72, 77 + 20 * line, word, 12)
    for x, words in ((165, "run"), (350, "submit"), (535, "done")):
        d.arrow(x + 4, 70, x + 36, 70)
        d.text(x + 20, 57, words, 11)
    for x, w, words in ((205, 145, "idle"), (390, 145, "executing"), (575, 145, "complete")):
        d.box(x, 140, w, 30, GREY, dashed=True)
        d.text(x + w / 2, 160, words, 12, mono=True)
    d.text(190, 160, "DeviceFuture.state", 12, anchor="end", mono=True)
    return d


PICTURES = {
    "hello-tile": hello,
    "vecadd": vecadd,
    "saxpy": saxpy,
    "flash-attention": flash_attention,
    "matmul": matmul,
    "softmax": softmax,
    "async": overlap,
    "ranks": ranks,
    "execution-model": lifecycle,
}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
