# SPDX-License-Identifier: Apache-2.0
"""``make demo``: a transformer exported from JAX through every stage, its results checked."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = Path("examples/models/transformer.mlir")
INPUTS = Path("examples/models/transformer.in.npz")
EXPECTED = Path("examples/models/transformer.out.npz")


def gristmill(*arguments: str | Path) -> None:
    """Show a command line and run it; leaves when it fails."""
    words = [str(argument) for argument in arguments]
    print("\n$ gristmill " + " ".join(words), flush=True)
    program = Path(sys.executable).parent / "gristmill"
    status = subprocess.run([program, *words], cwd=ROOT, check=False).returncode
    if status != 0:
        sys.exit(f"demo: the command above failed with exit code {status}")


def main() -> None:
    """Run the demonstration."""
    print(
        "A two-layer transformer exported from JAX (examples/export_transformer.py): StableHLO in,"
    )
    print("native code out. First run it, and compare with what XLA computed when it was exported.")
    check = ("--inputs", INPUTS, "--expect", EXPECTED)
    gristmill("run", MODEL, *check, "--repeat", "200")
    with tempfile.TemporaryDirectory() as folder:
        print("\nSave it as one artifact, which runs without the compiler; -v times each stage.")
        artifact = Path(folder) / "transformer.gmill"
        gristmill("compile", MODEL, "-o", artifact, "-v")
        gristmill("run", artifact, *check, "--repeat", "200")
        print("\nEvery stage can be looked at; here each one goes into a file of its own.")
        gristmill("compile", MODEL, "--dump-dir", folder)
        for path in sorted(Path(folder).glob("transformer.*.*")):
            print(f"  {path.stat().st_size:>9,} bytes  {path.name}")
    print("\ndemo passed")


if __name__ == "__main__":
    main()
