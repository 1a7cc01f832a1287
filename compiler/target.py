# SPDX-License-Identifier: Apache-2.0
"""What is compiled for: the machine's instruction set and the figures the emitters tune by."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.errors import InputError

#: Measured on a machine with 480 MiB of L3: docs/notes/2026-11-29-streaming.md.
_MOST_KEPT_BYTES = 40 << 20


@dataclass(frozen=True)
class Target:
    """What to compile for: a CPU, or as :class:`GpuTarget` an NVIDIA GPU.

    Attributes:
        triple: LLVM target triple.
        cpu: LLVM CPU name, for example ``sapphirerapids``.
        features: LLVM feature string (``+avx2,-avx512f,…``).
        vector_bytes: width of the widest vector registers used: 64 with AVX-512, 32 with AVX2, else 16.
        fma: whether fused multiply-add instructions exist.
        l1_bytes, l2_bytes: data cache sizes of one core.
        l3_bytes: size of the last-level cache, which all cores share.
        max_threads: the number of threads kernels are tuned for.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int = 32
    fma: bool = True
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    l3_bytes: int = 32 * 1024 * 1024
    max_threads: int = 2

    @property
    def kept_bytes(self) -> int:
        """What the last-level cache can be trusted to keep: of a large one, others use a part."""
        return min(self.l3_bytes, _MOST_KEPT_BYTES)

    @property
    def shares_l3(self) -> bool:
        """Whether the last-level cache is one that many cores share, so large that others use most of it."""
        return self.l3_bytes > _MOST_KEPT_BYTES

    @property
    def vector_registers(self) -> int:
        """Vector registers that code may name: 16 on x86-64 before AVX-512, 32 elsewhere."""
        narrow = self.triple.startswith("x86_64") and "+avx512vl" not in self.features.split(",")
        return 16 if narrow else 32

    def lanes(self, nbytes: int) -> int:
        """Elements of ``nbytes`` each that one vector register holds."""
        return max(1, self.vector_bytes // nbytes)


@dataclass(frozen=True)
class GpuTarget(Target):
    """An NVIDIA GPU to compile for; :func:`gpu_target` makes one.

    The fields of :class:`Target` hold what applies to one thread: ``cpu`` is the chip (``sm_90``), ``features`` the
    PTX version (``+ptx80``), ``vector_bytes`` the widest memory access, ``max_threads`` the threads in flight that
    make full use of the device.

    Attributes:
        multiprocessors: SMs of the largest common part of that generation; launch geometry is chosen for it.
        shared_bytes: static workgroup memory a block may have.
        threads_per_multiprocessor: resident threads at most.
        async_copies: whether ``cp.async`` exists (sm_80 and later).
    """

    multiprocessors: int = 108
    shared_bytes: int = 48 * 1024
    threads_per_multiprocessor: int = 2048
    async_copies: bool = True

    #: Threads of a warp.
    WARP = 32


#: chip: (PTX version, multiprocessors, resident threads a multiprocessor). CUDA C++ Programming Guide, "Compute
#: Capabilities"; PTX ISA, "Release Notes" (the version that introduced the target).
_CHIPS = {
    "sm_70": ("+ptx60", 80, 2048),
    "sm_75": ("+ptx63", 72, 1024),
    "sm_80": ("+ptx70", 108, 2048),
    "sm_86": ("+ptx71", 84, 1536),
    "sm_89": ("+ptx78", 144, 1536),
    "sm_90": ("+ptx80", 132, 2048),
}

#: The chip of ``cuda`` without a name: code for it runs on everything later, through the driver's compiler.
DEFAULT_CHIP = "sm_80"


def gpu_target(chip: str = DEFAULT_CHIP) -> GpuTarget:
    """The GPU called ``chip``, for example ``sm_90``; raises ``InputError`` for one that is not known."""
    if chip not in _CHIPS:
        raise InputError(f"GPU {chip!r} is not known; give one of: {', '.join(_CHIPS)}")
    ptx, multiprocessors, threads = _CHIPS[chip]
    return GpuTarget(
        triple="nvptx64-nvidia-cuda",
        cpu=chip,
        features=ptx,
        vector_bytes=16,
        fma=True,
        max_threads=multiprocessors * threads,
        multiprocessors=multiprocessors,
        threads_per_multiprocessor=threads,
        async_copies=int(chip[3:]) >= 80,
    )


def newest_chip(capability: tuple[int, int]) -> str | None:
    """The newest known chip whose code a GPU of this compute capability runs; None when it is too old."""
    chips = [chip for chip in _CHIPS if (int(chip[3:-1]), int(chip[-1])) <= capability]
    return chips[-1] if chips else None


def parse_target(text: str) -> GpuTarget | None:
    """The target of a name: ``cpu`` is None, this machine; ``cuda`` or ``cuda:sm_90`` a GPU.

    Raises ``InputError`` for any other.
    """
    kind, _, chip = text.partition(":")
    if text == "cpu":
        return None
    if kind != "cuda":
        raise InputError(
            f"target {text!r} is not known; give cpu, cuda or cuda:CHIP, like cuda:sm_90"
        )
    return gpu_target(chip or DEFAULT_CHIP)
