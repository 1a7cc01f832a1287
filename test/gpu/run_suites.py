# SPDX-License-Identifier: Apache-2.0
"""Run every test of the behaviour suites that takes a device, on the CUDA device of this machine.

A small runner with fixtures and parameters, since the machine may have no pytest. The tests marked
``software`` need the software driver and are left out; so are modules that need what is not installed.
"""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import itertools
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import source_tree

SUITES = (
    "test_runtime_devices",
    "test_runtime_buffers",
    "test_runtime_buffers_import",
    "test_runtime_memory_devices",
    "test_runtime_predicates",
    "test_runtime_transfers",
    "test_runtime_cuda",
)
#: A test that takes longer ends the run, with the stacks of all threads.
LIMIT = 60


def _device() -> Iterator[Any]:
    from gristmill.runtime.devices.cuda import CudaDevice

    with CudaDevice(0) as made:
        yield made
        made.synchronize(20)
        assert made.statistics().live_bytes == 0


def _monkeypatch() -> Iterator[Any]:
    import pytest

    patch = pytest.MonkeyPatch()
    yield patch
    patch.undo()


def _tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class _Request:
    def __init__(self, param: object):
        self.param = param


class Suite:
    """The tests of one module."""

    def __init__(self, module: Any):
        self.fixtures: dict[str, Callable[..., Any]] = {
            name: value for name, value in vars(module).items() if hasattr(value, "fixture_params")
        }
        builtin = {"device": _device, "monkeypatch": _monkeypatch, "tmp_path": _tmp_path}
        self.fixtures.update(builtin)
        self.tests = {
            name: value
            for name, value in vars(module).items()
            if name.startswith("test_") and inspect.isfunction(value)
        }

    def closure(self, function: Callable[..., Any], given: set[str]) -> list[str]:
        """The fixtures that a function needs, those that others need first."""
        names: list[str] = []
        for name in inspect.signature(function).parameters:
            if name in given or name == "request":
                continue
            if name not in self.fixtures:
                raise LookupError(name)
            for inner in (*self.closure(self.fixtures[name], given), name):
                if inner not in names:
                    names.append(inner)
        return names

    def cases(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Name and action of each test that takes a device."""
        for name, test in self.tests.items():
            marks = getattr(test, "marks", [])
            if any(kind in ("software", "gpu", "slow") for kind, _, _ in marks):
                continue
            rows = [_rows(*args) for kind, args, _ in marks if kind == "parametrize"]
            given = {key for row in rows for key in row[0]}
            try:
                needed = self.closure(test, given)
            except LookupError as error:
                print(f"not run: {name} needs the fixture {error}")
                continue
            makes_one = "make_device" in test.__code__.co_names
            if not makes_one and not {"device", "cuda"} & set(needed):
                continue
            choices = [getattr(self.fixtures[f], "fixture_params", [None]) for f in needed]
            for row in itertools.product(*rows):
                values = {key: value for part in row for key, value in part.items()}
                for params in itertools.product(*choices):
                    label = f"{name}{list(values.values()) or ''}"
                    yield label, self._action(test, needed, values, params)

    def _action(
        self, test: Callable[..., None], needed: list[str], values: dict[str, Any], params: Any
    ) -> Callable[[], None]:
        def run() -> None:
            ready = dict(values)
            with ExitStack() as stack:
                for name, param in zip(needed, params, strict=True):
                    ready["request"] = _Request(param)
                    made = _call(self.fixtures[name], ready)
                    if inspect.isgenerator(made):
                        ready[name] = next(made)
                        stack.callback(next, made, None)
                    else:
                        ready[name] = made
                _call(test, ready)

        return run


def _call(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    return function(**{name: values[name] for name in inspect.signature(function).parameters})


def _rows(names: str | tuple[str, ...], rows: Any) -> list[dict[str, Any]]:
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    made: list[dict[str, Any]] = []
    for row in rows:
        row = getattr(row, "values", row) if type(row).__name__ == "Param" else row
        cells = (row,) if len(keys) == 1 and not _is_param_row(row) else row
        made.append(dict(zip(keys, cells, strict=True)))
    return made


def _is_param_row(row: object) -> bool:
    return False if not isinstance(row, tuple) else len(row) == 1


def main() -> int:
    """Run the suites; the number of failures."""
    source_tree.use()
    from gristmill.runtime.devices.cuda import CudaDevice

    reason = CudaDevice.unavailable_reason()
    if reason is not None:
        print(f"no CUDA device: {reason}")
        return 1
    import device_support

    device_support._cuda = lambda: CudaDevice(0)
    with CudaDevice(0) as device:
        print(f"{device.name}, compute capability {device.capability}, {device.memory_info()[1]} B")
    failures = passed = 0
    begun = time.perf_counter()
    for suite in SUITES:
        try:
            cases = list(Suite(importlib.import_module(suite)).cases())
        except ImportError as error:
            print(f"not run: {suite}: {error}")
            continue
        for label, action in cases:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            try:
                action()
                passed += 1
            except BaseException:
                failures += 1
                print(f"FAILED {suite}::{label}")
                traceback.print_exc()
            faulthandler.cancel_dump_traceback_later()
    print(f"{passed} passed, {failures} failed in {time.perf_counter() - begun:.1f} s")
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
