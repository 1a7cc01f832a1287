# SPDX-License-Identifier: Apache-2.0
"""Checks the arrays given to an executable and says which argument is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime.program import Signature
from gristmill.runtime.types import ArrayType

Array = np.ndarray[Any, Any]


def admit(value: object, signature: Signature, index: int) -> Array:
    """``value`` as an array that fits ``signature``, without copying its data.

    numpy arrays and scalars, and anything that speaks DLPack or numpy's array protocol, are taken.
    Raises ``InputError`` naming the argument otherwise.
    """
    where = describe("argument", index, signature)
    array = as_array(value, where)
    check_fit(array, signature.type, where)
    return array


def admit_output(value: object, signature: Signature, index: int) -> Array:
    """As :func:`admit`, for an array that is to be written."""
    where = describe("out", index, signature)
    if not isinstance(value, np.ndarray):
        raise InputError(f"{where}: a numpy array is needed, not {type(value).__name__}")
    array = cast("Array", value)
    check_fit(array, signature.type, where)
    if not array.flags.writeable:
        raise InputError(f"{where}: the array is read-only")
    return array


def admit_outputs(
    out: Array | Sequence[Array | None] | None, signatures: Sequence[Signature]
) -> list[Array | None]:
    """The arrays that results are to be written to, an entry for each; None for a fresh one.

    Raises ``InputError`` for one that does not fit, or shares memory with another.
    """
    if out is None:
        return [None] * len(signatures)
    given = [out] if isinstance(out, np.ndarray) else list(out)
    check_count(len(given), signatures, "out arrays")
    targets = [
        None if value is None else admit_output(value, signature, index)
        for index, (value, signature) in enumerate(zip(given, signatures, strict=True))
    ]
    present = [t for t in targets if t is not None]
    for index, target in enumerate(present):
        if any(np.may_share_memory(target, other) for other in present[:index]):
            raise InputError("out: two of the arrays share memory")
    return targets


def chosen_inputs(donate: bool | Iterable[int | str], signatures: Sequence[Signature]) -> set[int]:
    """The numbers of the donated inputs; True stands for all that a result can take over."""
    if isinstance(donate, bool):
        return {i for i, s in enumerate(signatures) if s.alias is not None and donate}
    names = {s.name: i for i, s in enumerate(signatures)}
    chosen: set[int] = set()
    for item in donate:
        index = names.get(item, -1) if isinstance(item, str) else item
        if not 0 <= index < len(signatures):
            known = ", ".join(names)
            raise InputError(f"donate: there is no input {item!r}; the inputs are {known}")
        chosen.add(index)
    return chosen


def describe(role: str, index: int, signature: Signature) -> str:
    """``argument 0 ('x')``."""
    return f"{role} {index} ({signature.name!r})"


def check_count(given: int, wanted: Sequence[Signature], what: str) -> None:
    """Raise ``InputError`` listing what is expected unless the counts agree."""
    if given != len(wanted):
        listing = ", ".join(f"{s.name}: {s.type}" for s in wanted) or "none"
        raise InputError(f"{given} {what} given, {len(wanted)} expected ({listing})")


def check_fit(array: Array, kind: ArrayType, where: str) -> None:
    """Raise ``InputError`` unless dtype, shape, contiguity and alignment fit."""
    if array.dtype != kind.element.dtype:
        raise InputError(
            f"{where}: dtype {array.dtype} does not fit {kind}; "
            f"convert it with .astype({kind.element.dtype.name!r})"
        )
    if array.shape != kind.shape:
        raise InputError(f"{where}: shape {array.shape} does not fit {kind}, {kind.shape}")
    if not array.flags.c_contiguous:
        raise InputError(f"{where}: the array is not C-contiguous; use numpy.ascontiguousarray")
    if not array.flags.aligned:
        raise InputError(f"{where}: the data is not aligned to its element size; copy the array")


def as_array(value: object, where: str) -> Array:
    """``value`` as a numpy array, without copying where possible; ``InputError`` naming ``where`` if it is none."""
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    if isinstance(value, np.generic):
        return np.asarray(cast("object", value))
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)  # pyright: ignore[reportArgumentType]
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            # Exporters refuse dtypes that DLPack or numpy lacks, bfloat16 above all.
            if not hasattr(value, "__array__"):
                raise InputError(f"{where}: cannot import through DLPack: {error}") from None
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise InputError(f"{where}: an array is needed, not {type(value).__name__}")
