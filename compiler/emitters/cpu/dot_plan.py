# SPDX-License-Identifier: Apache-2.0
"""Which form and which tile sizes a product gets. The thresholds were measured; see docs/notes."""

from __future__ import annotations

import enum
from typing import Literal

from gristmill.compiler.emitters.blocking import DEFAULT, Blocking
from gristmill.compiler.emitters.cpu.dot_build import DotKernel, Prologue
from gristmill.compiler.emitters.cpu.dot_gemm import Tiling
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem, Operand
from gristmill.compiler.target import Target


class Form(enum.Enum):
    """The loop structures a product can get."""

    SCALAR = "scalar"
    STREAMED = "streamed"
    TILED = "tiled"
    DOTTED = "dotted"
    BLOCKED = "blocked"


#: Products of at most this many multiply-adds get scalar loops.
_SCALAR_WORK = 256

#: Most elements of each of many small matrices that are multiplied by a vector in scalar loops: they fill no vectors.
_SCALAR_MATRIX = 16

#: Most rows for which reading the right operand where it lies beats packing it: one that lies in the second-level
#: cache; one that may lie in the third; one that comes from memory. A step of ``k`` goes to another page there, so that
#: nothing is prefetched, while packing reads along the rows.
_UNPACKED_ROWS = (24, 11, 6)


#: Most rows for which a right operand whose rows are contiguous is streamed: one of less than 4 MiB; a larger one; one
#: that the last-level cache does not keep, which packing would read, write and read again.
_STREAMED_ROWS = (3, 6, 8)

#: Fewest and most rows for which such an operand is streamed in register tiles, if it does not fit the second-level
#: cache and there are no more than 16 registers: fewer rows fill no tiles, and of more, packing pays.
_TILED_ROWS = (7, 16)


def choose_form(kernel: DotKernel, target: Target) -> tuple[Form, bool]:
    """The form for a product, and whether to exchange its operands first."""
    problem = kernel.problem
    if problem.batch * problem.m * problem.n * problem.k <= _SCALAR_WORK:
        return Form.SCALAR, False
    if problem.n == 1 and problem.k < kernel.lanes and problem.m * problem.k <= _SCALAR_MATRIX:
        return Form.SCALAR, False
    candidates = [
        (problem, kernel.rhs_prologue, False),
        (problem.swap(), kernel.lhs_prologue, True),
    ]
    candidates.sort(key=lambda candidate: candidate[0].m)
    for candidate, prologue, swapped in candidates:
        form = _few_rows_form(candidate, prologue, kernel, target)
        if form is not None:
            return form, swapped
    return Form.BLOCKED, False


def _few_rows_form(
    problem: DotProblem, prologue: Prologue | None, kernel: DotKernel, target: Target
) -> Form | None:
    """The form bound by reading the right operand, where it beats blocking."""
    rhs, lanes = problem.rhs, kernel.lanes
    if prologue is not None:
        return None
    if rhs.contract.stride == 1 and problem.k >= lanes:
        # Blocking would transpose; sums of more rows do not fit 16 registers.
        return Form.DOTTED if problem.m <= (8 if kernel.vector_bytes >= 64 else 4) else None
    if rhs.free.stride == 1 and problem.n >= lanes:
        nbytes = problem.k * problem.n * rhs.array.element.nbytes
        if _fits_tiles(problem, nbytes, target):
            return Form.TILED
        near, farther, far = _STREAMED_ROWS
        most = near if nbytes < 4 << 20 else farther if _is_kept(nbytes, target) else far
        return Form.STREAMED if problem.m <= most else None
    return None


def _fits_tiles(problem: DotProblem, nbytes: int, target: Target) -> bool:
    fewest, most = _TILED_ROWS
    exact = problem.rhs.array.element == problem.accumulate
    few_registers = target.vector_registers <= 16
    return few_registers and exact and fewest <= problem.m <= most and nbytes > target.l2_bytes


def _is_kept(nbytes: int, target: Target) -> bool:
    """Whether the last-level cache keeps a right operand from one call to the next."""
    return 2 * nbytes < target.kept_bytes


#: Most rows for which a constant right operand is packed at compile time: beyond, packing at each call costs nothing
#: that can be measured.
_PREPACKED_ROWS = 64


def packed_width(kernel: DotKernel, target: Target) -> int | None:
    """Columns of the panels in which a blocked product wants its right operand; None if packing gains nothing."""
    problem = kernel.problem
    exact = problem.rhs.array.element == problem.accumulate
    if not exact or kernel.paired or problem.batch != 1 or problem.m > _PREPACKED_ROWS:
        return None
    form, swapped = choose_form(kernel, target)
    # Few rows are streamed only while packing is done at each call.
    many = problem.m > _STREAMED_ROWS[1]
    if swapped or not (form is Form.BLOCKED or (many and form in (Form.STREAMED, Form.TILED))):
        return None
    width = choose_tiling(kernel, target).vectors * kernel.lanes
    return width if problem.n % width == 0 and problem.n > width else None


