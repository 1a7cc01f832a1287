# SPDX-License-Identifier: Apache-2.0
"""Code memory: place machine code, seal it, call it, give the pages back."""

from __future__ import annotations

import ctypes
import platform

from gristmill.errors import ToolchainError
from gristmill.runtime.memory.section_manager import ContiguousSectionMemoryManager, SectionRequest
from gristmill.runtime.memory.slabs import PROCESS_POOL

#: A function that returns 42.
CODE = {
    "x86_64": bytes.fromhex("b82a000000c3"),
    "aarch64": bytes.fromhex("40058052c0035fd6"),
}[platform.machine()]


def main() -> None:
    with ContiguousSectionMemoryManager() as memory:
        print("state:", memory.state.value)
        memory.reserve(SectionRequest(len(CODE), 16), SectionRequest(64, 8), SectionRequest(64, 8))
        address = memory.allocate_code(len(CODE), 16, ".text")
        table = memory.allocate_data(8, 8, ".rodata", read_only=True)
        ctypes.memmove(address, CODE, len(CODE))
        memory.seal()
        print("state:", memory.state.value, "- code before constants:", address < table)
        print("the code returns", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
        try:
            memory.allocate_code(8, 8)
        except ToolchainError as error:
            print("refused:", error)
    print("state:", memory.state.value, "- objects left:", PROCESS_POOL.statistics().objects)


if __name__ == "__main__":
    main()
