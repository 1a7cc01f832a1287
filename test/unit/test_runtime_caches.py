# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from gristmill.runtime.caches import cache_sizes


def test_cache_sizes_grow_with_the_level() -> None:
    sizes = cache_sizes()
    assert list(sizes.values()) == sorted(sizes.values())
    assert all(name.startswith("L") for name in sizes)
