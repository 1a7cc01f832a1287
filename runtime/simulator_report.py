# SPDX-License-Identifier: Apache-2.0
"""What a simulated GPU kernel reports when a thread breaks a rule: the report's layout and its text.

====  ==================================================================================================
word  meaning
====  ==================================================================================================
0     the code of the first fault, 0 for none; the kernel returns it too
1     the block's number in the grid, x fastest
2     the thread's number in the block, x fastest (not for a divergence)
3     the address of a zero-terminated text that names the operation; it lives as long as the code
4     the index or byte offset at fault
5     the bound that it breaks, or the other thread of a race
====  ==================================================================================================
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

#: Words of a report.
REPORT_WORDS = 8

(
    SUCCESS,
    DIVERGENT_BARRIER,
    DIVERGENT_EXCHANGE,
    OUT_OF_MEMORY,
    OUT_OF_BOUNDS,
    RACE,
    UNINITIALISED,
    TOO_MANY_COPIES,
) = range(8)


def describe(report: Sequence[int]) -> str:
    """The report as a sentence or two: what, where and what to look for."""
    code, block, thread, site, value, other = report[:6]
    if code == OUT_OF_MEMORY:
        return "no memory for the simulated block"
    if code == DIVERGENT_BARRIER:
        return (
            f"block {block}: a barrier that not all threads of the block reach; move it out of the branch, "
            "or let no thread return before it"
        )
    if code == DIVERGENT_EXCHANGE:
        return f"block {block}: a shuffle or mma that not all lanes of a warp take part in"
    where = f"block {block}, thread {thread}: {_text(site)}"
    if code == OUT_OF_BOUNDS:
        return f"{where}: index {value} is not in [0, {other})"
    if code == RACE:
        return (
            f"{where}: byte {value} of the block's shared memory is also accessed by "
            f"{_other(other)}, with no barrier between the two"
        )
    if code == UNINITIALISED:
        return f"{where}: byte {value} of the block's shared memory was never written"
    if code == TOO_MANY_COPIES:
        return f"{where}: {value} asynchronous copies or groups are running, the simulator keeps {other}"
    return f"unknown fault {code}"


def _other(number: int) -> str:
    """The other side of a race: a thread, or threads of one warp, or of several (see ``simulator_checks``)."""
    if number < 1024:
        return f"thread {number}"
    return f"threads of warp {number - 1024}" if number < 1056 else "several warps"


def _text(address: int) -> str:
    return ctypes.string_at(address).decode() if address else "an access"
