# SPDX-License-Identifier: Apache-2.0
"""``CompileOptions``: how to compile. Loads no MLIR, so that a program found in the cache needs none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gristmill.errors import InputError

if TYPE_CHECKING:
    from gristmill.compiler.passes.pipeline import Pipeline

#: The passes from ``hlo`` to ``fused``, as a pipeline string.
DEFAULT_PIPELINE = (
    "inline-calls,dce-hlo,simplify-loops,unroll-loops,canonicalize-hlo,fold-constants,resolve-shape-assertions,"
    "canonicalize-hlo{remove-barriers=true},inline-calls,hoist-products,rewrite-sigmoids,rewrite-error-functions,"
    "cse-hlo,dce-hlo,check-supported,order-effects,limit-sorts,split-reductions,fuse,dce-hlo"
)

#: The forms that a GPU's kernels can have.
IMAGES = ("ptx", "cubin", "simulator")


@dataclass(frozen=True)
class CompileOptions:
    """How to compile. A value that an option cannot have raises ``InputError``.

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

    def __post_init__(self) -> None:
        for name, (is_allowed, allowed) in _ALLOWED.items():
            value = getattr(self, name)
            if not is_allowed(value):
                raise InputError(f"the option {name} cannot be {value!r}; give {allowed}")

    def build_pipeline(self) -> Pipeline:
        """The pipeline to run."""
        from gristmill.compiler.passes.pipeline import Pipeline

        if isinstance(self.pipeline, Pipeline):
            return self.pipeline
        pipeline = Pipeline(self.pipeline or DEFAULT_PIPELINE)
        if not self.fold_constants and "fold-constants" in pipeline.names:
            pipeline.remove("fold-constants")
        return pipeline


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_pipeline(value: object) -> bool:
    if value is None or isinstance(value, str):
        return True
    from gristmill.compiler.passes.pipeline import Pipeline  # loads MLIR, as whoever made one has

    return isinstance(value, Pipeline)


def _is_number_of_threads(value: object) -> bool:
    return value is None or (isinstance(value, int) and value is not True and value >= 1)


def _is_cache(value: object) -> bool:
    return value is None or isinstance(value, bool | str | Path)


def _are_images(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, tuple) and all(image in IMAGES for image in cast("Any", value))


#: What each option may be, as a test and in words.
_ALLOWED: dict[str, tuple[Callable[[object], bool], str]] = {
    "pipeline": (_is_pipeline, "a Pipeline, its text, or None"),
    "fold_constants": (_is_flag, "True or False"),
    "verify": (_is_flag, "True or False"),
    "jobs": (_is_number_of_threads, "a number of threads, at least 1, or None"),
    "cache": (_is_cache, "a directory, True, False or None"),
    "images": (_are_images, f"a tuple of {', '.join(IMAGES)}, or None"),
    "autotune": (_is_flag, "True or False"),
}
