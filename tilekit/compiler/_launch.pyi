# Launches of one kernel with arguments of one kind, on one device: see _launch.c.
from typing import Self

class Launcher:
    def __new__(
        cls,
        *,
        launch: int,
        current: int,
        context: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        plain: type,
        kinds: bytes,
        uses: bytes,
        slots: bytes,
    ) -> Self: ...
    def launch(self, stream: object, arguments: tuple[object, ...], label: str, /) -> int: ...
