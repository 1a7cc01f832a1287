# SPDX-License-Identifier: Apache-2.0
"""Autotuning: every candidate computes the same, what is taken and what is not, budget and records."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from mlir import ir

import gristmill
from gristmill.compiler import tuning
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.emitters.blocking import CANDIDATES, DEFAULT, Blocking, Tuned
from gristmill.compiler.emitters.library import Emission
from gristmill.compiler.options import CompileOptions
from gristmill.errors import InputError

DOT = """func.func @main(%x: tensor<96x3000xf32>, %y: tensor<3000x200xf32>) -> tensor<96x200xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
    : (tensor<96x3000xf32>, tensor<3000x200xf32>) -> tensor<96x200xf32>
  %1 = stablehlo.tanh %0 : tensor<96x200xf32>
  return %1 : tensor<96x200xf32>
}
"""
CONVOLUTION = """func.func @main(%x: tensor<1x6x150x8xf32>, %w: tensor<3x3x8x72xf32>) -> tensor<1x6x150x72xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x6x150x8xf32>, tensor<3x3x8x72xf32>) -> tensor<1x6x150x72xf32>
  return %0 : tensor<1x6x150x72xf32>
}
"""


def inputs(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, shape).astype(np.float32) / 8 for shape in shapes]


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    dims = ("NHWC", "HWIO", "NHWC")
    return np.asarray(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims))


SHAPES = {"dot": ((96, 3000), (3000, 200)), "convolution": ((1, 6, 150, 8), (3, 3, 8, 72))}
TEXTS = {"dot": DOT, "convolution": CONVOLUTION}


@pytest.mark.parametrize("kind", TEXTS)
def test_every_candidate_computes_the_same(kind: str) -> None:
    arrays = inputs(*SHAPES[kind])
    x, y = arrays
    wanted = np.tanh(x @ y) if kind == "dot" else convolved(x, y)
    codes: set[str] = set()
    for blocking in (DEFAULT, *CANDIDATES[kind]):
        module = import_source(TEXTS[kind])
        compilation = compile_stages(module, stop_after="fused")
        with module.context, ir.Location.unknown():
            emission = Emission(module, compilation.target)
            (key,) = [f.key for f in emission.fusions() if f.kind == kind]
            compilation.tuned = Tuned({key: blocking})
            for stage in ("rt", "kernels", "llvm", "obj"):
                compilation.run(stage, module, CompileOptions())
        codes.add(str(compilation.program().objects[0]))
        with compilation.executable() as executable:
            np.testing.assert_allclose(executable(*arrays), wanted, rtol=1e-5, atol=1e-5)
    assert len(codes) > 2, "candidates differ"


def test_a_clear_winner_is_taken_and_noise_is_not() -> None:
    base = [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 1.0]
    assert tuning.choose([base, [0.8] * 7]) == 1
    assert tuning.choose([base, [0.9] * 7, [0.8] * 7]) == 2
    assert tuning.choose([base, [0.97] * 7]) == 0, "within the margin"
    assert tuning.choose([base, [0.5, 0.5, 0.5, 0.5, 9, 9, 9]]) == 0, "not ahead in most rounds"
    assert tuning.choose([base, [1.5] * 7]) == 0
    assert tuning.choose([base]) == 0


def test_calls_take_turns() -> None:
    order: list[int] = []
    times = tuning.measure([lambda: order.append(0), lambda: order.append(1)])
    assert [len(t) for t in times] == [tuning.ROUNDS] * 2
    runs = [number for number, _ in itertools.groupby(order)]
    assert runs == [0, 1] * (tuning.ROUNDS + 1)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Candidates are not timed: the second choice is always said to be twice as fast. Holds what was timed."""
    timed: list[int] = []

    def measure(calls: list[Callable[[], object]]) -> list[list[float]]:
        for call in calls:
            call()
        timed.append(len(calls))
        return [[1.0] * 7, *([[0.5] * 7] * (len(calls) - 1))]

    monkeypatch.setattr(tuning, "measure", measure)
    return timed


def tuned(folder: Path, text: str = DOT) -> Tuned:
    options = CompileOptions(autotune=True, cache=folder)
    return compile_stages(import_source(text), options=options).tuned


def test_results_are_kept_and_used_again(fast: list[int], tmp_path: Path) -> None:
    first = tuned(tmp_path)
    (blocking,) = first.blockings.values()
    assert blocking in CANDIDATES["dot"]
    assert first.is_complete
    assert "50% faster" in first.notes[0]
    assert fast[0] > 2, "several candidates"
    assert fast[1] == 2, "and the winner again"
    assert tuned(tmp_path) == first
    assert len(fast) == 2, "timed once"
    assert len(list(tmp_path.glob("*.tuning"))) == 1


def test_a_winner_that_does_not_win_again_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([[[1.0] * 7, [0.5] * 7], [[1.0] * 7, [0.99] * 7]])
    monkeypatch.setattr(tuning, "measure", lambda calls: next(answers))
    assert tuned(tmp_path).blockings == {}


@pytest.mark.parametrize("damage", [b"", b"abc\n{}", b"\xff\xfe"])
def test_a_damaged_record_is_measured_again(fast: list[int], tmp_path: Path, damage: bytes) -> None:
    first = tuned(tmp_path)
    (path,) = tmp_path.glob("*.tuning")
    path.write_bytes(damage)
    assert tuned(tmp_path) == first
    assert len(fast) == 4
    assert tuning.read_record(path).blocking == next(iter(first.blockings.values()))


def test_without_autotune_no_record_is_read(fast: list[int], tmp_path: Path) -> None:
    tuned(tmp_path)
    plain = compile_stages(import_source(DOT), options=CompileOptions(cache=tmp_path))
    assert plain.tuned == Tuned()
    assert len(fast) == 2


def test_the_budget_ends_tuning(
    fast: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=iter(range(0, 10**9, 1000)).__next__)
    monkeypatch.setattr(tuning, "time", clock)
    options = CompileOptions(autotune=True, cache=tmp_path)
    with gristmill.compile(DOT, options=options) as executable:
        x, y = inputs(*SHAPES["dot"])
        np.testing.assert_allclose(executable(x, y), np.tanh(x @ y), rtol=1e-4, atol=1e-5)
    assert fast == []
    assert list(tmp_path.iterdir()) == [], "a program whose tuning was cut short is not stored"


def test_a_tuned_program_is_an_entry_of_its_own(fast: list[int], tmp_path: Path) -> None:
    steps: list[str] = []
    for autotune in (False, True, True):
        options = CompileOptions(autotune=autotune, cache=tmp_path)
        gristmill.compile(DOT, options=options, observer=steps.append).close()
    assert len(list(tmp_path.glob("*.gmill"))) == 2
    assert [step for step in steps if step.startswith("tuning")] == ["tuning dot 1 of 1"]


def test_small_products_are_left_alone(fast: list[int], tmp_path: Path) -> None:
    assert tuned(tmp_path, DOT.replace("3000", "16")).notes == ()
    assert fast == []


def test_another_machine_is_refused() -> None:
    target = dataclasses.replace(host_target(), cpu="x86-64")
    with pytest.raises(InputError, match="the target of this machine only"):
        compile_stages(import_source(DOT), target, options=CompileOptions(autotune=True))


def test_records_say_what_they_hold() -> None:
    record = tuning.Record(Blocking(chunk=0.5), 2.0, 1.0)
    assert tuning.Record.parse(record.render()) == record
    data = record.render()
    with pytest.raises(ValueError, match="checksum"):
        tuning.Record.parse(data[:-2] + b"9}")
