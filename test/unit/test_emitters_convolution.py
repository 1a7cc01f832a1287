# SPDX-License-Identifier: Apache-2.0
"""Convolutions of every form against the StableHLO reference interpreter, random ones against their definition."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from convolution_support import CASES, DTYPES, SAME, Case, Window, expected, module
from interpreter import evaluate

import gristmill
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.emitters.cpu.conv_problem import ConvProblem, Tile, WeightChunk
from gristmill.compiler.emitters.cpu.convolution_rows import RowPlan
from gristmill.compiler.graph import Node
from gristmill.runtime.types import element_type

RNG = np.random.default_rng(8)


def check(case: Case, element: str, result: str | None = None) -> None:
    # Small whole numbers: every sum is exact, in whatever order.
    text = module(case, element, result or element)
    x, w = (RNG.integers(-2, 3, s).astype(DTYPES[element]) for s in (case.lhs, case.rhs))
    np.testing.assert_array_equal(gristmill.compile(text)(x, w), evaluate(text, x, w)[0])


@pytest.mark.parametrize("name", CASES)
def test_forms(name: str) -> None:
    case = CASES[name]
    check(case, "f32")
    stages = compile_stages(
        import_source(module(case, "f32", "f32")), stop_after="fused", keep_stages=True
    )
    assert ('kind = "convolution"' in str(stages.emit("fused"))) == case.direct


def test_planes_behind_the_features() -> None:
    """The features' dimension first, which the reference interpreter does not take."""
    case = CASES["planes"]
    x, w = (RNG.integers(-2, 3, s).astype(np.float32) for s in (case.lhs, case.rhs))
    batch, features, *space = case.out
    numbers = case.numbers.replace("->[b, f", "->[f, b")
    first = replace(case, out=(features, batch, *space), numbers=numbers)
    got = gristmill.compile(module(first, "f32", "f32"))(x, w)
    expected = evaluate(module(case, "f32", "f32"), x, w)[0]
    np.testing.assert_array_equal(got, np.swapaxes(expected, 0, 1))


@pytest.mark.parametrize("l1_bytes", [1024, 4096])
@pytest.mark.parametrize(
    "name", [n for n, case in CASES.items() if case.direct and "depthwise" not in n]
)
def test_chunks_of_weights(name: str, l1_bytes: int) -> None:
    """A row of pixels is passed over once for each part of the weights that half the first-level cache holds."""
    case, target = CASES[name], replace(host_target(), vector_bytes=32, l1_bytes=l1_bytes)
    text = module(case, "f32", "f32")
    x, w = (RNG.integers(-2, 3, s).astype(np.float32) for s in (case.lhs, case.rhs))
    got = gristmill.compile(text, target=target)(x, w)
    np.testing.assert_array_equal(got, evaluate(text, x, w)[0])


def test_shape_of_chunks() -> None:
    """Positions of as few window dimensions as do, then equal parts of the channels, or else as many as fit."""
    target = replace(host_target(), vector_bytes=32, l1_bytes=1 << 15)

    def chunk(channels: int, width: int = 12) -> WeightChunk | None:
        out, ones = (width, width), (1, 1)
        problem = ConvProblem(
            node=cast("Node", None),
            element=element_type("f32"),
            batch=1,
            groups=1,
            batch_groups=False,
            depthwise=False,
            channels=channels,
            features=64,
            inputs=channels,
            extents=out,
            kernel=(3, 3),
            outputs=out,
            strides=ones,
            dilations=ones,
            low=ones,
            base=ones,
            reversal=(0, 0),
        )
        return WeightChunk.of(problem, Tile.of(problem, width, target), target)

    assert chunk(16) is None
    assert chunk(64) == WeightChunk(1, 64)
    assert chunk(256) == WeightChunk(2, 256)
    assert chunk(384) == WeightChunk(2, 192)
    assert chunk(263) == WeightChunk(2, 256)
    assert chunk(64, width=6) is None  # one tile uses the weights once


@pytest.mark.parametrize(("width", "sizes"), [(56, {6, 5}), (7, {4, 3}), (12, {6}), (1, {1})])
def test_tiles_of_a_row_are_about_equal(width: int, sizes: set[int]) -> None:
    spans = Tile(lanes=8, vectors=2, pixels=6, features=16, chunk=66).spans(width)
    assert {size for _, _, size in spans} == sizes
    assert [end for _, end, _ in spans] == [*(begin for begin, _, _ in spans[1:]), width]
    assert all((end - begin) % size == 0 for begin, end, size in spans)


@pytest.mark.parametrize("element", ["f64", "f16", "i32", "i8"])
@pytest.mark.parametrize(
    "name",
    [
        "same",
        "nchw",
        "planes",
        "depthwise_left_over",
        "groups",
        "channels_in_vectors",
        "one_feature",
        "one_channel",
    ],
)
def test_types(name: str, element: str) -> None:
    check(CASES[name], element)


LAYOUTS = {
    1: ("[b, 0, f]x[0, i, o]->[b, 0, f]", "[b, f, 0]x[i, o, 0]->[b, f, 0]"),
    2: (
        "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]",
        "[b, f, 0, 1]x[i, o, 0, 1]->[b, f, 0, 1]",
        "[1, f, b, 0]x[o, 1, i, 0]->[0, b, 1, f]",
    ),
    3: ("[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]",),
}


