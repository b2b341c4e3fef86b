"""The driver's codes, and the errors made of them."""

from __future__ import annotations

from typing import Any

from tilekit._driver.report import stop_message
from tilekit.errors import DeviceError

__all__ = ["FAULTS", "NOT_READY", "OUT_OF_MEMORY", "PEER_ALREADY_ENABLED", "check", "failure", "given_up"]

OUT_OF_MEMORY, NOT_READY, PEER_ALREADY_ENABLED = 2, 600, 704
# After these the context is lost: every later call fails alike. A signal then reports the code instead of raising it, since
# whoever asks for one waits for it.
FAULTS = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 724})


def check(bindings: Any, result: tuple[Any, ...]) -> Any:
    """What a function of cuda.bindings returned, without its return code: None, the one value, or a tuple of several.

    Raises:
        DeviceError: the code is not CUDA_SUCCESS. The text has its name and the driver's explanation.
    """
    if result[0]:
        raise failure(bindings, result[0])
    return result[1] if len(result) == 2 else result[1:] or None


def given_up(bindings: Any, result: tuple[Any, ...]) -> None:
    """Check the result of giving something up. After a fault it is gone already, with its context."""
    if int(result[0]) not in FAULTS:
        check(bindings, result)


def failure(bindings: Any, code: Any, doing: str = "") -> DeviceError:
    """The error for a code of the driver's, with what it says about it; `doing` says what failed."""
    name, text = (
        value.decode() if isinstance(value, bytes) else f"CUDA error {int(code)}"
        for value in (bindings.cuGetErrorName(code)[1], bindings.cuGetErrorString(code)[1])
    )
    message = f"{doing}: {name}: {text}" if doing else f"{name}: {text}"
    lost = int(code) in FAULTS
    said = stop_message() if lost else None
    if said is not None:
        message += f". {said}\nThis process cannot use the GPU any more: restart it to go on"
    elif lost:
        message += (
            ". A kernel launched earlier failed, perhaps another than the last. This process cannot use the GPU any more: "
            "restart it to go on"
        )
    return DeviceError(message, code=name, lost=lost)
