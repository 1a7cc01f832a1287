# SPDX-License-Identifier: Apache-2.0
"""Conversions between ``f16`` and ``f32`` by integer arithmetic, for code of x86-64 CPUs without F16C.

There LLVM calls two functions of compiler-rt, which no library that is always present exports. Those here round to
nearest even, keep subnormal numbers and make signalling NaNs quiet, as the F16C instructions do. The format is
IEEE 754-2019's binary16: 1 sign bit, 5 bits of exponent (bias 15), 10 of significand.
"""

from __future__ import annotations

from functools import lru_cache

from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine, default_triple

#: The functions, as LLVM calls them.
NAMES = frozenset({"__extendhfsf2", "__truncsfhf2"})

# A significand moves by 13 bits, an exponent's bias by 112. 0x38800000 is 2^-14, the least normal half;
# 0x477FF000 is 65520, which is halfway from the largest half to the next power of two and rounds to infinity.
_SOURCE = """
define float @__extendhfsf2(half %x) {
  %bits = bitcast half %x to i16
  %wide = zext i16 %bits to i32
  %sign = and i32 %wide, 32768
  %sign32 = shl i32 %sign, 16
  %magnitude = and i32 %wide, 32767
  %moved = shl i32 %magnitude, 13
  %normal = add i32 %moved, u0x38000000

  ; a subnormal number counts units of 2^-24
  %units = uitofp i32 %magnitude to float
  %small = fmul float %units, 0x3E70000000000000
  %small_bits = bitcast float %small to i32
  %is_small = icmp ult i32 %magnitude, u0x400
  %finite = select i1 %is_small, i32 %small_bits, i32 %normal

  %is_nan = icmp ugt i32 %magnitude, u0x7C00
  %top = select i1 %is_nan, i32 u0x7FC00000, i32 u0x7F800000
  %special = or i32 %moved, %top
  %is_special = icmp uge i32 %magnitude, u0x7C00
  %chosen = select i1 %is_special, i32 %special, i32 %finite
  %result = or i32 %chosen, %sign32
  %float = bitcast i32 %result to float
  ret float %float
}

define half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %sign = and i32 %high, 32768
  %magnitude = and i32 %bits, u0x7FFFFFFF

  ; to nearest even: add half a unit less one, and one more where the result would be odd
  %based = sub i32 %magnitude, u0x38000000
  %unit = lshr i32 %based, 13
  %odd = and i32 %unit, 1
  %near = add i32 %based, u0xFFF
  %rounded = add i32 %near, %odd
  %normal = lshr i32 %rounded, 13

  ; a unit in the last place of floats from 1/2 to 1 is 2^-24, that of subnormal halves: the addition rounds
  %absolute = bitcast i32 %magnitude to float
  %sum = fadd float %absolute, 0.5
  %sum_bits = bitcast float %sum to i32
  %small = sub i32 %sum_bits, u0x3F000000
  %is_small = icmp ult i32 %magnitude, u0x38800000
  %finite = select i1 %is_small, i32 %small, i32 %normal

  %payload = lshr i32 %magnitude, 13
  %kept = and i32 %payload, u0x1FF
  %nan = or i32 %kept, u0x7E00
  %is_nan = icmp ugt i32 %magnitude, u0x7F800000
  %special = select i1 %is_nan, i32 %nan, i32 u0x7C00
  %is_special = icmp uge i32 %magnitude, u0x477FF000
  %chosen = select i1 %is_special, i32 %special, i32 %finite
  %result = or i32 %chosen, %sign
  %narrow = trunc i32 %result to i16
  %half = bitcast i16 %narrow to half
  ret half %half
}
"""


@lru_cache(maxsize=1)
def conversions() -> bytes:
    """An object that defines :data:`NAMES` for every CPU of this machine's architecture."""
    with (
        Context() as context,
        TargetMachine(default_triple(), "", "") as machine,
        Module.parse(_SOURCE, context, "half") as module,
    ):
        module.set_target(machine)
        module.run_passes("default<O2>", machine)
        return module.emit(machine)
