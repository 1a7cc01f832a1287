# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes: which there are, and binding memory to one, by system call and without a library."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

_ONLINE = Path("/sys/devices/system/node/online")

#: Numbers of the system calls (mbind, get_mempolicy), by machine.
_CALLS = {"x86_64": (237, 239), "aarch64": (235, 236), "riscv64": (235, 236)}

_MPOL_BIND = 2
_MPOL_MF_STRICT_MOVE = 1 | 2
_MPOL_F_NODE_OF_ADDRESS = 1 | 2
_MASK_BITS = 64 * 16


def online_nodes() -> tuple[int, ...]:
    """The machine's NUMA nodes; empty where the system does not tell."""
    try:
        return parse_nodes(_ONLINE.read_text())
    except (OSError, ValueError):
        return ()


def parse_nodes(text: str) -> tuple[int, ...]:
    """``"0-2,5"`` → ``(0, 1, 2, 5)``; raises ``ValueError`` for other text."""
    nodes: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        nodes.extend(range(int(first), int(last or first) + 1))
    return tuple(nodes)


def bind(address: int, nbytes: int, node: int) -> str:
    """Let whole pages have their memory on ``node`` only.

    Returns why it was not done: an empty string when it was. Pages that have memory already are moved.
    """
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return f"no system call number for mbind on {platform.machine()} is known"
    if node >= _MASK_BITS:
        return f"node numbers end at {_MASK_BITS - 1}"
    mask = (ctypes.c_uint64 * (_MASK_BITS // 64))()
    mask[node // 64] = 1 << (node % 64)
    failed = _system_call()(
        calls[0], address, nbytes, _MPOL_BIND, ctypes.addressof(mask), _MASK_BITS + 1,
        _MPOL_MF_STRICT_MOVE,
    )  # fmt: skip
    return f"mbind: {os.strerror(ctypes.get_errno())}" if failed else ""


def node_of(address: int) -> int | None:
    """The node that holds the page at ``address``, which gets memory if it has none; None if unknown."""
    calls = _CALLS.get(platform.machine())
    node = ctypes.c_int(-1)
    if calls is None or _system_call()(
        calls[1], ctypes.addressof(node), 0, 0, address, _MPOL_F_NODE_OF_ADDRESS, 0
    ):
        return None
    return node.value


@lru_cache(maxsize=1)
def _system_call() -> Any:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long] * 7
    return call
