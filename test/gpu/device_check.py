# SPDX-License-Identifier: Apache-2.0
"""Check and time the workloads that ``prebuild.py`` compiled, on a device. Needs numpy, ml_dtypes and cuda-python.

First every result is compared with the expected one. Then each workload is timed with its inputs on the device, and
set against two bounds of the same run: the bandwidth of a copy on the device, and the rate of a bf16 product of
PyTorch's, where that is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import source_tree

source_tree.use()

import numpy as np  # noqa: E402
from device_workloads import difference  # noqa: E402

import gristmill  # noqa: E402
from gristmill.errors import GristmillError  # noqa: E402
from gristmill.runtime.buffers import RawBuffer  # noqa: E402
from gristmill.runtime.devices.launching import LaunchDevice  # noqa: E402
from gristmill.runtime.devices.open import open_device  # noqa: E402

#: Seconds for which one workload is timed at most.
SECONDS = 1.0


def arrays(data: Any, prefix: str, signatures: Sequence[Any]) -> list[Any]:
    """The stored arrays with the types of the signatures."""
    return [
        data[f"{prefix}{n}"].view(s.type.element.dtype).reshape(s.type.shape)
        for n, s in enumerate(signatures)
    ]


def check(executable: Any, data: Any, tolerance: float) -> str:
    """What is wrong with the results of a few calls; empty for nothing."""
    wanted = arrays(data, "out", executable.outputs)
    for turn in range(4):  # from the third on as graphs
        results = executable(*arrays(data, "arg", executable.inputs))
        got = list(results) if isinstance(results, tuple) else [results]
        for number, (have, want) in enumerate(zip(got, wanted, strict=True)):
            worst = difference(have, want)
            if not worst <= tolerance:
                return (
                    f"call {turn}, result {number} is off by {worst:.3g} (allowed: {tolerance:g})"
                )
    return ""


def measure(executable: Any, data: Any) -> float:
    """Median seconds of one call in a row of them, inputs and results on the device."""
    device = executable.device
    buffers = [RawBuffer.from_host(device, a) for a in arrays(data, "arg", executable.inputs)]
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    try:
        while len(times) < 5 or time.perf_counter() < end:
            start = time.perf_counter()
            results = executable(*buffers, results="device")
            listed = results if isinstance(results, tuple) else (results,)
            for result in listed:
                result.definition.wait(60)
                result.close()
            times.append(time.perf_counter() - start)
    finally:
        for buffer in buffers:
            buffer.close()
    return statistics.median(times)


def copy_bandwidth(device: LaunchDevice, nbytes: int) -> float:
    """Bytes read and written a second by a copy on the device."""
    with RawBuffer.allocate(device, nbytes) as one, RawBuffer.allocate(device, nbytes) as two:
        times: list[float] = []
        for _ in range(10):
            start = time.perf_counter()
            one.copy_to(two).wait(60)
            times.append(time.perf_counter() - start)
    return 2 * nbytes / min(times)


def matrix_rate() -> float:
    """Flop/s of a bf16 product by PyTorch on the GPU; 0 where that is not installed."""
    try:
        import torch
    except ImportError:
        return 0.0
    if not torch.cuda.is_available():
        return 0.0
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times: list[float] = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times)


def main() -> int:
    """Check, then time; the number of workloads that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--copy-bytes", type=int, default=1 << 30)
    args = parser.parse_args()
    entries = json.loads((args.folder / "workloads.json").read_text())
    failures, rows = 0, list[tuple[str, float, float, float]]()
    with open_device(args.device) as device:
        assert isinstance(device, LaunchDevice)
        for entry in entries:
            name = entry["name"]
            try:
                path = args.folder / f"{name}.gmill"
                with (
                    gristmill.load(path, device=device) as executable,
                    np.load(args.folder / f"{name}.npz") as data,
                ):
                    wrong = check(executable, data, entry["tolerance"])
                    if not wrong and not args.no_times:
                        seconds = measure(executable, data)
                        rows.append((name, seconds, entry["bytes"], entry["flops"]))
            except GristmillError as error:
                wrong = f"{type(error).__name__}: {error}"
            failures += bool(wrong)
            print(f"{'FAILED' if wrong else 'right '} {name} {wrong}", flush=True)
        if rows:
            _table(rows, copy_bandwidth(device, args.copy_bytes), matrix_rate())
    print(f"{len(entries) - failures} right, {failures} wrong")
    return min(failures, 100)


def _table(rows: list[tuple[str, float, float, float]], bandwidth: float, matrix: float) -> None:
    bound = f"{matrix / 1e12:.0f} Tflop/s" if matrix else "not measured: no PyTorch"
    print(f"\nbounds: copy {bandwidth / 1e9:.0f} GB/s; bf16 product {bound}")
    print(
        f"{'workload':22} {'time':>10} {'GB/s':>8} {'of copy':>8} {'Tflop/s':>8} {'of product':>10}"
    )
    for name, seconds, nbytes, flops in rows:
        rate, work = nbytes / seconds, flops / seconds
        share = f"{work / matrix:10.0%}" if matrix and flops else f"{'':>10}"
        tera = f"{work / 1e12:8.2f}" if flops else f"{'':>8}"
        print(
            f"{name:22} {seconds * 1e6:7.0f} us {rate / 1e9:8.1f} {rate / bandwidth:8.0%} {tera} {share}"
        )
    print("bytes: each argument and result once")


if __name__ == "__main__":
    sys.exit(main())
