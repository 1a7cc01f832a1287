# SPDX-License-Identifier: Apache-2.0
"""Arrays of an executable: results as a list, names, and the .npy and .npz files they come from and go to."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from gristmill.compiler.driver.console import replacing
from gristmill.errors import InputError
from gristmill.runtime.program import Signature

Array = np.ndarray[Any, Any]


def listed(results: Array | tuple[Array, ...]) -> list[Array]:
    """What calling an executable returned, always as a list."""
    return list(results) if isinstance(results, tuple) else [results]


def names(signature: Sequence[Signature]) -> list[str]:
    """The names of inputs or outputs, made distinct."""
    return distinct([item.name for item in signature])


def distinct(labels: Sequence[str]) -> list[str]:
    """The labels, repeated ones numbered."""
    seen: dict[str, int] = {}
    result: list[str] = []
    for label in labels:
        count = seen.get(label, 0)
        seen[label] = count + 1
        result.append(f"{label}_{count}" if count else label)
    return result


def read_array(path: Path) -> Array:
    """The content of a .npy file."""
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} is not a .npy file of plain numbers: {error}") from error


def read_arrays(path: Path) -> dict[str, Array]:
    """The content of an .npz file."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not hasattr(loaded, "files"):
            raise InputError(f"{path} is a .npy file; give it as --input")
        return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not an .npz file of plain numbers: {error}") from error


def select(arrays: dict[str, Array], wanted: Sequence[str], prefix: str, path: Path) -> list[Array]:
    """The arrays called ``wanted``, or else PREFIX0, PREFIX1, ..., or arr_0, arr_1, ...."""
    numbered = [[f"{p}{i}" for i in range(len(wanted))] for p in (prefix, "arr_")]
    for keys in (list(wanted), *numbered):
        if all(key in arrays for key in keys):
            return [arrays[key] for key in keys]
    raise InputError(
        f"{path} holds {', '.join(arrays) or 'nothing'}, but the model's names are "
        f"{', '.join(wanted)} ({prefix}0, {prefix}1, ... serve too)"
    )


def as_dtype(array: Array, dtype: np.dtype[Any]) -> Array:
    """Read the raw values that files hold in place of types foreign to numpy; see :func:`storable`."""
    same_size = array.dtype.itemsize == dtype.itemsize
    raw = _is_foreign(dtype) and same_size and array.dtype.kind in "Vu"
    return array.view(dtype) if raw else array


def storable(array: Array) -> Array:
    """The array as a file can hold it: bfloat16 and narrower types as unsigned integers of their size."""
    return array.view(f"u{array.dtype.itemsize}") if _is_foreign(array.dtype) else array


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    return dtype.isbuiltin != 1


def save(path: Path, keys: Sequence[str], outputs: Sequence[Array]) -> None:
    """Write results to ``path`` (.npz, or .npy for a single one), all of it or nothing."""
    if path.suffix not in (".npz", ".npy"):
        raise InputError(f"cannot save to {path}: the name must end in .npz or .npy")
    if path.suffix == ".npy" and len(outputs) != 1:
        raise InputError(f"{path} can hold one result, the model has {len(outputs)}; use .npz")
    with replacing(path) as temporary:
        if path.suffix == ".npy":
            np.save(temporary, storable(outputs[0]))
        else:
            _save_npz(temporary, dict(zip(keys, outputs, strict=True)))


def _save_npz(path: Path, arrays: dict[str, Array]) -> None:
    """``numpy.savez`` for any names; its keyword arguments would clash with some."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, storable(array), allow_pickle=False)
