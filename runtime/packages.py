# SPDX-License-Identifier: Apache-2.0
"""Versions and folders of installed packages, without ``importlib.metadata``, whose import takes 15 ms."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_METADATA = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info")


class Package(NamedTuple):
    """An installed package: its version, and the folder its files are relative to."""

    version: str
    folder: Path


def find_package(name: str) -> Package | None:
    """The package called ``name``, as ``import`` would find it; ``None`` when it is not installed."""
    return _packages(tuple(sys.path)).get(_normalised(name))


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


@lru_cache(maxsize=4)
def _packages(folders: tuple[str, ...]) -> dict[str, Package]:
    found: dict[str, Package] = {}
    for folder in folders:
        try:
            names = [path.name for path in Path(folder).iterdir()]
        except OSError:
            continue  # no directory: a zip file, or nothing
        for match in filter(None, map(_METADATA.fullmatch, names)):
            package = Package(match["version"], Path(folder))
            found.setdefault(_normalised(match["name"]), package)
    return found
