# SPDX-License-Identifier: Apache-2.0
"""A picture of a run: each program's times over Gristmill's, and over the bound, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from html import escape

from report import OURS, Row, Run

_ROW, _TOP, _LABELS, _PANEL, _GAP = 18, 74, 150, 340, 40
_COLOURS = ("#d95f02", "#1b9e77", "#7570b3", "#666666", "#e7298a")
_OUR_COLOUR = "#1f4e9c"


def chart(run: Run) -> str:
    """The picture as SVG."""
    others = run.columns.others
    colours = dict(zip(others, _COLOURS, strict=False)) | {OURS: _OUR_COLOUR}
    height = _TOP + _ROW * len(run.rows) + 30
    width = _LABELS + 2 * _PANEL + _GAP + 20
    left, right = _LABELS, _LABELS + _PANEL + _GAP
    body = [
        *_labels(run.rows, width),
        *_panel(
            run.rows,
            left,
            "time over Gristmill's: right of 1 we are faster",
            others,
            colours,
            Row.ratio,
        ),
        *_panel(run.rows, right, "time over the bound", run.columns.peers, colours, Row.over_bound),
        *_legend(run, colours),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="{width}" height="{height}" '
        'fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _y(number: int) -> float:
    return _TOP + _ROW * (number + 0.5)


def _text(x: float, y: float, content: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(content)}</text>'


def _labels(rows: list[Row], width: int) -> Iterator[str]:
    for number, row in enumerate(rows):
        if number % 2 == 0:
            top = _y(number) - _ROW / 2
            yield f'<rect x="0" y="{top:.1f}" width="{width}" height="{_ROW}" fill="#f5f5f5"/>'
        yield _text(_LABELS - 8, _y(number) + 4, row.program, 'text-anchor="end"')


def _panel(
    rows: list[Row],
    left: float,
    title: str,
    peers: list[str],
    colours: dict[str, str],
    value: Callable[[Row, str], float | None],
) -> Iterator[str]:
    points = [(n, p, v) for n, row in enumerate(rows) for p in peers if (v := value(row, p))]
    if not points:
        return
    low = math.floor(min(0.0, *(math.log10(v) for _, _, v in points)))
    high = max(1, math.ceil(max(math.log10(v) for _, _, v in points)))

    def x(number: float) -> float:
        return left + (math.log10(number) - low) / (high - low) * _PANEL

    bottom = _TOP + _ROW * len(rows)
    yield _text(left, _TOP - 22, title, 'font-weight="bold"')
    for power in range(low, high + 1):
        at = x(10.0**power)
        stroke = "#333" if power == 0 else "#ddd"
        yield f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}" stroke="{stroke}"/>'
        yield _text(at, _TOP - 6, f"{10.0**power:g}", 'text-anchor="middle"')
    for number, peer, found in points:
        about = escape(f"{rows[number].program}: {peer} {found:.2f}")
        yield (
            f'<circle cx="{x(found):.1f}" cy="{_y(number):.1f}" r="4.5" fill="{colours[peer]}" '
            f'fill-opacity="0.8"><title>{about}</title></circle>'
        )


def _legend(run: Run, colours: dict[str, str]) -> Iterator[str]:
    x = float(_LABELS)
    for peer in run.columns.peers:
        title = run.columns.title(peer)
        yield f'<circle cx="{x:.1f}" cy="20" r="5" fill="{colours[peer]}"/>'
        yield _text(x + 9, 24, title)
        x += 40 + 7 * len(title)
