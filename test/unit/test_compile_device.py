# SPDX-License-Identifier: Apache-2.0
"""``gristmill.compile`` for devices: names, ownership, the cache on disk, dynamic shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gristmill
from gristmill.compiler.target import gpu_target, newest_chip, parse_target
from gristmill.errors import InputError
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.devices.simulator import SimulatorDevice

DOUBLE = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %r = stablehlo.add %x, %x : tensor<?xf32>
  return %r : tensor<?xf32>
}
"""
STATIC = DOUBLE.replace("?", "6")


def test_a_named_device_belongs_to_the_executable(tmp_path: Path) -> None:
    options = gristmill.CompileOptions(cache=tmp_path)
    for _ in range(2):  # compiled, then found in the cache
        with gristmill.compile(STATIC, device="simulator", options=options) as executable:
            assert isinstance(executable, DeviceExecutable)
            np.testing.assert_array_equal(executable(np.ones(6, np.float32)), np.full(6, 2))
        assert executable.device.closed
    assert len(list(tmp_path.rglob("*.gmill"))) == 1


def test_an_open_device_stays_open(tmp_path: Path) -> None:
    options = gristmill.CompileOptions(cache=tmp_path)
    with SimulatorDevice(workers=1) as device:
        with gristmill.compile(STATIC, device=device, options=options) as executable:
            executable(np.ones(6, np.float32))
        assert not device.closed


def test_dynamic_shapes_share_one_device(tmp_path: Path) -> None:
    options = gristmill.CompileOptions(cache=tmp_path)
    with gristmill.compile(DOUBLE, device="simulator", options=options) as polymorphic:
        for count in (3, 5, 3):
            x = np.arange(count, dtype=np.float32)
            np.testing.assert_array_equal(polymorphic(x), 2 * x)
        assert len(polymorphic) == 2
        devices = {e.device for e in polymorphic._ready.values()}
        assert len(devices) == 1
    assert devices.pop().closed


def test_targets_by_name() -> None:
    assert parse_target("cpu") is None
    assert parse_target("cuda") == gpu_target("sm_80")
    assert parse_target("cuda:sm_90") == gpu_target("sm_90")
    assert [newest_chip(c) for c in ((6, 1), (7, 0), (8, 7), (12, 0))] == [
        None,
        "sm_70",
        "sm_86",
        "sm_90",
    ]
    with pytest.raises(InputError, match="target 'abacus' is not known"):
        gristmill.compile(STATIC, target="abacus")
    with pytest.raises(InputError, match="does not run on simulator"):
        gristmill.compile(STATIC, target=gristmill_host(), device="simulator")
    with pytest.raises(InputError, match="does not run on simulator"):
        gristmill.compile(STATIC, target="cpu", device="simulator")


def gristmill_host() -> object:
    from gristmill.compiler.codegen.host import host_target

    return host_target()
