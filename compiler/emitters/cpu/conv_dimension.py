# SPDX-License-Identifier: Apache-2.0
"""One spatial dimension of a convolution, whose input may be dilated, in terms of the input's own elements.

Dilation puts ``d - 1`` zeros between neighbours. Tap ``k`` of window ``w`` reads position ``w*s + k*r - low`` (stride
``s``, dilation ``r`` of the window), which is an element if ``d`` divides it. So only every ``d/gcd(r, d)``-th tap of a
window reads an element, counted from the first that does; which one that is depends on the window's number modulo
``d/gcd(s, d)``, its *residue*. The windows of one residue are those of a convolution of the input as it is, with stride
``s/gcd(s, d)``, window dilation ``r/gcd(r, d)`` and some of the taps: the polyphase form of a transposed convolution.
An input that is not dilated makes one residue, all of whose windows read at all taps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index


@dataclass(frozen=True)
class ConvDimension:
    """One spatial dimension of a convolution.

    Attributes:
        size, stride, dilation: of the window.
        low: padding before the dilated operand; where negative, positions cut off.
        base: the operand's dilation.
        outputs: number of windows.
    """

    size: int
    stride: int
    dilation: int
    low: int
    base: int
    outputs: int

    @property
    def period(self) -> int:
        """Windows that many apart are of one residue."""
        return self.base // math.gcd(self.stride, self.base)

    @property
    def residues(self) -> int:
        """The number of residues that windows have."""
        return min(self.period, self.outputs)

    @property
    def advance(self) -> int:
        """Elements from where a window begins to where the next of its residue does."""
        return self.stride // math.gcd(self.stride, self.base)

    @property
    def tap_step(self) -> int:
        """From one tap that reads an element to the next."""
        return self.base // math.gcd(self.dilation, self.base)

    @property
    def spacing(self) -> int:
        """Elements from what one of those taps reads to what the next does."""
        return self.dilation // math.gcd(self.dilation, self.base)

    @property
    def most_taps(self) -> int:
        """Taps of a window that read an element, at most."""
        return -(-self.size // self.tap_step)

    def windows(self, residue: int) -> int:
        """The number of windows of a residue."""
        return -(-(self.outputs - residue) // self.period)

    def first(self, window: Index) -> Index:
        """The first tap of a window that reads an element; ``size`` or more if none does.

        It solves ``first * dilation == low - window * stride`` modulo ``base``.
        """
        common = math.gcd(self.dilation, self.base)
        inverse = pow(self.spacing, -1, self.tap_step)
        wanted = build.add(build.mul(window, -self.stride % self.base), self.low % self.base)
        wanted = build.mod(wanted, self.base)
        unsolvable = build.minimum(build.mod(wanted, common), 1)
        solution = build.mod(build.mul(build.div(wanted, common), inverse), self.tap_step)
        return build.add(solution, build.mul(unsolvable, self.size))

    def taps(self, first: Index) -> Index:
        """The number of taps from ``first`` on that read an element."""
        if self.tap_step == self.base and self.size % self.base == 0:
            return self.size // self.base
        return build.div(build.sub(self.size - 1 + self.tap_step, first), self.tap_step)

    def origin(self, window: Index, first: Index, padding: int) -> Index:
        """The element that tap ``first`` reads, with ``padding`` elements before; of no meaning if no tap reads one."""
        position = build.add(build.mul(window, self.stride), build.mul(first, self.dilation))
        return build.div(build.add(position, padding * self.base - self.low), self.base)

    def _reads(self) -> Iterator[tuple[int, int, int]]:
        """``(number of windows, taps, first element)`` of each residue that reads any."""
        for residue in range(self.residues):
            first = self.first(residue)
            taps, origin = self.taps(first), self.origin(residue, first, 0)
            assert isinstance(taps, int)
            assert isinstance(origin, int)
            if taps:
                yield self.windows(residue), taps, origin

    @property
    def padding(self) -> int:
        """Elements before the operand's first that windows reach; where negative, elements that none does."""
        return max((-origin for _, _, origin in self._reads()), default=0)

    @property
    def padded(self) -> int:
        """Elements that windows reach, those in the padding included."""
        ends = (
            origin + (windows - 1) * self.advance + (taps - 1) * self.spacing
            for windows, taps, origin in self._reads()
        )
        return self.padding + max(ends, default=0) + 1

    @property
    def reads(self) -> int:
        """Taps of all windows that read an element or its padding."""
        return sum(windows * taps for windows, taps, _ in self._reads())
