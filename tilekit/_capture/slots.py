"""`slot`: a tensor or a number that can be another at each launch of what was recorded with it."""

from __future__ import annotations

from typing import Any, TypeVar

from tilekit._driver.nodes import SlotMemory
from tilekit._runtime.storage import Imported
from tilekit._tensor.tensor import Tensor

__all__ = ["Slot", "slot"]

T = TypeVar("T", Tensor, int, float)


class Slot:
    """What a name stands for when an op is recorded.

    Attributes:
        name: under which `bind` gives it another value.
        value: what it was made with.
        memory: a tensor's, as an object of the slot's own, by which it is known where it is used; None of a number.
        offset: where the tensor begins there, in bytes.
        traits: a tensor's; None of a number.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        self.memory: SlotMemory | None = None
        self.offset, self.traits = 0, None
        if isinstance(value, Tensor):
            assert value.storage is not None, "checked by slot"
            whole = value.storage.memory
            self.memory = SlotMemory(whole.address, whole.nbytes, whole.raw, whole.shadow)
            self.memory.slot = self
            self.offset, self.traits = value.offset * value.itemsize, value.traits

    def check(self, value: Any, who: Any) -> Any:
        """`value`, if the slot can stand for it.

        Raises:
            TypeError: it is of another kind. ValueError: it is a tensor that does not look the same, or a number too large.
        """
        mine = self.value
        if self.traits is not None and isinstance(value, Tensor) and value.traits is self.traits and value.storage is not None:
            return value
        what = f"{who!r}: bind({self.name}=...)"
        if not isinstance(mine, Tensor):
            if isinstance(value, bool) or not isinstance(value, (int, float) if isinstance(mine, float) else int):
                kind = "a float" if isinstance(mine, float) else "an int"
                raise TypeError(f"{what} takes {kind}, as the slot was made with {mine!r}, not {type(value).__name__}")
            if isinstance(mine, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"{what}: {value} does not fit 64 bits")
            return value
        if not isinstance(value, Tensor) or value.storage is None:
            actual = "a meta tensor, without memory" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{what} takes a tensor, not {actual}")
        for name in ("device", "dtype", "shape", "strides"):
            old, new = getattr(mine, name), getattr(value, name)
            if old != new:
                raise ValueError(f"{what}: it was recorded for {name} {old}, and this tensor has {new}. Record it for this one")
        if value.align < mine.align:
            raise ValueError(
                f"{what}: it was recorded for memory at a multiple of {mine.align} bytes, and this tensor is at one of "
                f"{value.align} only. Bind a dup() of it"
            )
        return value

    def __repr__(self) -> str:
        return f"<slot {self.name}: {self.value!r}>"


class _Int(int):
    """An int that came from a slot."""

    slot: Slot


class _Float(float):
    """A float that came from a slot."""

    slot: Slot


def slot(name: str, value: T) -> T:
    """`value`, under a name by which whatever is recorded with it can be given another: `graph.bind(name=other)`.

        x = tk.slot("x", first)
        graph = scale(y.partition(1024), x, tk.slot("factor", 2.0)).graph()
        graph.bind(x=second, factor=3.0).launch().sync()

    In everything else it is the value itself: the same memory, the same number. Views and partitions of a tensor belong to the
    slot too. Of numbers only those that are a kernel's arguments as they are: what is calculated with them is not of the slot.

    Args:
        name: an identifier.
        value: a tensor, an int or a float.

    Raises:
        TypeError: it is anything else. ValueError: `name` is no identifier.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"tk.slot: a name is an identifier, such as 'x', not {name!r}")
    if isinstance(value, Tensor) and value.storage is not None:
        storage = value.storage
        mine = Slot(name, value)
        assert mine.memory is not None, "it is a tensor's"
        order = storage.history if isinstance(storage, Imported) else storage
        named = Imported(storage.device, mine.memory, order, owner=storage, readonly=storage.readonly)
        return Tensor(named, value.shape, value.dtype, value.strides, value.offset)
    number: Any
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        actual = "a meta tensor, without memory" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"tk.slot({name!r}, ...) takes a tensor, an int or a float, not {actual}")
    number = _Int(value) if isinstance(value, int) else _Float(value)
    number.slot = Slot(name, value)
    return number  # type: ignore[no-any-return]
