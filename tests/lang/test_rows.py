"""A tile operation is a complete row: signature, docstring with an example that is executed, reference, lowering, parity test."""

import doctest
import importlib
import inspect
import runpy
from pathlib import Path

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.lang.registry import OPS

PARITY = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_parity*.py")))


@pytest.mark.parametrize("name", OPS)
def test_the_example_in_its_docstring_runs(name, device, capfd, tmp_path):
    op = OPS[name]
    module = importlib.import_module(f"tilekit.lang.{op.family}")
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(op.function), {"tk": tk, "api": api, "np": np, **vars(module)}, name, module.__file__, 0
    )
    assert example.examples, f"tk.{name} has no example"
    if "print" in name:
        # Its lines come from the device, past Python's sys.stdout and in any order: no doctest sees them.
        program = tmp_path / "example.py"
        program.write_text(
            "".join(["import tilekit as tk\nfrom tilekit import api\n", *(part.source for part in example.examples)])
        )
        runpy.run_path(str(program))
        device.synchronize()
        wanted = "".join(part.want for part in example.examples)
        assert sorted(capfd.readouterr().out.splitlines()) == sorted(wanted.splitlines())
        return
    report = []
    runner = doctest.DocTestRunner()
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", OPS)
def test_it_is_exported(name):
    assert getattr(tk, name) is OPS[name].function
    assert name in tk.__all__


@pytest.mark.parametrize("name", OPS)
def test_its_parameters_are_documented(name):
    text = inspect.getdoc(OPS[name].function)
    for parameter in OPS[name].signature.parameters:
        assert f"{parameter}:" in text or f"{parameter}," in text or f", {parameter}" in text, (
            f"tk.{name}: {parameter} is not described"
        )
    assert "Raises:" in text


@pytest.mark.parametrize("name", OPS)
def test_it_has_a_lowering_in_the_file_of_the_same_name(name):
    from tilekit.compiler import lower
    from tilekit.compiler.codegen import definition as ops

    assert OPS[name].family in lower.__all__
    # `lowers` compares the signatures when it registers.
    assert OPS[name].function in ops.LOWERINGS
    assert ops.LOWERINGS[OPS[name].function].__module__ == f"tilekit.compiler.lower.{OPS[name].family}"


@pytest.mark.parametrize("name", [name for name in OPS if name != "pipelined"])  # which is a loop
def test_it_is_compiled_for_the_cpu(name):
    """That its parity tests' kernels are, and nothing of them is interpreted, each test looks at: see `conftest`."""
    from tilekit.compiler.cpu.operations import FAMILIES
    from tilekit.compiler.cpu.registry import LOWERINGS

    assert LOWERINGS[name].__module__ in {family.__name__ for family in FAMILIES}


@pytest.mark.parametrize("name", OPS)
def test_it_has_a_parity_test(name):
    assert f"tk.{name}(" in PARITY or f".{name}(" in PARITY, f"no test in test_parity*.py uses tk.{name}"
