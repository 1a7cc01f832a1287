# SPDX-License-Identifier: Apache-2.0
"""All workloads on the simulator, in a reduced size, against JAX on the CPU; their PTX is assembled without spills."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from device_programs import device_program
from device_workloads import WORKLOADS, Workload, difference, prepared

from gristmill.compiler.codegen.ptxas import assemble, find_ptxas
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.devices.simulator import SimulatorDevice

#: The others take more than a few seconds.
QUICK = {"add_one", "softmax", "matmul_256", "scatter_add", "scan_rnn", "while_loop"}

workload_prepared = cache(prepared)


def check_on_simulator(item: Workload, order: int) -> None:
    text, arguments, wanted = workload_prepared(item, False)
    program = device_program(text)
    with (
        SimulatorDevice(order=order) as device,
        DeviceExecutable(program, device) as executable,
    ):
        results: Any = executable(*arguments)
    got = list(results) if isinstance(results, tuple) else [results]
    assert len(got) == len(wanted)
    for number, (have, want) in enumerate(zip(got, wanted, strict=True)):
        worst = difference(have, want)
        assert worst <= item.tolerance, f"result {number} is off by {worst:.3g}"


@pytest.mark.parametrize("item", [w for w in WORKLOADS if w.name in QUICK], ids=lambda w: w.name)
def test_quick_ones_on_the_simulator(item: Workload) -> None:
    check_on_simulator(item, 0)


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 5])
@pytest.mark.parametrize("item", WORKLOADS, ids=lambda w: w.name)
def test_every_one_on_the_simulator(item: Workload, order: int) -> None:
    check_on_simulator(item, order)


@pytest.mark.slow
@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas")
@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize("item", WORKLOADS, ids=lambda w: w.name)
def test_every_one_assembles_without_spills(item: Workload, chip: str) -> None:
    text, _, _ = workload_prepared(item, True)
    ptx = device_program(text, ("ptx",), chip).images.ptx
    assert ptx is not None
    _, resources = assemble(ptx, chip)
    assert resources
    assert {r.name: r.spill_bytes for r in resources if r.spill_bytes} == {}


def test_a_difference_is_seen() -> None:
    one = np.array([1.0, np.nan, 3.0], np.float32)
    assert difference(one, one.copy()) == 0
    assert difference(one, np.array([1.0, np.nan, 3.1], np.float32)) > 0.03
    assert difference(one, np.array([np.nan, 1.0, 3.0], np.float32)) == np.inf
    assert difference(one, one.astype(np.float64)) == np.inf
