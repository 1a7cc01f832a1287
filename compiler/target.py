# SPDX-License-Identifier: Apache-2.0
"""What is compiled for: the machine's instruction set and the figures the emitters tune by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A CPU to compile for.

    Attributes:
        triple: LLVM target triple.
        cpu: LLVM CPU name, for example ``sapphirerapids``.
        features: LLVM feature string (``+avx2,-avx512f,…``).
        vector_bytes: width of the widest vector registers used: 64 with AVX-512, 32 with AVX2, else 16.
        fma: whether fused multiply-add instructions exist.
        l1_bytes, l2_bytes: data cache sizes of one core.
        max_threads: the number of threads kernels are tuned for.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int = 32
    fma: bool = True
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    max_threads: int = 2

    def lanes(self, nbytes: int) -> int:
        """Elements of ``nbytes`` each that one vector register holds."""
        return max(1, self.vector_bytes // nbytes)
