# SPDX-License-Identifier: Apache-2.0
"""The packer: no overlap among buffers in use together, alignment, and how close it comes to the optimum."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.compiler.program.liveness import span
from gristmill.compiler.program.pack import pack
from gristmill.runtime.program import align_up

_interval = st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda p: span(p[0], p[0] + p[1]))
_mask = st.lists(_interval, min_size=1, max_size=3).map(lambda parts: _union(parts))
_buffers = st.lists(st.tuples(st.integers(0, 5000), _mask), max_size=40)


def _union(parts: list[int]) -> int:
    mask = 0
    for part in parts:
        mask |= part
    return mask


@settings(max_examples=200, deadline=None)
@given(_buffers)
def test_layout_is_valid(buffers: list[tuple[int, int]]) -> None:
    offsets, total = pack(buffers)
    sizes = [align_up(max(size, 1)) for size, _ in buffers]
    for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        assert offset % 64 == 0
        assert offset >= 0
        assert offset + size <= total
        for other in range(number):
            if buffers[number][1] & buffers[other][1]:
                apart = offset + size <= offsets[other] or offsets[other] + sizes[other] <= offset
                assert apart, (buffers[number], buffers[other])
    assert total <= sum(sizes)
    peak = max(
        (sum(s for s, b in zip(sizes, buffers, strict=True) if b[1] >> t & 1) for t in range(100)),
        default=0,
    )
    assert total >= peak


def test_disjoint_lifetimes_share_memory() -> None:
    offsets, total = pack([(1000, span(0, 1)), (1000, span(2, 3)), (1000, span(4, 5))])
    assert offsets == [0, 0, 0]
    assert total == 1024


def test_a_buffer_fits_into_the_hole_of_another() -> None:
    hole = span(0, 2) | span(8, 9)
    offsets, total = pack([(640, hole), (640, span(4, 6))])
    assert offsets == [0, 0]
    assert total == 640


def test_best_gap_is_taken() -> None:
    # Two dead buffers leave gaps of 256 and 128 bytes between live ones; the newcomer takes the smaller.
    buffers = [
        (512, span(0, 9)),
        (256, span(0, 1)),
        (448, span(0, 9)),
        (128, span(0, 1)),
        (384, span(0, 9)),
        (128, span(5, 6)),
    ]
    _, total = pack(buffers)
    assert total == 512 + 256 + 448 + 128 + 384
