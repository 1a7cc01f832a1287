# SPDX-License-Identifier: Apache-2.0
"""Compile all workloads for a GPU, with inputs and expected results beside them, for ``device_check.py``.

    python test/gpu/prebuild.py DIR --chip sm_90            # full sizes
    python test/gpu/prebuild.py DIR --reduced --simulator   # small ones, that the simulator runs too

Needs the compiler and JAX; what it writes needs neither.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import source_tree

source_tree.use()

import numpy as np  # noqa: E402
from device_workloads import WORKLOADS, prepared  # noqa: E402

from gristmill.compiler.codegen.ptxas import find_ptxas  # noqa: E402
from gristmill.compiler.compile import import_source  # noqa: E402
from gristmill.compiler.compile_gpu import compile_gpu_stages  # noqa: E402
from gristmill.compiler.options import CompileOptions  # noqa: E402
from gristmill.compiler.target import gpu_target  # noqa: E402
from gristmill.errors import GristmillError  # noqa: E402
from gristmill.runtime import artifact  # noqa: E402


def storable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Types foreign to numpy as unsigned integers of their size."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def main() -> int:
    """Write the folder; the number of workloads that do not compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chip", default="sm_90")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--reduced", action="store_true", help="small sizes")
    parser.add_argument("--simulator", action="store_true", help="code for the simulator too")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    images = ("ptx", "cubin") if find_ptxas() else ("ptx",)
    options = CompileOptions(images=(*images, "simulator") if args.simulator else images)
    chosen = set(args.only.split(",")) if args.only else {item.name for item in WORKLOADS}
    entries: list[dict[str, Any]] = []
    failures = 0
    for item in WORKLOADS:
        if item.name not in chosen:
            continue
        text, arguments, wanted = prepared(item, not args.reduced)
        try:
            module = import_source(text)
            program = compile_gpu_stages(module, gpu_target(args.chip), options=options).program()
        except GristmillError as error:
            failures += 1
            print(f"{item.name}: {error}", file=sys.stderr)
            continue
        artifact.save(program, args.folder / f"{item.name}.gmill")
        arrays = {f"arg{n}": storable(np.asarray(a)) for n, a in enumerate(arguments)}
        arrays |= {f"out{n}": storable(a) for n, a in enumerate(wanted)}
        np.savez(args.folder / f"{item.name}.npz", **arrays)
        nbytes = sum(np.asarray(a).nbytes for a in (*arguments, *wanted))
        entries.append(
            {
                "name": item.name,
                "tolerance": item.tolerance,
                "flops": 0 if args.reduced else item.flops,
                "bytes": nbytes,
            }
        )
        print(f"{item.name}: {', '.join(program.images.kinds)}, {len(program.kernels)} kernels")
    (args.folder / "workloads.json").write_text(json.dumps(entries, indent=1))
    return failures


if __name__ == "__main__":
    sys.exit(main())
