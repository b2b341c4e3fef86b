"""Ops that are collected without having run: who is told, where, how often, and who is not."""

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import tilekit
import tilekit as tk
from tilekit import api

# Every line that is to be warned of ends in "# warned".
PROGRAM = """
import gc
import tilekit as tk
from tilekit import api

@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())

y = api.ones(8).sync()
double(y.partition(4))  # warned
api.zeros(8)  # warned
api.zeros(8).map(str)  # warned
for n in range(1, 200):
    api.zeros(n).partition(n)  # warned
    double(api.ones(8).sync().partition(8 if n % 2 else 4))  # warned
forgotten = double(y.partition(4)).then(lambda done: tk.value(1))  # warned
del forgotten
tk.zip(double(y.partition(4)), api.zeros(3)).first()  # warned
tk.zip(double(y.partition(4)), api.zeros(3)).unzip()[1]  # warned

double(y.partition(4)).compile("sm_90a")
double(api.meta(8).partition(4)).explain("sm_90a")
double(api.meta(8).partition(4)).num_warps(4).compile("sm_80")
tk.value(3)
y.device_operation()
tk.zip(api.zeros(3), api.ones(3)).sync()
api.zeros(3).async_on(tk.default_device().stream())
double(y.partition(4)).graph()
double(y.partition(4)).prepare()

class Refused(tk.DeviceOp):
    def __init__(self, n):
        self.n = n
        raise ValueError("no")

def attempt(function):
    try:
        function()
    except Exception as error:
        del error

def refused():
    raise OSError

for _ in range(20):
    attempt(lambda: tk.zip(api.zeros(3), api.ones(-1)))
    attempt(lambda: tk.zip(double(y.partition(4)), refused()))
    attempt(lambda: (api.zeros(3), 1 / 0))
    attempt(lambda: Refused(3))
    attempt(lambda: tk.join_all(5))
    try:
        refused()
    except OSError:
        api.zeros(9)  # warned
gc.collect()
kept = api.zeros(8)
cycle = [api.zeros(8)]
cycle.append(cycle)
raise SystemExit
"""


def warned(stderr):
    """The numbers of the lines that were warned of."""
    return [int(line.split(":")[1]) for line in stderr.splitlines() if "UnusedOpWarning: " in line]


def run(tmp_path, *options):
    program = tmp_path / "forgetful.py"
    program.write_text(PROGRAM)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(tilekit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "TILEKIT_DEVICE": "cpu",
    }
    environ.pop("PYTHONWARNINGS", None)
    command = [sys.executable, *options, program]
    return program, subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environ)


def test_python_shows_each_place_once_by_default(tmp_path):
    program, done = run(tmp_path)
    expected = [at for at, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# warned")]
    assert warned(done.stderr) == expected, done.stderr
    assert (
        f"{program}:{expected[0]}: UnusedOpWarning: kernel double, built at {program}:{expected[0]}, was never run: use"
        in done.stderr
    )
    assert "double(y.partition(4))  # warned" in done.stderr, "with the line itself"
    assert "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) == 2 * len(expected), "and nothing else"


def test_filters_hide_it(tmp_path):
    _, done = run(tmp_path, "-W", "ignore::UserWarning")
    assert done.stderr == ""


def test_every_one_is_shown_to_who_asks_for_that():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 4):
            api.zeros(n)
        gc.collect()
    assert [w.category for w in caught] == [tk.UnusedOpWarning] * 3
    assert {(w.filename, w.lineno) for w in caught} == {(__file__, warned_line())}
    assert issubclass(tk.UnusedOpWarning, UserWarning)


def warned_line():
    code = test_every_one_is_shown_to_who_asks_for_that.__code__
    lines = Path(__file__).read_text().splitlines()
    return next(at for at in range(code.co_firstlineno, len(lines)) if "api.zeros(n)" in lines[at - 1])


class Ordered(tk.DeviceOp):
    """An op of a user's."""

    def __init__(self, n, /, *, twice=False):
        if n < 0:
            raise ValueError(f"{n} is negative")
        self.n = n

    def execute(self, ctx):
        return self.n


class Derived(Ordered):
    def __init__(self, n):
        super().__init__(n, twice=True)


@pytest.mark.parametrize("kind", [Ordered, Derived])
def test_ops_of_users_warn_unless_they_could_not_be_built(kind):
    with pytest.raises(ValueError, match="-1 is negative"):
        kind(-1)
    gc.collect()
    with pytest.warns(tk.UnusedOpWarning, match=f"{kind.__name__}, built at .*test_unused.py"):
        kind(1)
    assert kind(2).sync() == 2


def test_the_signature_of_a_users_op_stays():
    import inspect

    assert str(inspect.signature(Ordered)) == "(n, /, *, twice=False)"
