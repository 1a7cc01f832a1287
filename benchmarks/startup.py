# SPDX-License-Identifier: Apache-2.0
"""From the start of a process to its first result, interleaved, for Gristmill, jax and numpy.

    python benchmarks/startup.py [--repeat 15]

A multi-layer perceptron (64 rows, 784 → 512 → 256 → 10, GELU) is exported once. Each round starts one process of every
kind, which imports what it needs, loads the inputs from a file, compiles (or finds) the program, runs it once, and
prints a byte; wall time ends there. `cpu` is the processor time of the whole process, over all threads, which other
load disturbs less. The first round warms the page cache, the bytecode caches and the compilation caches and is not
counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SIZES = (784, 512, 256, 10)
ROWS = 64

_LOAD = """
import sys
import numpy as np
with np.load(sys.argv[1]) as file:
    arrays = [file[f"arg{i}"] for i in range(len(file.files))]
"""
_JAX = """
import jax
import jax.numpy as jnp
def mlp(x, *weights):
    for i in range(0, len(weights), 2):
        x = x @ weights[i] + weights[i + 1]
        if i + 2 < len(weights):
            x = jax.nn.gelu(x)
    return x
"""
_DONE = """
assert result.shape == (64, 10) and np.isfinite(result).all()
sys.stdout.write("x")
sys.stdout.flush()
import os
os._exit(0)
"""
_GRISTMILL = _LOAD + "import gristmill\nresult = gristmill.compile(sys.argv[2])(*arrays)" + _DONE
_XLA = _LOAD + _JAX + "result = np.asarray(jax.jit(mlp).lower(*arrays).compile()(*arrays))" + _DONE
_NUMPY = (
    _LOAD
    + """
x = arrays[0]
for i in range(1, len(arrays), 2):
    x = x @ arrays[i] + arrays[i + 1]
    if i + 2 < len(arrays):
        x = 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))
result = x
"""
    + _DONE
)


class Sample(NamedTuple):
    """Milliseconds of one process: until its result, and of all its threads."""

    wall: float
    cpu: float


def export(folder: Path) -> None:
    """Write the inputs and the module with jax, in a process of its own."""
    code = (
        "import sys, numpy as np\n"
        + _JAX
        + f"""
rng, sizes = np.random.default_rng(0), {SIZES}
arrays = [rng.standard_normal(({ROWS}, sizes[0]), np.float32)]
for m, n in zip(sizes, sizes[1:]):
    arrays += [rng.standard_normal((m, n), np.float32) / 28, rng.standard_normal(n, np.float32)]
np.savez(sys.argv[1], **{{f"arg{{i}}": a for i, a in enumerate(arrays)}})
open(sys.argv[2], "w").write(jax.jit(mlp).lower(*arrays).as_text())
"""
    )
    subprocess.run([sys.executable, "-c", code, folder / "in.npz", folder / "mlp.mlir"], check=True)


def measure(code: str, folder: Path, settings: dict[str, str]) -> Sample:
    """Run one process to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, folder / "in.npz", folder / "mlp.mlir"],
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **settings},
    )
    assert process.stdout is not None
    answer = process.stdout.read(1)
    wall = time.perf_counter() - start
    if process.wait() != 0 or answer != b"x":
        raise SystemExit("a process failed; its error is above")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(1e3 * wall, 1e3 * cpu)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    rounds = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(folder)
        kinds = {
            "numpy": (_NUMPY, {}),
            "gristmill, program in the cache": (
                _GRISTMILL,
                {"GRISTMILL_CACHE": "1", "GRISTMILL_CACHE_DIR": f"{folder}/gristmill"},
            ),
            "gristmill, no cache": (_GRISTMILL, {"GRISTMILL_CACHE": "0"}),
            "jax, program in its cache": (
                _XLA,
                {
                    "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                },
            ),
            "jax, no cache": (_XLA, {}),
        }
        # Installed packages have their bytecode; Gristmill's may be written too.
        shared = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
        for number in range(rounds + 1):
            for kind, (code, settings) in kinds.items():
                sample = measure(code, folder, {**shared, **settings})
                if number:
                    samples[kind].append(sample)
    print("| process start to first result | wall, ms: median (min) | cpu, ms: median (min) |")
    print("| --- | --- | --- |")
    for kind, found in samples.items():
        columns = zip(*found, strict=True)
        cells = [f"{statistics.median(c):.0f} ({min(c):.0f})" for c in columns]
        print(f"| {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
