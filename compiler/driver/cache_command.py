# SPDX-License-Identifier: Apache-2.0
"""Show and tidy the cache of compiled programs, which `gristmill run` and gristmill.compile use.

actions:
  info     where it lies, how full it is, and what decides that (the default)
  list     every entry, the one used last first
  verify   check every entry and remove the damaged ones
  prune    evict the entries used longest ago until the rest fit the limit, or --size
  clear    remove all entries

examples:
  gristmill cache
  gristmill cache list
  gristmill cache prune --size 100M
  gristmill cache clear
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.compiler.driver.console import Progress, file_size, table

if TYPE_CHECKING:
    from gristmill.runtime.disk_cache import DiskCache, Entry

HELP = "show and tidy the cache of compiled programs"

#: The ending of a program's file name; damaged records of autotuning are noticed when they are read.
PROGRAM = ".gmill"

#: Digits of a key that are enough to tell entries apart in a list.
_SHOWN_DIGITS = 12


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=tuple(_ACTIONS),
        default="info",
        metavar="ACTION",
        help="one of " + ", ".join(_ACTIONS),
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="the cache in DIR (default: GRISTMILL_CACHE_DIR)"
    )
    parser.add_argument(
        "--size", metavar="N", help="bytes that prune leaves, with a suffix K, M, G or T"
    )


def execute(args: argparse.Namespace) -> int:
    """Do the action; returns the exit code."""
    from gristmill.errors import InputError
    from gristmill.runtime.disk_cache import open_cache

    if args.size is not None and args.action != "prune":
        raise InputError("--size goes with prune")
    return _ACTIONS[args.action](open_cache(args.dir), args)


def _info(cache: DiskCache, args: argparse.Namespace) -> int:
    from gristmill.runtime import knobs

    entries = cache.entries()
    used = sum(entry.nbytes for entry in entries)
    state = "on" if knobs.CACHE.get() else f"off ({knobs.CACHE.name}=0)"
    print(f"directory  {cache.folder}")
    print(f"entries    {len(entries)}, {file_size(used)} of {file_size(cache.limit)}")
    print(f"caching    {state}")
    return 0


def _list(cache: DiskCache, args: argparse.Namespace) -> int:
    rows = [
        (
            entry.name[:_SHOWN_DIGITS],
            file_size(entry.nbytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            _title(cache, entry),
        )
        for entry in reversed(cache.entries())
    ]
    print(table(("entry", "size", "last used", "program"), rows) if rows else "the cache is empty")
    return 0


def _title(cache: DiskCache, entry: Entry) -> str:
    from gristmill.errors import ArtifactError
    from gristmill.runtime import artifact

    if not entry.name.endswith(PROGRAM):
        return "a result of autotuning"
    try:
        manifest = artifact.read_manifest(cache.folder / entry.name)
    except ArtifactError as error:
        return f"damaged: {error.message}"
    return f"{manifest.name} ({manifest.target_name})"


def _verify(cache: DiskCache, args: argparse.Namespace) -> int:
    damaged = list(_damaged(cache))
    for name, reason in damaged:
        cache.discard(name)
        print(f"removed {name[:_SHOWN_DIGITS]}: {reason}")
    print(f"{len(cache.entries())} entries are good, {len(damaged)} were damaged")
    return 0


def _damaged(cache: DiskCache) -> Iterator[tuple[str, str]]:
    """Name and fault of every entry that does not load."""
    from gristmill.errors import ArtifactError
    from gristmill.runtime import artifact

    entries = [entry for entry in cache.entries() if entry.name.endswith(PROGRAM)]
    progress = Progress(len(entries))
    try:
        for number, entry in enumerate(entries):
            progress.update(number, entry.name[:_SHOWN_DIGITS])
            try:
                artifact.load(cache.folder / entry.name)
            except ArtifactError as error:
                yield entry.name, error.message
    finally:
        progress.close()


def _prune(cache: DiskCache, args: argparse.Namespace) -> int:
    from gristmill.errors import InputError
    from gristmill.runtime.knobs import parse_bytes

    limit = cache.limit
    if args.size is not None:
        try:
            limit = parse_bytes(args.size)
        except ValueError as error:
            raise InputError(f"--size {args.size}: {error}") from None
    return _report(cache.prune(limit))


def _clear(cache: DiskCache, args: argparse.Namespace) -> int:
    return _report(cache.clear())


def _report(removed: list[Entry]) -> int:
    nbytes = sum(entry.nbytes for entry in removed)
    print(f"removed {len(removed)} entries, {file_size(nbytes)}")
    return 0


_ACTIONS: dict[str, Callable[[DiskCache, argparse.Namespace], int]] = {
    "info": _info,
    "list": _list,
    "verify": _verify,
    "prune": _prune,
    "clear": _clear,
}
