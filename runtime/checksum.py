# SPDX-License-Identifier: Apache-2.0
"""CRC-32 of memory, and of data from the sums of its parts.

CRC-32 is the remainder of the data, read as a polynomial over GF(2), modulo ``x^32 + x^26 + … + 1``
(ISO 3309). Appending ``n`` bytes multiplies the front part by ``x^(8n)``, so the sum of a whole follows
from those of its parts. Numbers are bit-reflected, as zlib has them: bit 31 is the coefficient of x^0.
"""

from __future__ import annotations

import ctypes
import zlib

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_X = 1 << 30


def crc32_at(address: int, nbytes: int) -> int:
    """The CRC-32 of ``nbytes`` bytes at ``address``."""
    if nbytes == 0:
        return 0
    return zlib.crc32((ctypes.c_char * nbytes).from_address(address))


def crc32_joined(first: int, second: int, second_nbytes: int) -> int:
    """The CRC-32 of two pieces of data one after the other, from those of each."""
    return _multiply(first, _power_of_x(8 * second_nbytes)) ^ second


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials, reduced."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _power_of_x(exponent: int) -> int:
    """``x**exponent``, reduced."""
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _multiply(result, square)
        square = _multiply(square, square)
        exponent >>= 1
    return result
