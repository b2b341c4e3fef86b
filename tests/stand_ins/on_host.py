"""What the compiler emits, run by LLVM on this machine."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

__all__ = ["engine_of"]


def engine_of(module: Any) -> Any:
    """An engine that has compiled a module of llvmlite's; keep it as long as its functions are called."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    return engine
