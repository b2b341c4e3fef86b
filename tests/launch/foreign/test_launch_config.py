"""How a kernel that is not tilekit's says how it is launched, and what its parameters are."""

import dataclasses
import re

import numpy as np
import pytest
from cuda_code import CODE

import tilekit as tk


def test_a_configuration_has_three_axes_everywhere():
    config = tk.LaunchConfig(grid=(4, 2), block=128, shared_bytes=np.int64(64), cluster=2)
    assert (config.grid, config.block, config.shared_bytes, config.cluster) == ((4, 2, 1), (128, 1, 1), 64, (2, 1, 1))
    assert tk.LaunchConfig(grid=1, block=[8, 8, 8]).block == (8, 8, 8)
    assert config == dataclasses.replace(config) == tk.LaunchConfig(grid=(4, 2, 1), block=128, shared_bytes=64, cluster=(2, 1))
    assert hash(config) == hash(dataclasses.replace(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.grid = 1
    with pytest.raises(TypeError):
        tk.LaunchConfig(4, 128)


@pytest.mark.parametrize(
    ("n", "block", "blocks"), [(0, 256, 0), (1, 256, 1), (256, 256, 1), (257, 256, 2), (10**9, 1024, 976563)]
)
def test_a_configuration_for_so_many_elements(n, block, blocks):
    config = tk.LaunchConfig.for_num_elems(n, block)
    assert (config.grid, config.block) == ((blocks, 1, 1), (block, 1, 1))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"grid": -1, "block": 1}, ValueError, r"grid \(-1,\) has -1 along axis 0; CUDA has 0 to 2147483647 there"),
        ({"grid": (1, 65536), "block": 1}, ValueError, r"grid \(1, 65536\) has 65536 along axis 1; CUDA has 0 to 65535 there"),
        ({"grid": 2**31, "block": 1}, ValueError, "along axis 0"),
        ({"grid": (), "block": 1}, ValueError, r"grid has one to three axes, not 0 as \(\)"),
        ({"grid": (1, 1, 1, 1), "block": 1}, ValueError, "not 4"),
        ({"grid": 1.5, "block": 1}, TypeError, r"grid is an int or a tuple of up to three, not 1\.5"),
        ({"grid": "8", "block": 1}, TypeError, "grid is an int or a tuple of up to three, not '8'"),
        ({"grid": 1, "block": (1, 2.0)}, TypeError, r"block is an int or a tuple of up to three, not \(1, 2\.0\)"),
        ({"grid": True, "block": 1}, TypeError, "not True"),
        ({"grid": 1, "block": 0}, ValueError, "block .* has 0 along axis 0; CUDA has 1 to 1024 there"),
        ({"grid": 1, "block": (1, 1, 65)}, ValueError, "65 along axis 2; CUDA has 1 to 64 there"),
        ({"grid": 1, "block": (64, 32)}, ValueError, r"block \(64, 32, 1\) has 2048 threads; CUDA has 1024 at most"),
        (
            {"grid": 1, "block": 1, "shared_bytes": -1},
            ValueError,
            r"shared_bytes is a number of bytes from 0 to 2\*\*32 - 1, not -1",
        ),
        ({"grid": 1, "block": 1, "shared_bytes": "1"}, TypeError, "shared_bytes is one int, not '1'"),
        ({"grid": 1, "block": 1, "shared_bytes": (1, 2)}, TypeError, r"shared_bytes is one int, not \(1, 2\)"),
        ({"grid": 1, "block": 1, "shared_bytes": ()}, TypeError, r"shared_bytes is one int, not \(\)"),
        ({"grid": 1, "block": 1, "shared_bytes": 2**32}, ValueError, "shared_bytes .* not 4294967296"),
        ({"grid": 32, "block": 1, "cluster": 17}, ValueError, "cluster .* has 17 along axis 0"),
        ({"grid": (8, 8), "block": 1, "cluster": (8, 4)}, ValueError, "has 32 blocks; CUDA has 16 at most"),
        ({"grid": 5, "block": 1, "cluster": 2}, ValueError, r"the grid \(5, 1, 1\) is not made of whole clusters \(2, 1, 1\)"),
    ],
)
def test_a_configuration_that_cuda_does_not_launch(given, error, message):
    with pytest.raises(error, match=f"LaunchConfig: .*{message}"):
        tk.LaunchConfig(**given)


def test_a_number_of_elements_that_is_none():
    with pytest.raises(ValueError, match="for_num_elems: n is a number of elements, not -1"):
        tk.LaunchConfig.for_num_elems(-1)
    for n in (2.0, (1, 2), (), None, True):
        with pytest.raises(TypeError, match=re.escape(f"LaunchConfig: n is one int, not {n!r}")):
            tk.LaunchConfig.for_num_elems(n)
    with pytest.raises(TypeError, match=r"block is one int, not \(1, 2\)"):
        tk.LaunchConfig.for_num_elems(10, (1, 2))
    with pytest.raises(ValueError, match="block .* has 0 along axis 0; CUDA has 1 to 1024 there"):
        tk.LaunchConfig.for_num_elems(10, 0)
    with pytest.raises(ValueError, match="along axis 0; CUDA has 0 to 2147483647 there"):
        tk.LaunchConfig.for_num_elems(2**70)
    with pytest.raises(ValueError, match="block .* has 2048 along axis 0"):
        tk.LaunchConfig.for_num_elems(10, 2048)


# signatures


@pytest.mark.parametrize(
    ("signature", "shown"),
    [
        ("Out[f32], In[bf16],InOut[ int8 ] , f64", "Out[f32], In[bf16], InOut[i8], f64"),
        (["Out[f32]", tk.int32, np.float16], "Out[f32], i32, f16"),
        ("y: Out, n: u64", "Out, u64"),
        ("", ""),
        ((), ""),
    ],
)
def test_a_signature_is_read(signature, shown):
    kernel = tk.cuda_source(CODE, "saxpy", signature)
    assert ", ".join(map(str, kernel.parameters)) == shown


@pytest.mark.parametrize(
    ("signature", "error", "message"),
    [
        ("Out[f32], int", ValueError, "'int' in 'int' is no dtype: there are bool, i8"),
        ("In[float]", ValueError, "'float' in 'In.float.' is no dtype"),
        ("float*", ValueError, "'float\\*' declares no parameter; write parameters such as In.f32."),
        ("f32,", ValueError, "'' declares no parameter"),
        ("inout[f32]", ValueError, ".* declares no parameter"),
        ("x: In, n: i32, x: Out", ValueError, "its signature has two parameters x; give each a name of its own, or none"),
        (3, TypeError, "a signature is a string such as .*, not 3"),
        ([float, "f32"], None, None),
        ([object()], TypeError, "a parameter is declared by a string or, for scalars, a dtype"),
    ],
)
def test_a_signature_that_is_none(signature, error, message):
    if error is None:
        assert str(tk.cuda_source(CODE, "k", signature).parameters[0]) == "f64"  # as np.dtype has it
        return
    with pytest.raises(error, match=f"CUDA kernel saxpy: {message}"):
        tk.cuda_source(CODE, "saxpy", signature)
