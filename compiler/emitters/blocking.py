# SPDX-License-Identifier: Apache-2.0
"""How a matrix product or convolution may be cut into blocks otherwise than its emitter's model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Blocking:
    """Deviations from the model's choice; the default is none.

    Attributes:
        chunk: factor on the part of the second-level cache that a chunk of a packed panel may take (products).
        rows: factor on the rows (products) or pixels (convolutions) of a task.
        vectors: vectors that a register tile is wide; ``None`` for the model's choice. A width that does not fit
            the problem gives the model's.
    """

    chunk: float = 1.0
    rows: float = 1.0
    vectors: int | None = None


#: What the model chooses.
DEFAULT = Blocking()

#: What is tried beside it, by fusion kind; many of these come out the same for a given problem.
CANDIDATES: dict[str, tuple[Blocking, ...]] = {
    "dot": (
        *(Blocking(vectors=v) for v in (1, 2, 3, 4)),
        *(Blocking(chunk=c) for c in (0.25, 0.5, 2.0, 4.0)),
        *(Blocking(rows=r) for r in (0.25, 0.5, 2.0)),
    ),
    "convolution": (
        *(Blocking(vectors=v) for v in (1, 2, 3, 4)),
        *(Blocking(rows=r) for r in (0.5, 2.0)),
    ),
}


@dataclass(frozen=True)
class Tuned:
    """The outcome of tuning one program.

    Attributes:
        blockings: the kernels that are better cut otherwise than the model says, by key.
        is_complete: whether the time sufficed for all of them.
        notes: one line for each kernel: its computation, its blocking and what that gains.
    """

    blockings: Mapping[str, Blocking] = field(default_factory=dict[str, Blocking])
    is_complete: bool = True
    notes: tuple[str, ...] = ()