#: Most rows of a block. A panel is packed once for each block, so taller blocks pack less; what does not fit the
#: second-level cache streams from the third, which costs less than packing more often.
_BLOCK_ROWS = 512


def choose_tiling(kernel: DotKernel, target: Target, blocking: Blocking = DEFAULT) -> Tiling:
    """Tile sizes and packing for a blocked product."""
    problem, lanes = kernel.problem, kernel.lanes
    nbytes = problem.accumulate.nbytes
    registers = target.vector_registers
    tallest, vectors = register_tile(problem, lanes, registers, blocking.vectors)
    width = vectors * lanes
    panels = -(-problem.n // width)

    # A chunk of a panel takes a small part of the second-level cache; a block of the left operand streams through it.
    chunk_bytes = max(1, int(target.l2_bytes // 8 * blocking.chunk))
    chunks = -(-kernel.steps * width * nbytes // chunk_bytes)
    k_chunk = -(-kernel.steps // (chunks * lanes)) * lanes
    limit = max(4 * tallest, int(_BLOCK_ROWS * blocking.rows))
    blocks = -(-problem.m // limit)
    while (
        problem.batch * blocks * panels < 2 * target.max_threads
        and problem.m > 4 * tallest * blocks
    ):
        blocks += 1
    # Equal blocks keep threads level; look for a divisor nearby.
    blocks = next((b for b in range(blocks, 2 * blocks) if problem.m % b == 0), blocks)
    rows = -(-problem.m // blocks)
    # Row groups of about equal height: a short last one would waste its share of the pipeline.
    mr = -(-rows // -(-rows // tallest))
    if problem.m % blocks:
        rows = -(-rows // mr) * mr
    blocks = -(-problem.m // rows)
    return Tiling(
        mr,
        vectors,
        rows,
        k_chunk,
        _lhs_access(kernel, panels),
        _rhs_access(kernel, rows, width, target),
    )


#: What masked loads of a right operand that lies unpacked leave of a tile's rate, without AVX-512's mask registers.
_MASKED_RATE = 0.95


def register_tile(
    problem: DotProblem, lanes: int, registers: int, wanted: int | None = None
) -> tuple[int, int]:
    """The tallest register tile, in rows and vectors, for the best estimated rate of useful multiply-adds.

    Sums, one row of the right operand and one broadcast must fit the registers. A step of ``k`` takes its
    multiply-adds, two a cycle and at least one's latency of four cycles, and a little for each load.
    ``wanted`` is the number of vectors to take, if they fit.
    """
    needed = -(-problem.n // lanes)
    best = (0.0, 1, 1)
    is_masked = registers < 32 and problem.m <= _UNPACKED_ROWS[0]
    widths = range(1, min(4, needed) + 1)
    if wanted is not None and wanted in widths:
        widths = range(wanted, wanted + 1)
    for vectors in widths:
        tallest = min(problem.m, (registers - vectors - 1) // vectors, 16)
        rows = -(-problem.m // -(-problem.m // tallest))
        cycles = max(rows * vectors / 2, 4) + 0.2 * (rows + vectors)
        panels = -(-needed // vectors)
        useful = problem.n / (panels * vectors * lanes)
        if is_masked and problem.n % (vectors * lanes):
            useful *= _MASKED_RATE
        best = max(best, (useful * rows * vectors / cycles, tallest, vectors))
    return best[1], best[2]


def _lhs_access(kernel: DotKernel, panels: int) -> Literal["plain", "rows", "columns"]:
    operand = kernel.problem.lhs
    row, k = operand.free.stride, operand.contract.stride
    if kernel.lhs_prologue is None and not kernel.paired and row is not None and k is not None:
        exact = operand.array.element == kernel.problem.accumulate
        if panels <= 2 or (exact and k <= 1):
            return "plain"
    by_rows = operand.contract.inner_stride <= max(1, operand.free.inner_stride)
    return "rows" if by_rows else "columns"


def _lies_in_panels(operand: Operand, width: int) -> bool:
    """Whether the operand already has the order into which packing would bring it."""
    parts = operand.free.parts
    return len(parts) == 2 and parts[1] == (width, 1) and operand.contract.stride == width


def _unpacked_rows(operand: Operand, target: Target) -> int:
    """Most rows for which the right operand is read where it lies."""
    near, farther, far = _UNPACKED_ROWS
    if operand.array.nbytes <= 2 * target.l2_bytes:
        return near
    return farther if _is_kept(operand.array.nbytes, target) else far


def _rhs_access(
    kernel: DotKernel, rows: int, width: int, target: Target
) -> Literal["plain", "shared", "private"]:
    problem, operand = kernel.problem, kernel.problem.rhs
    if kernel.rhs_prologue is None and not kernel.paired:
        contiguous = operand.free.stride == 1 and operand.contract.stride is not None
        near = problem.m <= _unpacked_rows(operand, target)
        if _lies_in_panels(operand, width) or (contiguous and near):
            return "plain"
    # Packing a panel again for every block costs little once the block is this tall, and saves a phase.
    return "private" if rows == problem.m or rows >= 128 else "shared"
