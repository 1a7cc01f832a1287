# SPDX-License-Identifier: Apache-2.0
"""Whether code that was compiled elsewhere runs on this machine's CPU."""

from __future__ import annotations

from gristmill.errors import ArtifactError
from gristmill.runtime.llvm.target import default_triple, host_features

#: Prefixes of the CPU features that numeric code is generated with; others (``rtm``, ``sgx``, …) may
#: differ between machines without harm.
_CODE_FEATURES = (
    *("64bit", "adx", "amx", "avx", "bmi", "cmov", "cx16", "f16c", "fma", "gfni", "lzcnt"),
    *("movbe", "popcnt", "sahf", "sse", "ssse", "vaes", "vpclmul"),
    *("bf16", "crypto", "dotprod", "fp", "fullfp16", "i8mm", "lse", "neon", "sve"),
)


def check_cpu(triple: str, cpu: str, features: str) -> None:
    """Raise ``ArtifactError`` saying what is missing unless this CPU runs code for that one."""
    here = default_triple()
    if triple.split("-")[0] != here.split("-")[0]:
        raise ArtifactError(f"compiled for {triple}; this machine is {here}")
    present = set(host_features().split(","))
    missing = [
        feature[1:]
        for feature in features.split(",")
        if feature.startswith("+")
        and feature not in present
        and feature[1:].startswith(_CODE_FEATURES)
    ]
    if missing:
        raise ArtifactError(
            f"compiled for {cpu} with CPU features this machine lacks: "
            f"{', '.join(missing)}; compile it with GRISTMILL_CPU set to a CPU that both have"
        )
