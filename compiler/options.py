# SPDX-License-Identifier: Apache-2.0
"""``CompileOptions``: how to compile. Loads no MLIR, so that a program found in the cache needs none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gristmill.compiler.passes.pipeline import Pipeline

#: The passes from ``hlo`` to ``fused``, as a pipeline string.
DEFAULT_PIPELINE = (
    "inline-calls,dce-hlo,simplify-loops,unroll-loops,canonicalize-hlo,fold-constants,resolve-shape-assertions,"
    "canonicalize-hlo{remove-barriers=true},inline-calls,hoist-products,rewrite-sigmoids,cse-hlo,dce-hlo,"
    "check-supported,order-effects,limit-sorts,fuse,dce-hlo"
)


@dataclass(frozen=True)
class CompileOptions:
    """How to compile.

    Attributes:
        pipeline: the passes between ``hlo`` and ``fused``: a :class:`Pipeline`, a string, or ``None`` for
            :data:`DEFAULT_PIPELINE`.
        fold_constants: evaluate operations on constants at compile time (drops ``fold-constants`` when false).
        verify: verify the module after every pass.
        jobs: threads that generate code; ``None`` for all cores.
        cache: where compiled programs are kept for later processes: a directory, ``True`` for the default one
            (:func:`gristmill.runtime.disk_cache.default_folder`), ``False`` for nowhere; ``None`` does what the
            ``GRISTMILL_CACHE`` knob says. See :mod:`gristmill.compiler.cache`.
        images: for a GPU, the forms of the kernels to make: ``ptx``, ``cubin``, ``simulator``; ``None`` for ``ptx``,
            and ``cubin`` where ptxas is installed.
        autotune: on a CPU, time products and convolutions to choose their blocking, for as long as the
            ``GRISTMILL_AUTOTUNE_SECONDS`` knob says; see :mod:`gristmill.compiler.tuning`.
    """

    pipeline: Pipeline | str | None = None
    fold_constants: bool = True
    verify: bool = False
    jobs: int | None = None
    cache: bool | str | Path | None = None
    images: tuple[str, ...] | None = None
    autotune: bool = False

    def build_pipeline(self) -> Pipeline:
        """The pipeline to run."""
        from gristmill.compiler.passes.pipeline import Pipeline

        if isinstance(self.pipeline, Pipeline):
            return self.pipeline
        pipeline = Pipeline(self.pipeline or DEFAULT_PIPELINE)
        if not self.fold_constants and "fold-constants" in pipeline.names:
            pipeline.remove("fold-constants")
        return pipeline
