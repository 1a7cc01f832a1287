# SPDX-License-Identifier: Apache-2.0
"""Self-checking modules: finds their ``@check.expect_*`` calls and judges results by them.

A check is a custom call ``(%got, %want) -> ()`` in ``@main``:

* ``@check.expect_eq``: equal element by element; NaN equals NaN and -0 equals +0.
* ``@check.expect_close``: at most ``max_ulp_difference`` (default 3) units in the last place of
  the element type apart; NaN equals NaN and infinities must match.
* ``@check.expect_almost_eq``: within ``tolerance`` (default 1e-3), absolute or relative to the
  wanted value; NaN equals NaN and infinities must match.

The tolerances are in ``backend_config``. Elements that are not floating point must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PREFIX = "check.expect_"
KINDS = ("eq", "close", "almost_eq")
DEFAULT_LIMITS = {"eq": 0.0, "close": 3.0, "almost_eq": 1e-3}


@dataclass(frozen=True)
class Check:
    """One check of a module.

    Attributes:
        kind: ``eq``, ``close`` or ``almost_eq``.
        limit: the tolerance: units in the last place for ``close``, a ratio for ``almost_eq``.
        got: index of the computed value among the results of ``@main``.
        want: index of the wanted value among the results, or the value itself when it is constant.
        location: where the check stands, as ``file:line:col``.
    """

    kind: str
    limit: float
    got: int
    want: int | Array
    location: str

    def judge(self, results: Sequence[Array]) -> str | None:
        """What is wrong with the results, or ``None`` when they pass."""
        want = results[self.want] if isinstance(self.want, int) else self.want
        return compare(results[self.got], want, self.kind, self.limit)


def is_floating(array: Array) -> bool:
    """Whether the elements are real floating-point numbers, ``ml_dtypes``' narrow ones included."""
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))


def ulp_distance(got: Array, want: Array) -> Array:
    """Units in the last place between two finite arrays of one floating type, as ``uint64``.

    Both zeros count as one number.
    """
    a, b = _ordinal(np.ascontiguousarray(got)), _ordinal(np.ascontiguousarray(want))
    return np.where(a > b, a - b, b - a)


def _ordinal(values: Array) -> Array:
    """The place of each value among all finite ones of its type, from some origin."""
    if values.dtype.itemsize == 1:  # formats differ in sign and NaN: look the order up
        codes = np.arange(256, dtype=np.uint8).view(values.dtype).astype(np.float64)
        return np.searchsorted(
            np.unique(codes[np.isfinite(codes)]), values.astype(np.float64)
        ).astype(np.uint64)
    # Bit patterns of floating-point numbers, read as sign and magnitude, are in order.
    bits = values.dtype.itemsize * 8
    sign = np.uint64(1 << (bits - 1))
    raw = values.view(np.dtype(f"u{bits // 8}")).astype(np.uint64)
    magnitude = raw & ~sign & np.uint64((1 << bits) - 1)
    return np.where(raw & sign != 0, sign - magnitude, sign + magnitude)


def _within(got: Array, want: Array, kind: str, limit: float) -> Array:
    """Which elements pass."""
    if kind == "eq" or not is_floating(want):
        equal = got == want
        return equal | ((got != got) & (want != want))
    both_nan = np.isnan(got) & np.isnan(want)
    finite = np.isfinite(got) & np.isfinite(want)
    same = both_nan | (~finite & (got == want))
    if kind == "close":
        return same | (finite & (ulp_distance(got, want) <= np.uint64(limit)))
    wide_got = np.where(finite, got, 0).astype(np.float64)
    wide_want = np.where(finite, want, 0).astype(np.float64)
    return same | (finite & (np.abs(wide_got - wide_want) <= limit * np.maximum(1, abs(wide_want))))


def compare(got: Array, want: Array, kind: str, limit: float) -> str | None:
    """Judge ``got`` against ``want`` by the rules of the module docstring.

    Returns a sentence about the first and the worst difference, or ``None`` when all elements pass.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
    if want.dtype.kind == "c":
        parts = (
            compare(got.real, want.real, kind, limit),
            compare(got.imag, want.imag, kind, limit),
        )
        return parts[0] or parts[1]
    with np.errstate(all="ignore"):
        good = _within(got, want, kind, limit)
        if good.all():
            return None
        bad = ~good
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        message = (
            f"{int(bad.sum())} of {bad.size} elements differ; first at {list(first)}: "
            f"got {got[first]}, want {want[first]}"
        )
        finite = np.isfinite(got[bad]) & np.isfinite(want[bad]) if is_floating(want) else bad[:0]
        if is_floating(want) and finite.any():
            worst = int(ulp_distance(got[bad][finite], want[bad][finite]).max())
            message += f"; worst distance {worst} ULP"
        return message
