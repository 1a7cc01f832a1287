# SPDX-License-Identifier: Apache-2.0
"""Fusion kinds and the emitters that compile them: the one list to extend for a new kind."""

from __future__ import annotations

from collections.abc import Callable

from gristmill.compiler.emitters.cpu.column import ColumnEmitter
from gristmill.compiler.emitters.cpu.computation import ComputationEmitter
from gristmill.compiler.emitters.cpu.concatenate import ConcatenateEmitter
from gristmill.compiler.emitters.cpu.convolution import ConvolutionEmitter
from gristmill.compiler.emitters.cpu.cumulative import CumulativeEmitter
from gristmill.compiler.emitters.cpu.dot_fusion import DotFusionEmitter
from gristmill.compiler.emitters.cpu.fft import FftEmitter
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.cpu.linalg import CholeskyEmitter, TriangularSolveEmitter
from gristmill.compiler.emitters.cpu.loop import LoopEmitter
from gristmill.compiler.emitters.cpu.pooling import PoolingEmitter
from gristmill.compiler.emitters.cpu.rng import RngBitGeneratorEmitter
from gristmill.compiler.emitters.cpu.rng_distribution import RngEmitter
from gristmill.compiler.emitters.cpu.row import RowEmitter
from gristmill.compiler.emitters.cpu.select_and_scatter import SelectAndScatterEmitter
from gristmill.compiler.emitters.cpu.sort import SortEmitter
from gristmill.compiler.emitters.cpu.transpose import TransposeEmitter
from gristmill.compiler.emitters.cpu.update import ScatterEmitter, UpdateEmitter
from gristmill.compiler.emitters.elemental import RULES
from gristmill.compiler.emitters.kernel import KernelEmitter

#: Emitter of each fusion kind.
EMITTERS: dict[str, Callable[[FusionSource], KernelEmitter]] = {
    "loop": LoopEmitter,
    "row": RowEmitter,
    "column": ColumnEmitter,
    "transpose": TransposeEmitter,
    "concatenate": ConcatenateEmitter,
    "dot": DotFusionEmitter,
    "update": UpdateEmitter,
    "scatter": ScatterEmitter,
    "sort": SortEmitter,
    "fft": FftEmitter,
    "convolution": ConvolutionEmitter,
    "pooling": PoolingEmitter,
    "cumulative": CumulativeEmitter,
    "triangular_solve": TriangularSolveEmitter,
    "cholesky": CholeskyEmitter,
    "rng": RngEmitter,
    "rng_bit_generator": RngBitGeneratorEmitter,
    "select_and_scatter": SelectAndScatterEmitter,
    "computation": ComputationEmitter,
}


def is_supported(kind: str) -> bool:
    """Whether an operation can be compiled: it has an elemental rule or an emitter of its own."""
    return kind in RULES or kind in _STRUCTURAL or kind in _WHOLE


#: Operations without a meaning on single elements: an emitter of their own computes them.
_WHOLE = frozenset(
    "scatter sort select_and_scatter rng_bit_generator triangular_solve cholesky fft rng".split()
)


_STRUCTURAL = frozenset("while if case constant fusion func.call func.return parameter".split())
