# SPDX-License-Identifier: Apache-2.0
"""Gristmill: a StableHLO compiler on MLIR with its own memory runtime.

    import gristmill
    exe = gristmill.compile("model.mlir")   # StableHLO text, bytecode, portable artifact, HLO text, a jax Lowered
    y = exe(x)                              # numpy in, numpy out
    exe.save("model.gmill")
    y = gristmill.load("model.gmill")(x)    # needs neither MLIR nor jaxlib

Names are resolved when first used: importing this package loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from gristmill.compiler.cache import compile
    from gristmill.compiler.compile import compile_stages
    from gristmill.compiler.jit import jit
    from gristmill.compiler.options import CompileOptions
    from gristmill.compiler.passes.pipeline import Pipeline
    from gristmill.compiler.polymorphic import PolymorphicExecutable
    from gristmill.errors import GristmillError
    from gristmill.runtime.custom_calls import register_custom_call
    from gristmill.runtime.executable import Executable
    from gristmill.runtime.load import load
    from gristmill.runtime.threads import set_num_threads

_LAZY = {
    "compile": "gristmill.compiler.cache",
    "compile_stages": "gristmill.compiler.compile",
    "CompileOptions": "gristmill.compiler.options",
    "jit": "gristmill.compiler.jit",
    "Pipeline": "gristmill.compiler.passes.pipeline",
    "PolymorphicExecutable": "gristmill.compiler.polymorphic",
    "GristmillError": "gristmill.errors",
    "register_custom_call": "gristmill.runtime.custom_calls",
    "Executable": "gristmill.runtime.executable",
    "load": "gristmill.runtime.load",
    "set_num_threads": "gristmill.runtime.threads",
}

__all__ = [
    "CompileOptions",
    "Executable",
    "GristmillError",
    "Pipeline",
    "PolymorphicExecutable",
    "__version__",
    "compile",
    "compile_stages",
    "jit",
    "load",
    "register_custom_call",
    "set_num_threads",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
