# SPDX-License-Identifier: Apache-2.0
"""What a kernel has to do, and the report made of it."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.driver import bench_report, roofline
from gristmill.compiler.driver.bench_report import Comparison, Report
from gristmill.compiler.driver.machine import Machine
from gristmill.compiler.driver.profiling import OUTSIDE, KernelTime, Work, works_of


def works(text: str) -> list[Work]:
    module = import_source(text)
    compilation = compile_stages(module, stop_after="rt")
    return list(works_of(compilation, module).values())


def test_a_product_has_two_flops_a_multiply_add() -> None:
    (work,) = works("""
func.func @main(%a: tensor<64x32xf64>, %b: tensor<32x48xf64>) -> tensor<64x48xf64> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<64x32xf64>, tensor<32x48xf64>) -> tensor<64x48xf64>
  return %0 : tensor<64x48xf64>
}""")
    assert work.flops == 2 * 64 * 32 * 48
    assert (work.read, work.written) == (8 * (64 * 32 + 32 * 48), 8 * 64 * 48)
    assert work.double
    assert work.operations == ("dot_general",)


def test_a_table_is_not_read_whole() -> None:
    (work,) = works("""
func.func @main(%t: tensor<1000x16xf32>, %i: tensor<5x1xi32>) -> tensor<5x16xf32> {
  %0 = "stablehlo.gather"(%t, %i) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
      start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 16>}>
    : (tensor<1000x16xf32>, tensor<5x1xi32>) -> tensor<5x16xf32>
  return %0 : tensor<5x16xf32>
}""")
    assert work.read == 5 * 16 * 4 + 5 * 4
    assert work.written == 5 * 16 * 4
    assert work.flops == 0  # nothing is computed


def test_an_update_in_place_writes_the_update_only() -> None:
    (work,) = works("""
