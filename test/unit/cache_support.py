# SPDX-License-Identifier: Apache-2.0
"""What the tests of the cache directory share, importable by the processes they start."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

from gristmill.runtime.atomic import replacing
from gristmill.runtime.disk_cache import DiskCache


def content(size: int, fill: bytes = b"x") -> Callable[[Path], None]:
    """A writer of ``size`` bytes."""

    def write(path: Path) -> None:
        with replacing(path, durable=False) as file:
            file.write(fill * size)

    return write


def hammer(folder: Path, seed: int, failures: multiprocessing.Queue[str]) -> None:
    """Find, store and evict entries, and report any whose content is not what was stored."""
    cache = DiskCache(folder, 20_000)
    try:
        for step in range(150):
            name = "0123456789abcdef"[(step * 7 + seed) % 16] * 64 + ".bin"
            fill = name[0].encode()
            path = cache.find(name)
            if path is None:
                cache.store(name, content(3000, fill))
                continue
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # evicted meanwhile
            if data != fill * 3000:
                failures.put(f"{name[:4]}: {len(data)} bytes")
    except Exception as error:  # whatever it is, the parent reports it
        failures.put(repr(error))
