# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the memory runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from device_support import device_kinds, make_device

from gristmill.runtime.devices.base import Device


@pytest.fixture(params=device_kinds())
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device of each kind; at the end nothing of it may be allocated any more."""
    with make_device(request.param) as made:
        yield made
        made.synchronize(20)
        assert made.statistics().live_bytes == 0
        assert made.statistics().live_allocations == 0