def random_case(rng: np.random.Generator) -> Case:
    """A convolution of one to three dimensions, most of them dilated, with padding of either sign."""
    rank = int(rng.integers(1, 4))
    extents, kernel = rng.integers(1, 10, rank), rng.integers(1, 6, rank)
    fields = {
        "stride": rng.integers(1, 4, rank).tolist(),
        "pad": rng.integers(-2, 6, (rank, 2)).tolist(),
        "lhs_dilate": rng.integers(1, 5, rank).tolist(),
        "rhs_dilate": rng.choice([1, 1, 2, 3], rank).tolist(),
        "reverse": rng.choice([False, True], rank).tolist(),
    }
    numbers = LAYOUTS[rank][rng.integers(len(LAYOUTS[rank]))]
    kind = rng.choice(["plain", "plain", "groups", "depthwise", "batch_groups"])
    groups = 1 if kind == "plain" else int(rng.choice([2, 3, 16]))
    channels = 1 if kind == "depthwise" else int(rng.choice([*range(1, 9), 16, 16]))
    features = groups * (1 if kind == "depthwise" else int(rng.integers(1, 20)))
    by_batch = kind == "batch_groups"
    case = Case(
        (),
        (),
        (),
        numbers,
        {name: str(value).lower() for name, value in fields.items()},
        1 if by_batch else groups,
        groups if by_batch else 1,
    )
    windows = [Window.of(case, d) for d in range(rank)]
    space = [w.outputs(int(e), int(k)) for w, e, k in zip(windows, extents, kernel, strict=True)]
    batch = int(rng.integers(1, 3))
    left, rest = numbers.split("x")
    names = [part.strip("[]").split(", ") for part in (left, *rest.split("->"))]
    sizes = [
        {"b": batch * case.batch_groups, "f": channels * case.groups},
        {"i": channels, "o": features},
        {"b": batch, "f": features},
    ]
    for known, positions in zip(sizes, (extents, kernel, space), strict=True):
        known.update((str(d), int(size)) for d, size in enumerate(positions))
    lhs, rhs, out = (
        tuple(known[d] for d in order) for known, order in zip(sizes, names, strict=True)
    )
    return replace(case, lhs=lhs, rhs=rhs, out=out)


@pytest.mark.parametrize("seed", range(60))
def test_random_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    while min(case.out) == 0 or np.prod(case.out) * np.prod(case.rhs) > 4_000_000:
        case = random_case(rng)
    element = str(rng.choice(["f32", "f32", "f64", "f16", "i32", "i8"]))
    x, w = (rng.integers(-2, 3, s).astype(DTYPES[element]) for s in (case.lhs, case.rhs))
    target = replace(host_target(), vector_bytes=32, l1_bytes=int(rng.choice([1024, 32768])))
    got = gristmill.compile(module(case, element, element), target=target)(x, w)
    wide = np.float64 if element.startswith("f") else np.int64
    wanted = expected(case, x.astype(wide), w.astype(wide)).astype(DTYPES[element])
    np.testing.assert_array_equal(got, wanted)


def test_zeros_between_elements_are_not_multiplied() -> None:
    """Infinite weights meet elements only, as the elementwise rule has it."""
    case = CASES["transposed"]
    x = np.ones(case.lhs, np.float32)
    got = gristmill.compile(module(case, "f32", "f32"))(x, np.full(case.rhs, np.inf, np.float32))
    assert not np.isnan(got[:, 2:-2, 2:-2]).any()


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("rows") or "long" in n])
def test_rows_of_narrower_vectors(name: str) -> None:
    """Vectors along a row, in two halves each."""
    case, target = CASES[name], replace(host_target(), vector_bytes=16)
    text = module(case, "f32", "f32")
    x, w = (RNG.integers(-2, 3, s).astype(np.float32) for s in (case.lhs, case.rhs))
    got = gristmill.compile(text, target=target)(x, w)
    np.testing.assert_array_equal(got, evaluate(text, x, w)[0])


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize(
    ("width", "interior"),
    [(5, (0, 5)), (37, (2, 34)), (170, (80, 90)), (9100, (7, 9088)), (8, (8, 8))],
)
def test_vectors_of_a_row(width: int, interior: tuple[int, int], registers: int) -> None:
    """They cover the row, and those that read without masks have their windows inside."""
    target = replace(
        host_target(), vector_bytes=32, features="+avx512vl" if registers == 32 else ""
    )
    plan = RowPlan.of(width, interior, 3, 4, target)
    tile = plan.vectors * plan.lanes
    tiles = range(plan.begin, plan.begin + plan.tiles * tile, plan.lanes)
    starts = {*tiles, *plan.inside, *plan.outside}
    assert {i + lane for i in starts for lane in range(plan.lanes)} == set(range(width))
    assert all(interior[0] <= i <= interior[1] - plan.lanes for i in (*tiles, *plan.inside))
    assert (plan.chunks - 1) * plan.chunk < max(1, plan.tiles) <= plan.chunks * plan.chunk


def test_wider_result() -> None:
    check(CASES["same"], "i8", "i32")
    check(CASES["valid"], "f16", "f32")
    check(CASES["one_feature"], "i8", "i32")
    check(CASES["few_features"], "f16", "f32")


def test_accuracy_of_rows() -> None:
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in (5000, 300))
    case = Case((1, 1, 5000), (1, 1, 300), (1, 1, 4701), "[b, f, 0]x[o, i, 0]->[b, f, 0]")
    got = gristmill.compile(module(case, "f32", "f32"))(x[None, None], w[None, None])
    wanted = np.correlate(x.astype(np.float64), w.astype(np.float64), "valid")
    np.testing.assert_allclose(got, wanted[None, None], atol=1e-4)


def test_accuracy() -> None:
    case = Case((1, 12, 12, 64), (3, 3, 64, 64), (1, 12, 12, 64), window=SAME)
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in (case.lhs, case.rhs))
    got = gristmill.compile(module(case, "f32", "f32"))(x, w)
    padded = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    wanted = sum(
        padded[:, i : i + 12, j : j + 12] @ w[i, j].astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    np.testing.assert_allclose(got, wanted, atol=2e-4)
