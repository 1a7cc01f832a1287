# SPDX-License-Identifier: Apache-2.0
"""Gristmill as a peer of ``bench_peers.py``, which times StableHLO compilers side by side.

python bench_peers.py --peer gristmill=PATH/benchmarks/peer.py --peers jax,numpy
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import bench_peers
import numpy as np

import gristmill

_OPTIONS = gristmill.CompileOptions(cache=False)


class Peer(bench_peers.Worker):
    """Compiles a workload from its file, afresh each time, and calls the executable."""

    def __init__(self, threads: int):
        super().__init__(threads)
        # The compiler's libraries are loaded once in a process; what a first use costs is not a
        # compilation's time, for no peer here.
        gristmill.compile(_WARM_UP, options=_OPTIONS)

    def load(self, entry: dict[str, Any], args: list[np.ndarray], workload: object) -> None:
        """Keep the workload's path and inputs."""
        del workload
        self._path = Path(bench_peers.DATA) / entry["mlir"]
        self._arguments = args

    def compile(self) -> dict[str, float]:
        """Compile the module from its file; seconds."""
        start = time.perf_counter()
        executable = gristmill.compile(self._path, options=_OPTIONS)
        seconds = time.perf_counter() - start
        inputs, threads = self._arguments, self.threads
        self._call = lambda: executable(*inputs, threads=threads)
        return {"compile": seconds}

    def call(self) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run once to completion."""
        return self._call()

    def host(self, result: np.ndarray | tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """The results as a list of numpy arrays."""
        return list(result) if isinstance(result, tuple) else [result]


_WARM_UP = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
