# SPDX-License-Identifier: Apache-2.0
"""The default target: this machine's CPU, or the one named by the ``GRISTMILL_CPU`` knob."""

from __future__ import annotations

from functools import lru_cache

from gristmill.compiler.target import Target
from gristmill.errors import InputError
from gristmill.runtime import knobs
from gristmill.runtime.caches import cache_sizes
from gristmill.runtime.llvm.target import default_triple, host_cpu, host_features
from gristmill.runtime.threads import usable_cores

_V2 = "+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3"
_V3 = f"{_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe"
_V4 = f"{_V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"

#: Features of the CPUs that can be named besides ``native``: the psABI's x86-64 levels.
_NAMED = {"generic": "", "x86-64": "", "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}


def host_target() -> Target:
    """The CPU to compile for, from the ``GRISTMILL_CPU`` knob (default: this machine's).

    Raises ``InputError`` for a CPU name that is not known.
    """
    return _target(knobs.CPU.get())


@lru_cache(maxsize=8)
def _target(name: str) -> Target:
    if name == "native":
        cpu, features = host_cpu(), host_features()
    elif name in _NAMED:
        cpu, features = name, _NAMED[name]
    else:
        known = ", ".join(["native", *_NAMED])
        raise InputError(f"CPU {name!r} is not known; GRISTMILL_CPU takes one of: {known}")
    triple = default_triple()
    caches = cache_sizes()
    enabled = set(features.split(","))
    return Target(
        triple=triple,
        cpu=cpu,
        features=features,
        vector_bytes=64 if "+avx512f" in enabled else 32 if "+avx2" in enabled else 16,
        fma="+fma" in enabled or triple.startswith("aarch64"),
        l1_bytes=caches.get("L1", Target.l1_bytes),
        l2_bytes=caches.get("L2", Target.l2_bytes),
        l3_bytes=caches.get("L3", Target.l3_bytes),
        max_threads=usable_cores(),
    )