func.func @main(%x: tensor<100x16xf32>, %u: tensor<2x16xf32>, %i: tensor<i32>) -> tensor<100x16xf32> {
  %0 = stablehlo.dynamic_update_slice %x, %u, %i, %i
    : (tensor<100x16xf32>, tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<100x16xf32>
  return %0 : tensor<100x16xf32>
}""")
    assert work.written == 2 * 16 * 4
    assert work.read == 2 * 16 * 4 + 4


def test_what_is_also_used_whole_is_read_whole() -> None:
    (work,) = works("""
func.func @main(%x: tensor<100x16xf32>) -> tensor<102x16xf32> {
  %0 = stablehlo.slice %x [0:2, 0:16] : (tensor<100x16xf32>) -> tensor<2x16xf32>
  %1 = stablehlo.negate %x : tensor<100x16xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0
    : (tensor<2x16xf32>, tensor<100x16xf32>) -> tensor<102x16xf32>
  return %2 : tensor<102x16xf32>
}""")
    assert work.read == 100 * 16 * 4


class KnownMachine(Machine):
    """2 flops a nanosecond, 4 bytes a nanosecond."""

    def __init__(self) -> None:
        super().__init__(2)

    def flops(self, double: bool = False) -> float:
        return 1e9 if double else 2e9

    def stream_seconds(self, read: int, written: int) -> float:
        return (read + written) / 4e9


def kernel(name: str, seconds: float, work: Work, launches: int = 1) -> KernelTime:
    bound = launches * work.bound_seconds(KnownMachine())
    return KernelTime(name, "dot", launches, seconds, 1.5, work, bound)


HEAVY = Work(1000, 1000, 8000, False, ("dot_general", "add"))
LIGHT = Work(4000, 4000, 8, False, ("add",))
NOTHING = Work(0, 0, 0, False, ())


def report() -> Report:
    kernels = [
        kernel("heavy<1>", 16e-6, HEAVY, launches=2),
        kernel("light", 4e-6, LIGHT),
        kernel(OUTSIDE, 1e-6, NOTHING, launches=0),
    ]
    return Report(
        *("model.mlir", KnownMachine(), 0.25, [30e-6, 20e-6, 40e-6], 4096, 64, 2048, 100, 10, 5000),
        parallel=True,
        kernels=kernels,
        slowdown=0.03,
    )


def test_the_bound_is_the_larger_of_traffic_and_flops() -> None:
    assert HEAVY.bound_seconds(KnownMachine()) == pytest.approx(4e-6)
    assert LIGHT.bound_seconds(KnownMachine()) == pytest.approx(2e-6)
    double = Work(1000, 1000, 8000, True, ())
    assert double.bound_seconds(KnownMachine()) == pytest.approx(8e-6)


def test_the_text_shows_rates_and_shares() -> None:
    lines = bench_report.text(report(), top=1).splitlines()
    heavy = next(line for line in lines if line.startswith("heavy"))
    # 2 launches of 2000 bytes and 8000 flops in 16 us; 16 of 21 us; bound 8 us.
    for expected in ("16 us", "76.2%", "0.2", "1.0", "8 us", "50%", "dot_general, add"):
        assert expected in heavy
    assert any(line.startswith("1 more") and "4 us" in line for line in lines)
    assert any("10 us, the sum of the kernels' bounds: 33% of the run" in line for line in lines)
    assert any("3.0% slower" in line for line in lines)
    assert any("arena 4 KiB, scratch 2 x 64 B" in line for line in lines)
    assert "light" in bench_report.text(report(), top=0)


def test_beaten_bounds_and_load_are_said() -> None:
    busy = report()
    busy.other_load = 0.4
    assert "other programs used 40% of the machine" in bench_report.text(busy, 1)
    assert "on an idle machine are shorter" in bench_report.text(busy, 1)
    busy.kernels[0] = kernel("fast", 2e-6, HEAVY)
    assert "measured while it was busy" in bench_report.text(busy, 1)


def test_json_has_the_same_figures() -> None:
    data = bench_report.as_json(report())
    heavy = data["kernels"][0]
    assert heavy["flops"] == 16000
    assert heavy["flops_per_second"] == pytest.approx(1e9)
    assert heavy["bytes_per_second"] == pytest.approx(4000 / 16e-6)
    assert heavy["share_of_bound"] == pytest.approx(0.5)
    assert data["run_seconds"]["median"] == 30e-6
    assert data["bound_seconds"] == pytest.approx(10e-6)


def test_a_comparison_says_when_it_is_noise() -> None:
    clear = report()
    clear.comparison = Comparison("other.mlir", [(1.0, 2.0), (1.0, 2.2), (1.0, 1.8)] * 2, 0.0)
    assert "2.00 x faster" in bench_report.text(clear, 1)
    assert "noise" not in bench_report.text(clear, 1)
    clear.comparison = Comparison("other.mlir", [(1.0, 0.5), (1.0, 2.0), (1.0, 0.9)] * 2, 0.0)
    assert "1.11 x slower" in bench_report.text(clear, 1)
    assert "no difference beyond the noise" in bench_report.text(clear, 1)


def test_the_roofline_places_kernels_by_their_rates() -> None:
    picture = roofline.svg("a<b>.mlir", report().kernels, KnownMachine())
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{space}circle")
    assert len(circles) == 2
    heavy, light = ((float(c.get("cx", 0)), float(c.get("cy", 0))) for c in circles)
    assert heavy[0] > light[0]  # more flops a byte: further right
    assert heavy[1] < light[1]  # more flops a second: higher up
    texts = [t.text or "" for t in root.findall(f"{space}text")]
    assert any("a<b>.mlir" in text for text in texts)
    assert any("multiply-adds 2 GFLOP/s" in text for text in texts)
    levels = [line for line in texts if "GB/s" in line]
    assert any("memory 4.0 GB/s" in text for text in levels)


def test_sizes_and_differences() -> None:
    assert [bench_report.size(n) for n in (0, 1023, 1024, 3 << 19, 5 << 30)] == [
        *("0 B", "1023 B", "1 KiB", "1.5 MiB", "5 GiB")
    ]
    a = np.array([1.0, np.nan, 4.0])
    assert bench_report.largest_difference([a], [a.copy()]) == 0
    assert bench_report.largest_difference([a], [np.array([1.0, np.nan, 2.0])]) == 1.0
    assert math.isinf(bench_report.largest_difference([a], [np.array([1.0, 2.0, 4.0])]))
