# SPDX-License-Identifier: Apache-2.0
"""Interrupts at every place where one can come: signals are handled where a function starts and where a call of a C
function returns, which is what a profile function sees."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def interrupted(action: Callable[[], object], place: int) -> bool:
    """Do ``action`` with a ``KeyboardInterrupt`` at the place of that number; False when there are not so many."""
    left = place
    hit = False

    def interrupt(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left, hit
        if event not in ("call", "c_return"):
            return
        left -= 1
        if left < 0:
            sys.setprofile(None)
            hit = True
            raise KeyboardInterrupt

    before = sys.getprofile()
    gc.disable()  # finalisers are no part of it
    sys.setprofile(interrupt)
    try:
        action()
    except KeyboardInterrupt:
        assert hit
    finally:
        sys.setprofile(before)
        gc.enable()
    return hit


def places(action: Callable[[], Callable[[], object]]) -> Iterator[int]:
    """The numbers of all places of what ``action`` returns, made anew for each, after its interrupt there."""
    place = 0
    while interrupted(action(), place):
        yield place
        place += 1
    assert place > 0, "no place was met"
