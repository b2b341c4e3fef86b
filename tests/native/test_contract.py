"""What the compiled module reads of Python's is what `attributes.py` describes, lies below, and is compared before it is used."""

import configparser
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from types import MemberDescriptorType
from typing import NamedTuple

import pytest

import tilekit as tk
from tilekit import _native, launch
from tilekit._native import attributes
from tilekit._runtime.storage import Imported, Storage
from tilekit._runtime.stream import Stream
from tilekit.kernels._recipe import Recipe

compiled = pytest.mark.skipif(_native.compiled is None, reason="tilekit was installed without a C compiler")
FOLDER = Path(_native.__file__).parent
REPOSITORY = FOLDER.parent.parent
HEADER = (FOLDER / "_launch.h").read_text() if (FOLDER / "_launch.h").exists() else ""
SOURCE = "".join(path.read_text() for path in sorted(FOLDER.glob("*.c")))
sources = pytest.mark.skipif(not SOURCE, reason="a wheel has no C sources")

# The digest of the module's signatures, by its version: with other signatures comes the next version, here, in attributes.py and
# in _launch.h.
SIGNATURES = {8: "02a6c178962e9ce2"}


def listed(macro):
    """What is in one of the header's lists."""
    body = re.search(rf"#define {macro}\(X\)((?:.*\\\n)+.*)\n", HEADER)[1]
    return re.findall(r'X\((\w+)(?:, "?(\w+)"?)?\)', body)


@sources
def test_the_lists_are_those_of_the_description():
    described = [(owner.__name__, name) for owner, names in attributes.SLOTS.items() for name in names]
    assert listed("SLOTS") == described
    assert [text for _, text in listed("NAMES")] == list(attributes.NAMES)
    assert [name for name, _ in listed("HELPERS")] == sorted([*attributes.HELPERS, "ended", "waited"])
    assert [name for name, _ in listed("CONSTANTS")] == list(attributes.CONSTANTS)
    assert f"VERSION = {attributes.VERSION} " in HEADER


@sources
def test_nothing_is_listed_that_is_not_read():
    for owner, name in listed("SLOTS") + listed("RECALLED_SLOTS"):
        assert re.search(rf"\b{owner}_{name}\b", SOURCE), f"{owner}.{name}"
    for macro, prefix in (("NAMES", "names"), ("HELPERS", "helpers"), ("CONSTANTS", "constants")):
        for field, _ in listed(macro):
            assert re.search(rf"\b{prefix}\.{field}\b", SOURCE), f"{prefix}.{field}"


@sources
def test_recipes_are_those_that_are_read():
    assert [name for _, name in listed("RECIPE")] == list(Recipe._fields)


@compiled
def test_other_recipes_are_refused():
    class Op:
        __slots__ = ()

    class Other(NamedTuple):
        new: tuple[()]
        launches: tuple[()]

    with pytest.raises(ImportError, match=r"other recipes than those with \('new', 'launches'\)"):
        _native.compiled.recalls(Op, Other, (min, min, min))
    with pytest.raises(ImportError, match=r"Recalled._begun is none of the class's __slots__"):
        _native.compiled.recalls(Op, Recipe, (min, min, min))


@sources
def test_no_attribute_is_read_that_is_not_listed():
    """But for methods of deques and locks, which are looked up once."""
    assert re.findall(r"PyObject_(?:Get|Set|Has)AttrString\(.*", SOURCE) == [
        "PyObject_GetAttrString(in, class) : NULL;",
        "PyObject_GetAttrString(owner, method->text) : NULL;",
    ]
    assert not re.search(r"PyUnicode_(?:Intern)?FromString\(\"|PyObject_CallMethod\(|_Py_Id", SOURCE)


def test_the_attributes_are_slots():
    for owner, names in attributes.SLOTS.items():
        slots = {slot for base in owner.__mro__ for slot in base.__dict__.get("__slots__", ())}
        for name, why in names.items():
            assert why
            assert name in slots, f"{owner.__name__}.{name}"
            assert type(getattr(owner, name)) is MemberDescriptorType, f"{owner.__name__}.{name}"


@pytest.mark.skipif(not (REPOSITORY / "setup.cfg").exists(), reason="the layers are the repository's")
def test_all_of_it_lies_below():
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    layers = re.findall(r"\w+", config["importlinter:contract:layers"]["layers"])
    below = set(layers[layers.index("_native") + 1 :])
    read = [*attributes.SLOTS, *(helper for helper in attributes.HELPERS.values() if hasattr(helper, "__module__"))]
    assert {thing.__module__.split(".")[1] for thing in read} <= below
    assert {base.__module__.split(".")[1] for owner in attributes.SLOTS for base in owner.__mro__[:-2]} <= below
    for layer in below:
        assert not importers_of_native(FOLDER.parent / layer), layer


