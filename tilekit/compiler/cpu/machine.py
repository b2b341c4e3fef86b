"""The CPU at hand, as LLVM knows it: what its vectors hold, machine code for it, and that in memory."""

from __future__ import annotations

import functools
import itertools
import threading
from dataclasses import dataclass
from typing import Any

from llvmlite import binding as llvm

__all__ = ["Machine", "host", "linked"]


@dataclass(frozen=True)
class Machine:
    """A CPU to compile for.

    Attributes:
        name, features: as LLVM spells them.
        vector_bytes: of a register.
        fused: whether it has fused multiply-adds.
        triple: of another kind of system; empty for this one's. What is compiled for that cannot run here.
    """

    name: str
    features: str
    vector_bytes: int
    fused: bool
    triple: str = ""

    @property
    def label(self) -> str:
        """What decides the code."""
        return f"{self.name} {self.features} {self.vector_bytes} {self.fused}"

    def target(self, *, jit: bool = False) -> Any:
        """LLVM's target machine. Each use has its own: an engine takes it over."""
        if self.triple:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        else:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
        target = llvm.Target.from_triple(self.triple or llvm.get_default_triple())
        options = {"jit": True} if jit else {"reloc": "pic", "codemodel": "small", "jit": False}
        return target.create_target_machine(cpu=self.name, features=self.features, opt=3, **options)

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
    # Loops, vectors and what leaves loops are written out: LLVM's usual passes take ten times as long, and gain nothing.
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


_linking, _libraries = threading.Lock(), itertools.count()


def linked(image: bytes) -> Any:
    """Object code for this CPU in memory: the addresses of its functions by name, as long as it is kept.

    Raises:
        RuntimeError: it calls a function that is not in this process.
    """
    with _linking:
        library = llvm.JITLibraryBuilder().add_object_img(image).add_current_process().export_symbol("run")
        return library.link(_linker(), f"kernel {next(_libraries)}")


@functools.cache
def _linker() -> Any:
    return llvm.create_lljit_compiler(host().target(jit=True), use_jit_link=True, suppress_errors=True)


@functools.cache
def host() -> Machine:
    """The CPU that this process runs on."""
    features = llvm.get_host_cpu_features()
    wide = features.get("avx512f") and features.get("avx512bw") and features.get("avx512vl")
    vector_bytes = 64 if wide else 32 if features.get("avx2") else 16
    fused = bool(features.get("fma")) or not llvm.get_default_triple().startswith(("x86", "i686"))
    # Some CPUs have the longest vectors, and LLVM would halve them: products then have twice as many, which spill.
    spelled = features.flatten() + (",-prefer-256-bit" if wide else "")
    return Machine(llvm.get_host_cpu_name(), spelled, vector_bytes, fused)
