# SPDX-License-Identifier: Apache-2.0
"""Build the software CUDA driver, load it in place of the real one, and control its faults.

``build`` compiles it into ``FOLDER/libcuda.so.1``. A process finds it through ``LD_LIBRARY_PATH`` set
when it starts, or by loading it before cuda-python does: the loader then takes ``libcuda.so.1`` for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PTX = (HERE / "kernels.ptx").read_text() + "\0"
FLAGS = (
    "-std=gnu11 -O1 -g -Wall -Wextra -Werror -Wno-strict-prototypes -fvisibility=hidden -fPIC -shared "
    "-pthread -Wl,-soname,libcuda.so.1 -Wl,-z,defs"
).split()


def build(folder: Path | None = None) -> Path:
    """Compile the driver, unless that was done from the same sources; returns the library's path."""
    sources = sorted(HERE.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    if folder is None:
        folder = Path(tempfile.gettempdir()) / f"gristmill-cuda-{os.getuid()}-{digest}"
    library = folder / "libcuda.so.1"
    if not library.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = folder / f"building-{os.getpid()}"
        sources = [path for path in sources if path.suffix == ".c"]
        command = ["cc", *FLAGS, "-o", str(partial), *map(str, sources), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        partial.replace(library)
    return library


class SoftwareDriver:
    """The controls of the software driver, loaded into this process."""

    def __init__(self, library: Path):
        self.path = library
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._library.gm_sim_calls.restype = ctypes.c_long
        self._library.gm_sim_call_name.restype = ctypes.c_char_p
        self._library.gm_sim_limit_memory.argtypes = (ctypes.c_size_t, ctypes.c_size_t)

    def reset(self) -> None:
        """Forget faults, limits, delays and counts."""
        self._library.gm_sim_reset()

    def fail(self, function: str, nth: int = 1, code: int = 999) -> None:
        """Let the ``nth`` call from now of ``function`` (``*``: any, ``kernel``: a kernel's run) fail."""
        if self._library.gm_sim_fail(function.encode(), ctypes.c_long(nth), code):
            raise ValueError("too many faults, or nth < 1")

    @property
    def pending_faults(self) -> int:
        """Injected faults that have not struck yet."""
        return int(self._library.gm_sim_pending_faults())

    def limit_memory(self, device: int = -1, pinned: int = -1) -> None:
        """Let allocations beyond so many bytes in total fail; -1: no limit."""
        mask = (1 << 64) - 1
        self._library.gm_sim_limit_memory(device & mask, pinned & mask)

    def set_devices(self, count: int) -> None:
        """Let there be ``count`` devices, up to 8."""
        self._library.gm_sim_set_devices(count)

    def delay(self, microseconds: int) -> None:
        """Let every operation take up to so much longer, at random."""
        self._library.gm_sim_delay(microseconds)

    def calls(self, function: str = "*") -> int:
        """Calls of ``function`` (``*``: all) since the last reset."""
        return int(self._library.gm_sim_calls(function.encode()))

    def names(self) -> list[str]:
        """The functions called since the last reset, in order."""
        return [self._library.gm_sim_call_name(i).decode() for i in range(self.calls())]

    def report(self) -> str:
        """What is alive or was abandoned, as ``2 stream, 1 device memory``; empty for nothing."""
        text = ctypes.create_string_buffer(512)
        self._library.gm_sim_report(text, len(text))
        return text.value.decode()


def load() -> SoftwareDriver:
    """The software driver in this process, built when needed. Must come before cuda-python's first call."""
    return SoftwareDriver(build())
