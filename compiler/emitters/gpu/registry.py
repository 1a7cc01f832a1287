# SPDX-License-Identifier: Apache-2.0
"""Fusion kinds and their GPU emitters. A kind that has none runs as tasks of its CPU emitter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.cpu.rng import RngBitGeneratorEmitter
from gristmill.compiler.emitters.cpu.rng_distribution import RngEmitter
from gristmill.compiler.emitters.gpu.column import ColumnEmitter
from gristmill.compiler.emitters.gpu.concatenate import ConcatenateEmitter
from gristmill.compiler.emitters.gpu.convolution import ConvolutionEmitter
from gristmill.compiler.emitters.gpu.cumulative import CumulativeEmitter
from gristmill.compiler.emitters.gpu.dot import DotEmitter
from gristmill.compiler.emitters.gpu.fft import FftEmitter
from gristmill.compiler.emitters.gpu.frame import GpuFrame
from gristmill.compiler.emitters.gpu.loop import LoopEmitter
from gristmill.compiler.emitters.gpu.row import RowEmitter
from gristmill.compiler.emitters.gpu.select_and_scatter import SelectAndScatterEmitter
from gristmill.compiler.emitters.gpu.sort import SortEmitter
from gristmill.compiler.emitters.gpu.tasks import TaskEmitter
from gristmill.compiler.emitters.gpu.transpose import TransposeEmitter
from gristmill.compiler.emitters.gpu.update import ScatterEmitter, UpdateEmitter
from gristmill.compiler.emitters.kernel import KernelDefinition, KernelEmitter
from gristmill.compiler.emitters.registry import EMITTERS

#: Kinds that call functions of the host, which a GPU cannot.
_HOST_KINDS = ("custom_call", "lapack")

#: Emitter of each fusion kind on a GPU, for results that have elements.
GPU_EMITTERS: dict[str, Callable[[FusionSource], KernelEmitter]] = {
    **{
        kind: partial(TaskEmitter, emitter)
        for kind, emitter in EMITTERS.items()
        if kind not in _HOST_KINDS
    },
    "loop": LoopEmitter,
    "pooling": partial(LoopEmitter, kind="pooling"),
    "row": RowEmitter,
    "fft": FftEmitter,
    "column": ColumnEmitter,
    "transpose": TransposeEmitter,
    "concatenate": ConcatenateEmitter,
    "cumulative": CumulativeEmitter,
    "sort": SortEmitter,
    "update": UpdateEmitter,
    "scatter": ScatterEmitter,
    "select_and_scatter": SelectAndScatterEmitter,
    # One counter or number a thread.
    "rng": partial(TaskEmitter, partial(RngEmitter, chunk=1)),
    "rng_bit_generator": partial(TaskEmitter, partial(RngBitGeneratorEmitter, chunk=1)),
    "dot": DotEmitter,
    "convolution": ConvolutionEmitter,
}


@dataclass(frozen=True)
class NothingEmitter:
    """Compiles a fusion whose results are all empty: it launches nothing."""

    source: FusionSource
    kind: str

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        return GpuFrame(self.source).finish(self.kind)


def gpu_emitter(kind: str, source: FusionSource) -> KernelEmitter | None:
    """The emitter of a fusion; ``None`` for a kind that a GPU does not have."""
    make = GPU_EMITTERS.get(kind)
    if make is None:
        return None
    has_elements = any(result.size for result in source.results)
    return make(source) if has_elements else NothingEmitter(source, kind)
