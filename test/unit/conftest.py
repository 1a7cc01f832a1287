# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the memory runtime's tests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from device_support import LIMIT, device_kinds, make_device

from gristmill.runtime.devices.base import Device


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` or ``slow`` run only where ``-m`` names the marker, whatever else it says."""
    asked = config.getoption("markexpr")
    held = [marker for marker in ("gpu", "slow") if marker not in asked]
    unasked = [item for item in items if any(item.get_closest_marker(m) for m in held)]
    if unasked:
        config.hook.pytest_deselected(items=unasked)
        items[:] = [item for item in items if item not in unasked]


@pytest.fixture(params=device_kinds())
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device of each kind; at the end nothing of it may be allocated any more."""
    with make_device(request.param) as made:
        yield made
        made.synchronize(LIMIT)
        deadline = time.monotonic() + LIMIT
        # What the end of the last operation gives back comes just after it.
        while made.statistics().live_allocations and time.monotonic() < deadline:
            time.sleep(0.001)
        assert made.statistics().live_allocations == 0
        assert made.statistics().live_bytes == 0
