# SPDX-License-Identifier: Apache-2.0
"""PTX to machine code by NVIDIA's assembler, where it is installed: on the path, or as a Python package.

Without it a program carries its PTX alone, which the driver compiles when it is loaded.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import ToolchainError
from gristmill.runtime.packages import find_package

#: Packages that have the assembler, and where.
_PACKAGES = (
    ("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc/bin/ptxas"),
    ("nvidia-cuda-nvcc", "nvidia/cu13/bin/ptxas"),
)

_SECONDS = 600
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class KernelResources:
    """What a kernel takes of a multiprocessor.

    Attributes:
        name: the kernel.
        registers: of one thread.
        shared_bytes: workgroup memory of one block.
        stack_bytes: local memory of one thread.
        spill_bytes: stored to local memory, and loaded from it, for want of registers.
    """

    name: str
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0


def find_ptxas() -> Path | None:
    """The assembler, or None."""
    for package, place in _PACKAGES:
        found = find_package(package)
        if found is not None and (found.folder / place).is_file():
            return found.folder / place
    path = shutil.which("ptxas")
    return None if path is None else Path(path)


def assemble(ptx: str, chip: str) -> tuple[bytes, list[KernelResources]]:
    """The cubin of ``ptx`` for ``chip``, and what its kernels take.

    Raises ``ToolchainError`` when there is no assembler, or it refuses the text.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        raise ToolchainError(
            "ptxas is not installed, so there is no cubin: pip install nvidia-cuda-nvcc-cu12, or put it on PATH; "
            "without it the driver compiles the PTX"
        )
    with tempfile.TemporaryDirectory(prefix="gristmill-ptxas-") as folder:
        source, target = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(ptx)
        command = [str(ptxas), "-v", f"-arch={chip}", "-o", str(target), str(source)]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{ptxas} failed: {error}") from None
        if result.returncode:
            words = " ".join((result.stderr or result.stdout).split())[:500]
            raise ToolchainError(f"{ptxas} refuses PTX for {chip}: {words}")
        return target.read_bytes(), parse_resources(result.stderr)


def parse_resources(log: str) -> list[KernelResources]:
    """What ``ptxas -v`` says of each kernel."""
    found: list[KernelResources] = []
    _, *parts = _ENTRY.split(log)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        used, shared, stack = _USED.search(text), _SHARED.search(text), _STACK.search(text)
        frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
        found.append(
            KernelResources(
                name,
                int(used[1]) if used else 0,
                int(shared[1]) if shared else 0,
                frame,
                stores + loads,
            )
        )
    return found
