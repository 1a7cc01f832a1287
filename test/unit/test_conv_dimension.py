# SPDX-License-Identifier: Apache-2.0
"""Dilated dimensions of convolutions against the elements that each tap of each window falls on."""

from __future__ import annotations

import numpy as np

from gristmill.compiler.emitters.cpu.conv_dimension import ConvDimension


def test_taps_that_read_an_element() -> None:
    rng = np.random.default_rng(1)
    for _ in range(2000):
        size, stride, dilation, base, outputs = (int(rng.integers(1, m)) for m in (8, 5, 5, 7, 20))
        low = int(rng.integers(-6, 9))
        dimension = ConvDimension(size, stride, dilation, low, base, outputs)
        elements: list[int] = []
        for window in range(outputs):
            positions = [(k, window * stride + k * dilation - low) for k in range(size)]
            wanted = [(k, at // base) for k, at in positions if at % base == 0]
            first = dimension.first(window)
            taps = dimension.taps(first)
            assert isinstance(first, int)
            assert taps == len(wanted) <= dimension.most_taps
            origin = dimension.origin(window, first, 0)
            for number, (tap, element) in enumerate(wanted):
                assert tap == first + number * dimension.tap_step
                assert element == origin + number * dimension.spacing
            elements += [element for _, element in wanted]
        assert dimension.reads == len(elements)
        if elements:
            assert dimension.padding == -min(elements)
            assert dimension.padded == max(elements) - min(elements) + 1


def test_windows_of_a_residue() -> None:
    """They read at the same taps, elements equally far apart; each window is of one residue."""
    rng = np.random.default_rng(2)
    for _ in range(500):
        size, stride, dilation, base, outputs = (int(rng.integers(1, m)) for m in (8, 5, 5, 7, 20))
        dimension = ConvDimension(size, stride, dilation, int(rng.integers(-6, 9)), base, outputs)
        residues = range(dimension.residues)
        assert sum(dimension.windows(r) for r in residues) == outputs
        for residue in residues:
            first = dimension.first(residue)
            for number in range(dimension.windows(residue)):
                window = residue + number * dimension.period
                assert window < outputs
                assert dimension.first(window) == first
                if dimension.taps(first):
                    apart = dimension.origin(window, first, 0) - dimension.origin(residue, first, 0)
                    assert apart == number * dimension.advance


def test_undilated() -> None:
    dimension = ConvDimension(size=3, stride=2, dilation=2, low=1, base=1, outputs=5)
    assert (dimension.residues, dimension.advance, dimension.spacing) == (1, 2, 2)
    assert (dimension.first(4), dimension.taps(0), dimension.padding) == (0, 3, 1)
    assert (dimension.padded, dimension.reads) == (13, 15)
