# SPDX-License-Identifier: Apache-2.0
"""Sizes of the processor's data caches."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

_ROOT = Path("/sys/devices/system/cpu/cpu0/cache")


@lru_cache(maxsize=1)
def cache_sizes() -> MappingProxyType[str, int]:
    """Bytes of core 0's data caches by name (``L1``, ``L2``, …), as the system tells them; may be empty."""
    sizes: dict[str, int] = {}
    for index in sorted(_ROOT.glob("index*")):
        try:
            level, kind, size = ((index / n).read_text().strip() for n in ("level", "type", "size"))
        except OSError:
            continue
        if kind in ("Data", "Unified") and size.endswith("K"):
            sizes[f"L{level}"] = int(size[:-1]) * 1024
    return MappingProxyType(sizes)
