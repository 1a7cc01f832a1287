# SPDX-License-Identifier: Apache-2.0
"""Interval sets and checksums of parts, against plain sets and zlib."""

from __future__ import annotations

import ctypes
import itertools
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.runtime.checksum import crc32_at, crc32_joined
from gristmill.runtime.intervals import IntervalSet

SPAN = st.tuples(st.integers(0, 40), st.integers(0, 40))


@given(st.lists(SPAN), SPAN)
def test_interval_sets_against_sets(spans, query):
    made, model = IntervalSet(), set()
    for start, stop in spans:
        made.add(start, stop)
        model |= set(range(start, stop))
    intervals = list(made)
    assert {i for low, high in intervals for i in range(low, high)} == model
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(intervals))
    assert made.total == len(model)
    assert len(made) == len(intervals)
    start, stop = query
    asked = set(range(start, stop))
    assert made.covers(start, stop) == (asked <= model)
    missing = {i for low, high in made.gaps(start, stop) for i in range(low, high)}
    assert missing == asked - model
    part = made.overlaps(start, stop)
    if part is None:
        assert not asked & model
    else:
        assert set(range(*part)) <= asked & model
        assert part[0] == min(asked & model)


def test_intervals_are_shown():
    made = IntervalSet()
    made.add(3, 5)
    made.add(7, 7)
    made.add(0, 1)
    assert repr(made) == "{0..1, 3..5}"


@pytest.mark.parametrize("cut", [0, 1, 7, 500, 999, 1000])
def test_checksums_of_parts(cut):
    data = np.random.default_rng(cut).integers(0, 256, 1000, np.uint8).tobytes()
    first, second = data[:cut], data[cut:]
    joined = crc32_joined(zlib.crc32(first), zlib.crc32(second), len(second))
    assert joined == zlib.crc32(data)


def test_checksums_of_memory():
    memory = ctypes.create_string_buffer(b"123456789", 9)
    assert crc32_at(ctypes.addressof(memory), 9) == 0xCBF43926  # the standard's check value
    assert crc32_at(0, 0) == 0
