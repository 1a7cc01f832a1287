# SPDX-License-Identifier: Apache-2.0
"""A program that calls functions of your own: one in Python, one in C.

python examples/custom_call.py
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import gristmill

PROGRAM = """
func.func @main(%x: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<4xf32>) {
  %0 = stablehlo.custom_call @acme.sort_rows(%x) {backend_config = {descending = true}}
    : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = stablehlo.slice %0 [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
  %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
  %3 = stablehlo.custom_call @acme.copy(%2) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %3 : tensor<2x4xf32>, tensor<4xf32>
}
"""


def sort_rows(x: np.ndarray[Any, Any], *, descending: bool) -> np.ndarray[Any, Any]:
    """Arrays in, arrays out; the dictionary in backend_config becomes keyword arguments."""
    rows = np.sort(x, axis=1)
    return rows[:, ::-1] if descending else rows


# A C function has the type that custom_call.h declares: int32_t f(call, inputs, outputs, message). It usually comes
# from a shared library, ctypes.CDLL("libacme.so").acme_copy; here ctypes makes one.
FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_char_p,
)


@FUNCTION
def copy(call: int, inputs: Any, outputs: Any, message: bytes) -> int:
    ctypes.memmove(outputs[0], inputs[0], 4 * 4)
    return 0


def main() -> None:
    with (
        gristmill.register_custom_call("acme.sort_rows", sort_rows),
        gristmill.register_custom_call("acme.copy", copy),
    ):
        executable = gristmill.compile(PROGRAM)
    rows, first = executable(np.array([[3, 1, 2, 0], [1, 5, 9, 7]], np.float32))
    print("rows:", rows.tolist())
    print("first:", first.tolist())
    with gristmill.register_custom_call("acme.sort_rows", lambda x, **_: x[:1]):
        try:
            gristmill.compile(PROGRAM.replace("acme.copy", "acme.sort_rows"))(rows)
        except gristmill.GristmillError as error:
            print("error:", error)


if __name__ == "__main__":
    main()
