"""The CPU at hand, as LLVM knows it: what its vectors hold, and machine code for it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from llvmlite import binding as llvm

__all__ = ["Machine", "host"]


@dataclass(frozen=True)
class Machine:
    """A CPU to compile for.

    Attributes:
        name, features: as LLVM spells them.
        vector_bytes: of a register.
        fused: whether it has fused multiply-adds.
    """

    name: str
    features: str
    vector_bytes: int
    fused: bool

    def target(self, *, jit: bool = False) -> Any:
        """LLVM's target machine. Each use has its own: an engine takes it over."""
        found = llvm.Target.from_default_triple()
        options = {"jit": True} if jit else {"reloc": "pic", "codemodel": "small", "jit": False}
        return found.create_target_machine(cpu=self.name, features=self.features, opt=3, **options)

    def assembled(self, text: str) -> bytes:
        """A module's object code."""
        machine = self.target()
        code: bytes = machine.emit_object(_optimised(text, machine))
        return code

    def assembly(self, text: str) -> str:
        """A module's code as text."""
        machine = self.target()
        return str(machine.emit_assembly(_optimised(text, machine)))


def _optimised(text: str, machine: Any) -> Any:
    """A module that is verified; what LLVM finds wrong with it is a mistake of tilekit's, and raises a RuntimeError."""
    module = llvm.parse_assembly(text)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    # Vectors are written out; what is left are loops over scalars that it does not pay to look at.
    tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return module


@functools.cache
def host() -> Machine:
    """The CPU that this process runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    wide = features.get("avx512f") and features.get("avx512bw") and features.get("avx512vl")
    vector_bytes = 64 if wide else 32 if features.get("avx2") else 16
    fused = bool(features.get("fma")) or not llvm.get_default_triple().startswith(("x86", "i686"))
    return Machine(llvm.get_host_cpu_name(), features.flatten(), vector_bytes, fused)
