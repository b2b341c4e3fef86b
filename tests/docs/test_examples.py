"""Every example runs, on made-up and on real input, and says plainly what is wrong with bad input."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Run = Callable[..., str]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def as_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some examples say how many CPU devices they want, where nobody has: for themselves alone."""
    monkeypatch.setenv("TILEKIT_CPU_DEVICES", os.environ.get("TILEKIT_CPU_DEVICES", "1"))


@pytest.fixture
def run(printed: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run an example on the device under test; gives what it printed."""

    def start(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py"])
        printed()
        load(name).main([str(a) for a in arguments])
        return printed()

    return start


@pytest.fixture
def refused(run: Run, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run an example that must exit with status 2 and one line on stderr; gives the line."""

    def start(name: str, *arguments: object) -> str:
        with pytest.raises(SystemExit) as exit_info:
            run(name, *arguments)
        text = capfd.readouterr().err
        assert exit_info.value.code == 2
        assert text.count("\n") == 1
        assert text.startswith(f"{name}.py: ")
        return text

    return start


def save(path: Path, values: object, dtype: object = np.float32) -> Path:
    np.save(path, np.array(values, dtype))
    return path


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_example_has_main_and_says_how_to_run_it(path: Path) -> None:
    module = load(path.stem)
    assert callable(module.main)
    assert f"python examples/{path.name}" in (module.__doc__ or "")


def test_examples_are_numbered_once_and_tutorials_as_their_examples() -> None:
    numbers = [int(path.name[:2]) for path in sorted(EXAMPLES.glob("*.py"))]
    assert numbers == list(range(1, len(numbers) + 1))
    tutorials = sorted((EXAMPLES.parent / "docs" / "tutorials").glob("*.md"))
    others = {"08-beyond-one-gpu": "16_tensor_parallel_mlp"}  # that of another number, which it shows a part of
    for page in tutorials:
        assert f"../../examples/{others.get(page.stem, page.stem.replace('-', '_'))}.py" in page.read_text("utf-8")
        assert page.read_text("utf-8").startswith(f"# {int(page.name[:2])}. ")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_a_page_leads_to_the_example(path: Path) -> None:
    pages = (EXAMPLES.parent / "docs").rglob("*.md")
    assert any(f"examples/{path.name}" in page.read_text("utf-8") for page in pages)


def test_pages_name_examples_that_exist() -> None:
    pages = [EXAMPLES.parent / "README.md", *(EXAMPLES.parent / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"examples/(\w+\.py)", page.read_text("utf-8"))}
    assert named <= {path.name for path in EXAMPLES.glob("*.py")}


def test_hello_prints_a_line_from_every_block(run: Run, device: tk.Device) -> None:
    lines = run("01_hello_tile", "--grid", 2, 3).splitlines()
    assert sorted(lines)[1:] == sorted(f"Hello from block {i} {j} of 2 by 3" for i in range(2) for j in range(3))
    assert f"6 blocks on {device.kind}:{device.ordinal}" in "\n".join(lines)


def test_hello_refuses_an_empty_grid(refused: Run) -> None:
    assert "--grid 0 2" in refused("01_hello_tile", "--grid", 0, 2)


@pytest.mark.parametrize("n", [0, 1, 10, 4096, 5000])
def test_vecadd_works_for_any_length(run: Run, device: tk.Device, n: int) -> None:
    out = run("02_vecadd", "--n", n, "--tile", 256)
    assert f"{n} elements in {-(-n // 256)} blocks on {device.kind}:{device.ordinal}" in out


def test_vecadd_refuses_bad_numbers(refused: Run) -> None:
    assert "power of two" in refused("02_vecadd", "--tile", 3)
    assert "not negative" in refused("02_vecadd", "--n", -1)


def test_saxpy_makes_its_own_input(run: Run, device: tk.Device) -> None:
    out = run("03_saxpy", "--n", 3000)
    assert f"saxpy of 3000 elements on {device.kind}:{device.ordinal}" in out
    assert "first launch" in out
    assert "second launch" in out
    assert "agrees with NumPy's" in out


def test_saxpy_tells_numpy_s_time_on_a_cpu(run: Run, device: tk.Device) -> None:
    """Beside its own, and the ratio is that of the two; a GPU is not compared with a CPU."""
    out = run("03_saxpy", "--n", 2**20)
    times = re.findall(r"^(?:second launch|NumPy's) +([\d.]+) ms", out, re.M)
    found = re.search(r"y \+= a \* x; the second launch takes ([\d.]+) of that", out)
    assert (found is not None) == (device.kind == "cpu")
    if found is not None:
        second, numpys = map(float, times)
        assert float(found[1]) == pytest.approx(second / numpys, rel=0.2, abs=0.02)


def test_saxpy_reads_and_writes_files(run: Run, tmp_path: Path) -> None:
    x, y = save(tmp_path / "x.npy", range(1500)), save(tmp_path / "y.npy", range(1500, 3000))
    out = tmp_path / "result"
    assert f"written to {out}" in run("03_saxpy", "--x", x, "--y", y, "--a", 0.5, "--out", out)
    np.testing.assert_array_equal(np.load(out), 0.5 * np.arange(1500, dtype=np.float32) + np.arange(1500, 3000, dtype=np.float32))


def test_saxpy_takes_empty_and_strange_numbers(run: Run, tmp_path: Path) -> None:
    empty = save(tmp_path / "empty.npy", [])
    assert "agrees" in run("03_saxpy", "--x", empty, "--y", empty)
    x, y = save(tmp_path / "x.npy", [np.inf, np.nan, 1e38]), save(tmp_path / "y.npy", [-np.inf, 1, 3e38])
    assert "agrees" in run("03_saxpy", "--x", x, "--y", y)


def test_saxpy_compiles_once(device: tk.Device, capfd: pytest.CaptureFixture[str]) -> None:
    module = load("03_saxpy")
    made = []
    specialise = module.saxpy.specialise
    module.saxpy.specialise = lambda *args: made.append(specialise(*args)) or made[-1]
    module.main(["--n", "3000"])
    capfd.readouterr()
    assert len({id(specialisation) for specialisation in made}) == 1


def test_saxpy_notices_a_wrong_result() -> None:
    module = load("03_saxpy")
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    assert module.agrees(np.full(4, 3, np.float32), 2.0, x, y)
    assert not module.agrees(np.array([3, 3, 3.00001, 3], np.float32), 2.0, x, y)
    assert not module.agrees(np.array([3, np.nan, 3, 3], np.float32), 2.0, x, y)


def test_saxpy_says_what_is_wrong_with_a_file(refused: Run, tmp_path: Path) -> None:
    good = save(tmp_path / "good.npy", [1, 2, 3])
    text = tmp_path / "notes.txt"
    text.write_text("1 2 3")
    damaged = tmp_path / "damaged.npy"
    damaged.write_bytes(good.read_bytes()[:-4])
    cases = {
        tmp_path / "none.npy": "No such file or directory",
        text: "not an .npy file",
        damaged: "damaged",
        save(tmp_path / "double.npy", [1, 2, 3], np.float64): "float64 of shape (3,); expected a one-dimensional float32 array",
        save(tmp_path / "matrix.npy", [[1, 2, 3]]): "shape (1, 3)",
    }
    for path, reason in cases.items():
        message = refused("03_saxpy", "--x", path, "--y", good)
        assert str(path) in message
        assert reason in message
    longer = save(tmp_path / "longer.npy", [1, 2, 3, 4])
    assert f"{good} holds 3 elements, {longer} holds 4" in refused("03_saxpy", "--x", good, "--y", longer)


def test_saxpy_says_what_is_wrong_with_the_options(refused: Run, tmp_path: Path) -> None:
    assert "--x and --y go together" in refused("03_saxpy", "--x", save(tmp_path / "x.npy", [1]))
    assert "not negative" in refused("03_saxpy", "--n", -1)
    assert "folder does not exist" in refused("03_saxpy", "--n", 8, "--out", tmp_path / "none" / "out.npy")
    assert "cannot be written" in refused("03_saxpy", "--n", 8, "--out", tmp_path)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write anywhere")
def test_saxpy_says_that_a_folder_cannot_be_written(refused: Run, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert "Permission denied" in refused("03_saxpy", "--n", 8, "--out", tmp_path / "out.npy")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_matmul_agrees_with_numpy(run: Run, device: tk.Device) -> None:
    out = run("05_matmul")
    assert f"on {device.kind}:{device.ordinal}" in out
    assert out.count("TFLOP/s; the same as NumPy's") == 3
    out = run("05_matmul", "--m", 70, "--n", 33, "--k", 300)
    assert "70 x 33 x 300" in out
    assert out.count("the same as NumPy's") == 3


def test_matmul_notices_a_wrong_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("05_matmul")
    monkeypatch.setattr(module, "own", lambda c, a, b, bias: c.fill(0.0))
    with pytest.raises(SystemExit, match="1"):
        module.main(["--m", "20", "--n", "20", "--k", "20"])


def test_flash_attention_agrees_with_numpy(run: Run, device: tk.Device) -> None:
    out = run("06_flash_attention", "--length", 150)
    assert f"on {device.kind}:{device.ordinal}" in out
    assert out.count("TFLOP/s; the same as NumPy's") == 3
    out = run("06_flash_attention", "--heads", 1, "--length", 33, "--size", 128)
    assert "1 heads of 33 x 128" in out
    assert out.count("the same as NumPy's") == 3


def test_flash_attention_notices_a_wrong_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("06_flash_attention")
    monkeypatch.setattr(module, "own", lambda q, k, v: api.zeros(q.shape, q.dtype))
    with pytest.raises(SystemExit, match="1"):
        module.main(["--heads", "1", "--length", "20"])


def test_flash_attention_takes_no_empty_sequence(refused: Run) -> None:
    assert "--heads and --length are at least 1" in refused("06_flash_attention", "--length", 0)


def test_matmul_takes_no_empty_matrix(refused: Run) -> None:
    assert "--m, --n and --k are at least 1" in refused("05_matmul", "--k", 0)


def test_softmax_agrees_with_numpy(run: Run, device: tk.Device) -> None:
    out = run("04_softmax", "--rows", 5, "--columns", 33)
    assert f"5 x 33 on {device.kind}:{device.ordinal}" in out
    assert out.count("the same as NumPy's") == 2
    out = run("04_softmax", "--rows", 2, "--columns", 40000)
    assert "rows of more than 32768 elements take a loop" in out
    assert out.count("the same as NumPy's") == 1


def test_softmax_takes_no_empty_matrix(refused: Run) -> None:
    assert "--rows and --columns are at least 1" in refused("04_softmax", "--rows", 0)


def test_async_awaits_gathers_and_measures(run: Run, device: tk.Device) -> None:
    out = run("07_async", "--n", 5000, "--batches", 3, "--launches", 2)
    assert f"awaited: saxpy of 5000 elements on {device.kind}:{device.ordinal}" in out
    assert "gathered: 3 batches, the same as NumPy's" in out
    assert "2 launches" in out
    assert "one after the other" in out
    assert "side by side" in out


def test_async_takes_no_elements(run: Run) -> None:
    assert "gathered: 4 batches" in run("07_async", "--n", 0, "--launches", 1)


def test_async_refuses_bad_numbers(refused: Run) -> None:
    assert "not negative" in refused("07_async", "--n", -1)
    assert "--batches 0: at least one" in refused("07_async", "--batches", 0)
    assert "--launches 0: at least one" in refused("07_async", "--launches", 0)


def test_mlp_pipeline_agrees_with_numpy(run: Run, device: tk.Device) -> None:
    sizes = ("--batches", 6, "--rows", 32, "--features", 48, "--hidden", 64, "--outputs", 16)
    out = run("08_mlp_pipeline", *sizes)
    assert f"6 batches of 32 x 48 -> 64 -> 16 on {device.kind}:{device.ordinal}" in out
    assert out.count("the same as NumPy's") == 2
    assert "of the time of one stream (speed-up " in out
    out = run("08_mlp_pipeline", *sizes, "--rows", 17, "--features", 5, "--hidden", 70, "--outputs", 3, "--streams", 2)
    assert "2 streams" in out
    assert out.count("the same as NumPy's") == 2


def test_mlp_pipeline_has_sizes_for_both_kinds_of_devices() -> None:
    sizes = load("08_mlp_pipeline").SIZES
    assert set(sizes) == {"cpu", "cuda"}
    assert min(map(min, sizes.values())) > 0


def test_mlp_pipeline_deals_batches_out_to_streams(device: tk.Device) -> None:
    module = load("08_mlp_pipeline")
    network = module.Network(np.ones((4, 4), np.float16), np.ones((4, 4), np.float16))
    used = []
    policy = tk.StreamPoolRoundRobin(device, 3)
    scores = network.scores

    def noted(batch: object, out: object) -> object:
        return scores(batch, out).then(lambda y: tk.with_context(lambda ctx: tk.value(used.append(ctx.stream))))

    network.scores = noted
    batches, outs = np.ones((6, 2, 4), np.float16), np.empty((6, 2, 4), np.float16)
    asyncio.run(module.run_all(network, batches, outs, policy))
    assert len(set(used)) == 3
    assert (outs == 16).all()


def test_mlp_pipeline_notices_a_wrong_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("08_mlp_pipeline")
    monkeypatch.setattr(module.epilogues, "relu", None)
    with pytest.raises(SystemExit, match="1"):
        module.main(["--batches", "2", "--rows", "8", "--features", "8", "--hidden", "8", "--outputs", "4"])


def test_mlp_pipeline_refuses_bad_numbers(refused: Run) -> None:
    for name in ("batches", "rows", "features", "hidden", "outputs", "streams"):
        assert f"--{name} 0: at least one" in refused("08_mlp_pipeline", f"--{name}", 0)


def test_cuda_graphs_agree_with_numpy(run: Run, device: tk.Device) -> None:
    out = run("10_cuda_graphs", "--width", 100, "--layers", 2, "--tokens", 3)
    assert f"2 layers of width 100 on {device.kind}:{device.ordinal}" in out
    assert "recorded: 6 nodes by combinators, 6 in a scope, 7 with a slot" in out
    assert out.count("us per token, the same as NumPy's") == 4


def test_cuda_graphs_notice_a_layer_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("10_cuda_graphs")
    forward = module.Model.forward
    monkeypatch.setattr(module.Model, "forward", lambda self: forward(self) if self.layers.pop() else None)
    with pytest.raises(SystemExit, match="1"):
        module.main(["--width", "16", "--layers", "5", "--tokens", "1"])


def test_cuda_graphs_refuse_bad_numbers(refused: Run) -> None:
    assert "--width, --layers and --tokens are at least 1" in refused("10_cuda_graphs", "--layers", 0)


def test_torch_autograd_agrees_with_torch(run: Run, device: tk.Device) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    out = run("12_torch_autograd", "--n", 5000, "--steps", 20)
    assert f"SiLU of 5000 elements on {device.kind}:{device.ordinal}: values and gradients agree with PyTorch's" in out
    assert "20 steps of training, eager" in out
    assert "20 steps of training, compiled" in run("12_torch_autograd", "--n", 0, "--steps", 20, "--compile")


def test_torch_autograd_says_that_torch_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run("12_torch_autograd") == "PyTorch is not installed, so there is nothing to show: pip install torch\n"


def test_torch_autograd_kernels_are_right(device: tk.Device) -> None:
    module = load("12_torch_autograd")
    x, dy = np.random.default_rng(0).normal(size=(2, 3000)).astype(np.float32)
    on_device_x, on_device_dy = api.from_host(x).sync(), api.from_host(dy).sync()
    y = module.silu_forward(api.zeros(3000).partition(1024), on_device_x).first().unpartition().to_host().sync()
    dx = module.silu_backward(api.zeros(3000).partition(1024), on_device_dy, on_device_x).first().unpartition().to_host().sync()
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(y, x * s, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, dy * s * (1 + x * (1 - s)), rtol=1e-4, atol=1e-5)


def test_torch_autograd_refuses_bad_numbers(refused: Run) -> None:
    assert "not negative" in refused("12_torch_autograd", "--n", -1)
    assert "--steps 0: at least one" in refused("12_torch_autograd", "--steps", 0)


def test_other_kernels_agree_with_numpy(run: Run, device: tk.Device) -> None:
    out = run("13_other_kernels", "--n", 3000)
    languages = "tilekit, CUDA C++, numba: 3" if device.kind == "cuda" else "tilekit: 1"
    assert f"{languages} x a * x, the same as NumPy's" in out
    assert ("numba: needs a GPU, or its simulator" in out) == (device.kind == "cpu")
    assert "0 elements on" in run("13_other_kernels", "--n", 0)


def test_other_kernels_run_in_numbas_simulator() -> None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "TILEKIT_DEVICE": "cpu", "PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, str(EXAMPLES / "13_other_kernels.py"), "--n", "500"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "tilekit, numba: 2 x a * x, the same as NumPy's" in done.stdout


def test_other_kernels_refuse_bad_numbers(refused: Run) -> None:
    assert "not negative" in refused("13_other_kernels", "--n", -1)


def test_autotune_finds_what_can_be_used(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    out = run("14_autotune", "--size", 70, "--samples", 1)
    assert out.count("searched among") == 2
    assert "the product is the same as NumPy's" in out
    assert "product: Config" in run("14_autotune", "--size", 70, "--samples", 1).partition(", from a record")[0]


def alone(name: str, *arguments: object) -> str:
    """Run an example in a process of its own, on as many CPU devices as it likes; gives what it printed."""
    environment = {**os.environ, "TILEKIT_DEVICE": "cpu", "PYTHONPATH": str(EXAMPLES.parent)}
    environment.pop("TILEKIT_CPU_DEVICES", None)
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_collectives_fit_on_all_devices(run: Run) -> None:
    out = alone("15_collectives", "--rows", 99, "--columns", 3, "--steps", 5)
    assert "<tilekit.Group of 4: cpu:0, cpu:1, cpu:2, cpu:3>" in out
    assert "5 steps, 99 rows: mean squared error" in out
    assert "the same parameters as on one device" in run("15_collectives", "--rows", 50, "--steps", 3)


def test_collectives_fit_in_processes() -> None:
    out = alone("15_collectives", "--processes", 2, "--rows", 50, "--steps", 3)
    assert "2 processes: members [0, 1]" in out and "the same parameters as on one device" in out


def test_collectives_refuse_bad_numbers(refused: Run) -> None:
    assert "are at least 1, --processes at least 0" in refused("15_collectives", "--rows", 0)


@pytest.mark.parametrize("data", [1, 2])
def test_tensor_parallel_network(data: int) -> None:
    out = alone("16_tensor_parallel_mlp", "--data", data, "--rows", 13)
    assert "13 x 24 scores, the same on 4 x cpu as on one device" in out
    assert f"ShardSpec({None}, 'model')" in out


def test_tensor_parallel_network_on_one_device(run: Run, refused: Run) -> None:
    assert "as on one device" in run("16_tensor_parallel_mlp")
    assert "--data 2 does not divide 1 devices" in refused("16_tensor_parallel_mlp", "--data", 2)
    assert "--rows 0: at least one" in refused("16_tensor_parallel_mlp", "--rows", 0)


def test_cluster_counts_points() -> None:
    out = alone("17_cluster")
    assert "<Cluster local: cpu:0, cpu:1, cpu:2, cpu:3>" in out and "pi is about 3.1" in out


def test_autotune_refuses_bad_numbers(refused: Run) -> None:
    assert "--size and --samples are at least 1" in refused("14_autotune", "--size", 0)


def test_larger_than_memory_is_equal_to_numpy(run: Run, tmp_path: Path) -> None:
    assert "7.8 MiB in 8 chunks" in run("11_larger_than_memory")
    source, target = save(tmp_path / "in.npy", np.arange(300.0).reshape(100, 3)), tmp_path / "out.npy"
    assert "in 1 chunks" in run("11_larger_than_memory", "--input", source, "--output", target, "--factor", 0.5)
    np.testing.assert_array_equal(np.load(target), np.arange(300, dtype=np.float32).reshape(100, 3) / 2)


def test_larger_than_memory_refuses_what_it_cannot_take(refused: Run, tmp_path: Path) -> None:
    assert "--rows and --chunk-mib are at least 1" in refused("11_larger_than_memory", "--rows", 0)
    wrong = save(tmp_path / "wrong.npy", np.arange(3.0), np.float64)
    assert "float64 of shape (3,): a float32 matrix is needed" in refused("11_larger_than_memory", "--input", wrong)
    assert "No such file" in refused("11_larger_than_memory", "--input", tmp_path / "missing.npy")