def importers_of_native(room):
    files = room.rglob("*.py") if room.is_dir() else [room.with_suffix(".py")]
    return [file for file in files if re.search(r"^\s*(?:from|import) .*\b_native\b", file.read_text(), re.MULTILINE)]


def test_other_signatures_are_another_version():
    text = (FOLDER / "_launch.pyi").read_text()
    bare = "\n".join(line for line in re.sub(r"#.*", "", text).splitlines() if line.strip())
    assert {attributes.VERSION: hashlib.sha256(bare.encode()).hexdigest()[:16]} == SIGNATURES


def described():
    """What `prepare` is given."""
    from tilekit._native import classes

    given = []

    class Catch:
        in_use = _native.compiled.in_use

        @staticmethod
        def prepare(*arguments):
            given.extend(arguments)
            return Storage.__del__, Imported.__del__

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classes, "_launch", Catch)
        classes.prepare()
    return given


def without(mapping, key):
    return {name: value for name, value in mapping.items() if name != key}


@compiled
def test_another_description_is_refused():
    classes, names, helpers, constants = described()
    prepare = _native.compiled.prepare
    (owner, (first, *rest)), *others = classes

    class Partition:
        __slots__ = ("storage", "tensor", "traits")

    class Renamed(Stream):
        __slots__ = ()
        pending = 3

    Renamed.__name__ = "Stream"
    for wrong, message in (
        (((owner, ("_made", *rest)), *others), "built to read Stream _create, where they have _made"),
        (((owner, tuple(rest)), *others), "built to read Stream _create, where they have _events"),
        (tuple(others), "built to read Stream _create, where they have .*AccessHistory"),
        (classes[:-1], "built to read KernelLaunch _consumed, where they have None"),
        ((*classes, (Partition, ("storage",))), "built to read attributes, no more, where they have .*Partition"),
        (((Renamed, (first, *rest)), *others), "Stream.pending is none of the class's __slots__"),
    ):
        with pytest.raises(ImportError, match=message):
            prepare(wrong, names, helpers, constants)
    for wrong, message in (
        ((classes, names[1:], helpers, constants), "built to read the name annotate, where they have append"),
        ((classes, (*names, "more"), helpers, constants), "built to read the name no more, where they have more"),
        ((classes, names, without(helpers, "ended"), constants), "built to read the helper ended, where they have None"),
        ((classes, names, {**helpers, "sink": print}, constants), "built to read the helpers no more, where they have .*sink"),
        (
            (classes, names, helpers, without(constants, "MARKS_KEPT")),
            "built to read the constant MARKS_KEPT, where they have None",
        ),
        ((classes, names, helpers, {**constants, "MORE": 1}), "built to read the constants no more, where they have .*MORE"),
    ):
        with pytest.raises(ImportError, match=message):
            prepare(*wrong)
    prepare(classes, names, helpers, constants)


STALE = """
import logging, sys, types
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())
logging.getLogger("tilekit").addHandler(handler)
old = types.ModuleType("tilekit._native._launch")
old.__file__ = "_launch.so"
CHANGE
sys.modules["tilekit._native._launch"] = old
import tilekit as tk
from tilekit import _native, api, launch
assert _native.compiled is None
(message,) = records
assert "_launch.so, does not fit its Python sources" in message and "build_ext -i" in message, message
assert SAYS in message, message

@tk.kernel
def nothing():
    pass

assert type(nothing) is launch.Kernel
op = nothing().grid(4)
op._spent = True
assert type(op) is launch.KernelLaunch
with tk.use_device("cpu"):
    assert api.zeros(8, tk.int32).astype(tk.float32).to_host().sync().sum() == 0  # by a kernel
"""


OTHERS = """
def prepare(*given):
    raise ImportError("it was built to read others")
old.VERSION, old.prepare, old.row, old.links = 8, prepare, None, None
old.Runs, old.Calls = type("Runs", (), {}), type("Calls", (), {})
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", "it is of version 0, they are of 8"),
        (OTHERS, "it was built to read others"),
    ],
)
def test_a_stale_build_is_left_alone_and_said(change, says):
    run = subprocess.run(
        [sys.executable, "-c", STALE.replace("CHANGE", change).replace("SAYS", repr(says))],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@compiled
def test_the_classes_are_one_to_a_user():
    @tk.kernel
    def nothing():
        pass

    op = nothing().grid(4)
    op._spent = True
    for thing, public in ((nothing, tk.Kernel), (op, tk.KernelLaunch)):
        assert isinstance(thing, public)
        assert type(thing) is not public
        assert repr(type(thing)) == repr(public)
        assert type(thing).__doc__ == public.__doc__
        assert type(thing).__basicsize__ == public.__basicsize__
    assert (tk.Kernel, tk.KernelLaunch) == (launch.Kernel, launch.KernelLaunch)
    assert not hasattr(op, "__dict__")
