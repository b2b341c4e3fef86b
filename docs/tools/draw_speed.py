"""Draw the front page's picture: the speed of tilekit's kernels, with the fastest of the others as 1.

    python docs/tools/draw_speed.py

The figures are those of the records in `docs/benchmarks`; nothing is measured here. `tests/docs/test_pictures.py` checks that the
picture is up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drawing import AMBER, LINE, Drawing

DOCS = Path(__file__).resolve().parents[1]
PICTURE = DOCS / "images" / "speed.svg"

# What the row says; the record; the kernel and the shape in it.
ROWS: tuple[tuple[str, str, str, list[int]], ...] = (
    ("saxpy, 2^28 float32", "saxpy", "", []),
    ("softmax, 32768 x 4096 float32", "softmax", "softmax", [32768, 4096]),
    ("layer norm, 32768 x 4096 float16", "norms", "layer_norm", [32768, 4096]),
    ("transpose, 16384 x 16384 float32", "kernels", "transpose", [16384, 16384]),
    ("cross-entropy, 8192 x 32768 float16", "kernels", "cross_entropy", [8192, 32768]),
    ("product of matrices, 4096^3 bfloat16", "gemm", "gemm", [4096, 4096, 4096]),
    ("attention, heads of 128", "attention", "attention", [1, 32, 8192, 128]),
    ("attention, heads of 128, causal", "attention", "causal attention", [1, 32, 8192, 128]),
    ("its gradients, heads of 128, causal", "attention", "causal attention_backward", [1, 32, 8192, 128]),
    ("its gradients, heads of 256, causal", "attention", "causal attention_backward", [1, 16, 8192, 256]),
    ("decoding, 32768 keys, heads of 128", "attention", "attention_decode", [8, 32, 8, 32768, 128]),
)
NAMES = {"triton": "Triton", "cudnn": "cuDNN", "torch": "PyTorch", "flash-attention-2": "FlashAttention-2"}
WIDTH, UNIT, LEFT, ROW = 470, 215, 12, 42  # pixels of the picture, of the speed 1, before it, and of a row


def speed(record: str, kernel: str, shape: list[int]) -> tuple[float, str]:
    """tilekit's speed as a multiple of the fastest peer's, and that peer."""
    data: dict[str, Any] = json.loads((DOCS / "benchmarks" / f"{record}-h200.json").read_text("utf-8"))
    cases = [case for case in data.get("cases", [data]) if not kernel or (case["kernel"], case["shape"]) == (kernel, shape)]
    results = cases[0]["results"]  # where there are several dtypes, the first
    own = next(each for each in results if each["name"] == "tilekit")
    best = min((each for each in results if each["name"] != "tilekit"), key=lambda each: each["median_us"])
    paired = own.get("ratio", own.get("ratio_to_best_peer"))  # of samples taken in turns, where the record has it
    name = "cuBLAS" if record == "gemm" and best["name"] == "torch" else NAMES[best["name"]]
    return paired or best["median_us"] / own["median_us"], name


def draw() -> Drawing:
    end = 12 + ROW * len(ROWS)
    d = Drawing(WIDTH, end + 26, "The speed of tilekit's kernels on an H200, with the fastest of the other libraries as 1")
    for row, (label, record, kernel, shape) in enumerate(ROWS):
        y = 12 + ROW * row
        ratio, peer = speed(record, kernel, shape)
        d.text(LEFT, y + 13, label, 13, anchor="start")
        d.box(LEFT, y + 18, UNIT * ratio, 17, AMBER)
        d.text(LEFT + UNIT * max(ratio, 1) + 8, y + 31, f"{ratio:.2f} of {peer}", 13, anchor="start")
    x = LEFT + UNIT
    d.parts.append(f'<line x1="{x}" y1="18" x2="{x}" y2="{end}" stroke="{LINE}" stroke-dasharray="3 3"/>')
    d.text(x, end + 16, "1: the fastest of the others", 13)
    return d


def main() -> None:
    PICTURE.write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
