# SPDX-License-Identifier: Apache-2.0
"""Fusion kinds and their GPU emitters. A kind that has none runs as tasks of its CPU emitter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.gpu.fft import FftEmitter
from gristmill.compiler.emitters.gpu.column import ColumnEmitter
from gristmill.compiler.emitters.gpu.loop import LoopEmitter
from gristmill.compiler.emitters.gpu.row import RowEmitter
from gristmill.compiler.emitters.gpu.tasks import TaskEmitter
from gristmill.compiler.emitters.kernel import KernelEmitter
from gristmill.compiler.emitters.registry import EMITTERS

#: Emitter of each fusion kind on a GPU.
GPU_EMITTERS: dict[str, Callable[[FusionSource], KernelEmitter]] = {
    **{kind: partial(TaskEmitter, emitter) for kind, emitter in EMITTERS.items()},
    "loop": LoopEmitter,
    "row": RowEmitter,
    "fft": FftEmitter,
    "column": ColumnEmitter,
}
