# SPDX-License-Identifier: Apache-2.0
"""Fusion kinds and the emitters that compile them: the one list to extend for a new kind."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from gristmill.compiler.emitters.elemental import RULES
from gristmill.compiler.emitters.kernel import KernelEmitter

if TYPE_CHECKING:
    from gristmill.compiler.emitters.cpu.frame import FusionSource

#: Emitter class of each fusion kind as ``module:Class``; modules are those of ``cpu``.
_CLASSES: dict[str, str] = {
    "loop": "loop:LoopEmitter",
    "row": "row:RowEmitter",
    "column": "column:ColumnEmitter",
    "transpose": "transpose:TransposeEmitter",
    "concatenate": "concatenate:ConcatenateEmitter",
    "dot": "dot_fusion:DotFusionEmitter",
    "attention": "attention:AttentionEmitter",
    "histogram": "histogram:HistogramEmitter",
    "update": "update:UpdateEmitter",
    "scatter": "update:ScatterEmitter",
    "sort": "sort:SortEmitter",
    "fft": "fft:FftEmitter",
    "convolution": "convolution:ConvolutionEmitter",
    "pooling": "pooling:PoolingEmitter",
    "cumulative": "cumulative:CumulativeEmitter",
    "triangular_solve": "linalg:TriangularSolveEmitter",
    "cholesky": "linalg:CholeskyEmitter",
    "rng": "rng_distribution:RngEmitter",
    "rng_bit_generator": "rng:RngBitGeneratorEmitter",
    "select_and_scatter": "select_and_scatter:SelectAndScatterEmitter",
    "computation": "computation:ComputationEmitter",
    "custom_call": "custom_call:CustomCallEmitter",
    "lapack": "lapack:LapackEmitter",
}


def emitter_class(kind: str) -> Callable[[FusionSource], KernelEmitter]:
    """The emitter class of ``kind``; its module is imported when it is first asked for."""
    module, _, name = _CLASSES[kind].partition(":")
    return getattr(import_module(f"gristmill.compiler.emitters.cpu.{module}"), name)


def _emitter(kind: str) -> Callable[[FusionSource], KernelEmitter]:
    return lambda source: emitter_class(kind)(source)


#: Emitter of each fusion kind: a program needs few of them, and each takes milliseconds to import.
EMITTERS = {kind: _emitter(kind) for kind in _CLASSES}


def is_supported(kind: str) -> bool:
    """Whether an operation can be compiled: it has an elemental rule or an emitter of its own."""
    return kind in RULES or kind in _STRUCTURAL or kind in _WHOLE


#: Operations without a meaning on single elements: an emitter of their own computes them.
_WHOLE = frozenset(
    "custom_call lapack scatter sort select_and_scatter rng_bit_generator triangular_solve cholesky fft rng".split()
)


_STRUCTURAL = frozenset("while if case constant fusion func.call func.return parameter".split())
