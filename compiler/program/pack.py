# SPDX-License-Identifier: Apache-2.0
"""Offsets for buffers with known lifetimes: the arena's layout.

The problem (dynamic storage allocation) is NP-hard; two greedy orders, largest first and earliest first, each
placing a buffer into the best-fitting gap, come close to the lower bound on real programs. The better one wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.runtime.program import align_up

#: A buffer: its size in bytes and the mask of times at which it is in use.
Lifetime = tuple[int, int]


def pack(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets, multiples of 64, such that buffers in use at a common time never overlap; and the total.

    Every buffer gets at least one byte, so that distinct live buffers have distinct addresses.
    """
    sized = [(align_up(max(size, 1)), mask) for size, mask in buffers]
    by_size = sorted(range(len(sized)), key=lambda i: (-sized[i][0], -sized[i][1].bit_count(), i))
    by_start = sorted(range(len(sized)), key=lambda i: (_first(sized[i][1]), -sized[i][0], i))
    layouts = [_place(sized, order) for order in (by_size, by_start)]
    return min(layouts, key=lambda layout: layout[1])


def _first(mask: int) -> int:
    return (mask & -mask).bit_length()


def _place(buffers: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Place buffers in ``order``, each into the smallest gap between those that conflict with it."""
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, int]] = []  # (offset, end, mask)
    total = 0
    for index in order:
        size, mask = buffers[index]
        conflicts = sorted((o, end) for o, end, other in placed if other & mask)
        offsets[index] = offset = _best_gap(conflicts, size)
        placed.append((offset, offset + size, mask))
        total = max(total, offset + size)
    return offsets, total


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap of at least ``size``, or the end of what is taken."""
    best, best_size = -1, 0
    end = 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < best_size):
            best, best_size = end, gap
        end = max(end, stop)
    return end if best < 0 else best
