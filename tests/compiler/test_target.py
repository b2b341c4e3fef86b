"""The records of GPUs: names and compute capabilities lead to one each, and what differs is asked for by name."""

import ast
from pathlib import Path

import pytest

import tilekit
from tilekit._driver.cuda.context import target_for
from tilekit._driver.cuda.discovery import OLDEST
from tilekit.compiler import target
from tilekit.compiler.target import TARGETS

CAPABILITIES = sorted({record.capability for record in TARGETS.values()})


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_what_a_device_is_compiled_for_is_a_target(capability):
    name = target_for(capability)
    assert target.named(name) is target.of(capability)
    assert target.of(capability).label == name.rstrip("af")


def test_the_oldest_gpu_has_a_record():
    assert CAPABILITIES[0] == OLDEST


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("sm_80", (8, 0)),
        ("sm_90", (9, 0, "a")),
        ("sm_90a", (9, 0, "a")),
        ("sm_100", (10, 0, "a")),
        ("sm_100f", (10, 0, "f")),
        ("sm_120", (12, 0)),
        ("sm_120a", (12, 0, "a")),
    ],
)
def test_names_as_numba_writes_them(name, capability):
    assert target.numba_capability(name) == capability


def test_what_there_is_no_record_of():
    with pytest.raises(ValueError, match=r"target 'sm_75': tilekit compiles for sm_80, sm_86, .*sm_121a$"):
        target.named("sm_75")
    with pytest.raises(ValueError, match=r"compute capability 7\.5: tilekit compiles for 8\.0, .*12\.1$"):
        target.of((7, 5))


def test_features():
    """Who has what; a multiprocessor's shared memory is that of a block and what CUDA takes of it."""
    records = {record.label: record for record in TARGETS.values()}
    assert {name for name, record in records.items() if record.wgmma} == {"sm_90"}
    assert {name for name, record in records.items() if not record.tma} == {"sm_80", "sm_86", "sm_87", "sm_89"}
    assert {name for name, record in records.items() if record.clusters and not record.multicast} == {"sm_120", "sm_121"}
    for record in records.values():
        assert record.shared_bytes == record.block_shared_bytes + record.launch_shared_bytes
        assert record.clusters == record.tma >= record.wgmma


def test_nobody_compares_compute_capabilities():
    """A comparison with a pair of numbers means a feature: it has a name."""
    found = []
    for path in Path(tilekit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare) and "capability" in ast.unparse(node.left):
                pairs = [side for side in node.comparators if isinstance(side, ast.Tuple) and len(side.elts) == 2]
                found += [f"{path.name}:{node.lineno}" for side in pairs]
    assert found == []
