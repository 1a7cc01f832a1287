# SPDX-License-Identifier: Apache-2.0
"""A roofline picture as SVG: each kernel's achieved flops over its flops per byte, under the machine's limits.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009): no kernel can
be above the sloping line (its traffic at the bandwidth) or the level one (the multiply-add rate).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from gristmill.compiler.driver.console import seconds
from gristmill.compiler.driver.machine import MEMORY_BYTES, Machine
from gristmill.compiler.driver.profiling import KernelTime
from gristmill.runtime.caches import cache_sizes

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 50, 60
_LABELLED = 8
_LARGEST_RADIUS, _SMALLEST_RADIUS = 26.0, 4.0

#: Colours by emitter kind, of equal lightness; kinds not named here share the last.
_COLOURS = {
    "dot": "#4c78a8",
    "convolution": "#b279a2",
    "row": "#f58518",
    "column": "#e45756",
    "loop": "#54a24b",
}
_OTHER_COLOUR = "#8c8c8c"


class _Axes:
    """Logarithmic axes: flops per byte across, GFLOP/s up."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]):
        self.low_x, self.high_x = _decades(xs)
        self.low_y, self.high_y = _decades(ys)

    def x(self, value: float) -> float:
        part = (math.log10(value) - self.low_x) / (self.high_x - self.low_x)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        part = (math.log10(value) - self.low_y) / (self.high_y - self.low_y)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def svg(name: str, kernels: Iterable[KernelTime], machine: Machine) -> str:
    """The picture. Kernels without flops are left out of the plane and counted below it."""
    rows = [k for k in kernels if k.launches and k.seconds > 0]
    drawn = [k for k in rows if k.work.flops and k.work.bytes]
    peak = machine.flops()
    roofs = {"memory": machine.bandwidth(MEMORY_BYTES)}
    roofs |= {
        level: machine.bandwidth(n // 2) for level, n in cache_sizes().items() if level != "L3"
    }
    intensities = [k.work.flops / k.work.bytes for k in drawn]
    rates = [k.flops_per_second for k in drawn]
    ridge = peak / roofs["memory"]
    axes = _Axes([*intensities, ridge / 100, ridge * 10], [*rates, peak / 1000, peak * 1.5])
    total = sum(k.seconds for k in rows) or 1.0
    body = [
        *_grid(axes),
        *_roofs(axes, peak, roofs),
        *_points(axes, drawn, total),
        *_legend(drawn, total, len(rows) - len(drawn)),
    ]
    title = f"{escape(name)}: kernels on {machine.threads} thread{'s' * (machine.threads > 1)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
        f'<text x="{_LEFT}" y="28" font-size="16">{title}</text>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _text(x: float, y: float, content: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(content)}</text>'


def _grid(axes: _Axes) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    pale = 'stroke="#e5e5e5"'
    for power in range(axes.low_x, axes.high_x + 1):
        at = axes.x(10.0**power)
        yield _line(at, _TOP, at, bottom, pale)
        yield _text(at, bottom + 18, f"{10.0**power:g}", 'text-anchor="middle"')
    for power in range(axes.low_y, axes.high_y + 1):
        at = axes.y(10.0**power)
        yield _line(_LEFT, at, right, at, pale)
        yield _text(_LEFT - 8, at + 4, f"{10.0 ** (power - 9):g}", 'text-anchor="end"')
    yield _text((_LEFT + right) / 2, bottom + 42, "flops per byte", 'text-anchor="middle"')
    middle = (_TOP + bottom) / 2
    turn = f'text-anchor="middle" transform="rotate(-90 20 {middle:.0f})"'
    yield _text(20, middle, "GFLOP/s", turn)


def _roofs(axes: _Axes, peak: float, roofs: dict[str, float]) -> Iterator[str]:
    right = 10.0**axes.high_x
    for level, bandwidth in roofs.items():
        dash = "" if level == "memory" else ' stroke-dasharray="5 4"'
        start = max(10.0**axes.low_x, 10.0**axes.low_y / bandwidth)
        ridge = peak / bandwidth
        if start >= ridge:
            continue
        yield _line(
            *(axes.x(start), axes.y(start * bandwidth), axes.x(ridge), axes.y(peak)),
            f'stroke="#333"{dash}',
        )
        at = start * (ridge / start) ** 0.12
        slope = math.degrees(
            math.atan2(axes.y(peak) - axes.y(start * bandwidth), axes.x(ridge) - axes.x(start))
        )
        x, y = axes.x(at), axes.y(at * bandwidth) - 5
        turn = f'fill="#333" transform="rotate({slope:.1f} {x:.1f} {y:.1f})"'
        yield _text(x, y, f"{level} {bandwidth * 1e-9:.1f} GB/s", turn)
    ridge = min(peak / bandwidth for bandwidth in roofs.values())
    yield _line(axes.x(ridge), axes.y(peak), axes.x(right), axes.y(peak), 'stroke="#333"')
    yield _text(
        axes.x(right) - 4,
        axes.y(peak) - 6,
        f"multiply-adds {peak * 1e-9:.0f} GFLOP/s",
        'text-anchor="end" fill="#333"',
    )


def _points(axes: _Axes, kernels: Sequence[KernelTime], total: float) -> Iterator[str]:
    for number, kernel in enumerate(kernels):
        x = axes.x(kernel.work.flops / kernel.work.bytes)
        y = axes.y(kernel.flops_per_second)
        radius = max(_SMALLEST_RADIUS, _LARGEST_RADIUS * math.sqrt(kernel.seconds / total))
        colour = _COLOURS.get(kernel.kind, _OTHER_COLOUR)
        about = f"{kernel.name}: {_share(kernel, total)}; {', '.join(kernel.work.operations)}"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" '
            f'fill-opacity="0.55" stroke="{colour}"><title>{escape(about)}</title></circle>'
        )
        if number < _LABELLED:
            yield _text(x, y + 4, str(number + 1), 'text-anchor="middle"')


def _share(kernel: KernelTime, total: float) -> str:
    return f"{seconds(kernel.seconds)}, {kernel.seconds / total:.0%}"


def _legend(kernels: Sequence[KernelTime], total: float, hidden: int) -> Iterator[str]:
    x, y = _WIDTH - _RIGHT + 16, _TOP + 10.0
    for number, kernel in enumerate(kernels[:_LABELLED]):
        colour = _COLOURS.get(kernel.kind, _OTHER_COLOUR)
        yield _text(x, y, f"{number + 1}  {kernel.name}", f'fill="{colour}"')
        yield _text(x + 16, y + 15, f"{_share(kernel, total)} of the time")
        y += 38
    if hidden:
        yield _text(x, y, f"not shown: {hidden} without flops", 'fill="#666"')
