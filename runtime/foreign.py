# SPDX-License-Identifier: Apache-2.0
"""Memory that others own: arrays, buffer-protocol objects, DLPack capsules, CUDA arrays.

Everything here finds out *where* foreign memory is and who must stay alive for it; whether it may be
used in place is the decision of :mod:`gristmill.runtime.buffers`.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime.memory.host import data_address

#: Device types of DLPack's ``DLDeviceType`` whose memory the host reaches: CPU, pinned by CUDA.
DLPACK_HOST = (1, 3)
#: Device types whose memory a CUDA device reaches: CUDA, pinned by CUDA, managed.
DLPACK_CUDA = (2, 3, 13)
#: Those whose memory streams write, and CUDA's default stream, on which exporters put what is to come first.
_DLPACK_STREAMED = (2, 13)
_DEFAULT_STREAM = 1


class ForeignMemory(NamedTuple):
    """Contiguous memory someone else owns.

    Attributes:
        address, nbytes: where it is.
        readonly: whether its owner forbids writing.
        alignment: the natural alignment of its elements, in bytes.
        owner: must stay alive while the memory is used.
        release: to be called when the memory is no longer used, or None; a second call does nothing.
        dlpack_device: DLPack's type and number of the device it lies on.
        stream: the CUDA stream handle after whose work it may be used, or None.
    """

    address: int
    nbytes: int
    readonly: bool
    alignment: int
    owner: object
    release: Callable[[], None] | None = None
    dlpack_device: tuple[int, int] = (1, 0)
    stream: int | None = None


@runtime_checkable
class SupportsDLPack(Protocol):
    """An object that exports itself by DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """A capsule with a ``DLManagedTensor``."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number."""
        ...


def host_memory(data: object) -> ForeignMemory:
    """The bytes of a C-contiguous numpy array or buffer-protocol object.

    Raises ``InputError`` for other objects, and for data that is not contiguous.
    """
    if isinstance(data, np.ndarray):
        array = cast("np.ndarray[Any, Any]", data)
        flags, dtype = array.flags, array.dtype
        if not flags.c_contiguous:
            raise InputError(
                f"host array of shape {array.shape} with strides {array.strides} is not C-contiguous; "
                "pass numpy.ascontiguousarray(array)"
            )
        if dtype.hasobject:
            raise InputError("host array holds Python objects; pass an array of plain elements")
        readonly = not flags.writeable
        return ForeignMemory(data_address(array), array.nbytes, readonly, dtype.alignment, array)
    try:
        view = memoryview(cast(Any, data))
    except TypeError:
        raise InputError(
            f"{type(data).__name__} is neither an array nor an object with the buffer protocol"
        ) from None
    if not view.c_contiguous:
        raise InputError(
            f"the memory of this {type(data).__name__} is not C-contiguous; copy it first"
        )
    if view.nbytes == 0:
        return ForeignMemory(0, 0, view.readonly, 1, view)
    array = np.frombuffer(
        view.cast("B") if view.format != "B" or view.ndim != 1 else view, np.uint8
    )
    return ForeignMemory(data_address(array), view.nbytes, view.readonly, view.itemsize, array)


# DLPack


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, the form before DLPack 1.0."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, DLPack 1.x."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_READONLY_FLAG = 1


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
#: A capsule keeps the pointer to its name, so the texts must live for ever.
_NAMES = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def dlpack_memory(exporter: object) -> ForeignMemory:
    """The memory of a DLPack exporter or capsule; the capsule is consumed.

    CUDA memory may be used after the work of the driver's default stream: exporters are told that one, and it is
    what they take when told none, as that of a capsule was. Unversioned capsules do not say whether their memory
    may be written: it counts as writable.
    Raises ``InputError`` for capsules that were used already and for tensors that are not contiguous.
    """
    capsule = _capsule_of(exporter)
    if type(capsule).__name__ != "PyCapsule":
        raise InputError(f"{type(exporter).__name__} does not export DLPack")
    name = next((name for name in _NAMES if _is_valid(capsule, name)), None)
    if name is None:
        raise InputError("the DLPack capsule was consumed already, or is of an unknown kind")
    address = cast(int, _get_pointer(capsule, name))
    readonly = False
    if name == b"dltensor":
        managed = _Managed.from_address(address)
    else:
        managed = _Versioned.from_address(address)
        if managed.major != 1:
            raise InputError(f"DLPack {managed.major}.{managed.minor} is unknown; export version 1")
        readonly = bool(managed.flags & _READONLY_FLAG)
    tensor = managed.tensor
    shape = [tensor.shape[axis] for axis in range(tensor.ndim)]
    if tensor.strides:
        strides = [tensor.strides[axis] for axis in range(tensor.ndim)]
        _require_dense(shape, strides, 1, "DLPack tensor")
    _set_name(capsule, _NAMES[name])

    released = threading.Lock()

    def release() -> None:
        if released.acquire(blocking=False) and managed.deleter:
            managed.deleter(address)

    return ForeignMemory(
        (tensor.data or 0) + tensor.byte_offset,
        (math.prod(shape) * tensor.bits * tensor.lanes + 7) // 8,
        readonly,
        max(tensor.bits // 8, 1),
        exporter,
        release,
        (tensor.device_type, tensor.device_id),
        _DEFAULT_STREAM if tensor.device_type in _DLPACK_STREAMED else None,
    )


def _capsule_of(exporter: object) -> object:
    if not isinstance(exporter, SupportsDLPack):
        return exporter
    export: Any = exporter.__dlpack__
    streamed = exporter.__dlpack_device__()[0] in _DLPACK_STREAMED
    options: dict[str, Any] = {"stream": _DEFAULT_STREAM} if streamed else {}
    try:
        return export(max_version=(1, 0), **options)
    except TypeError:  # an exporter older than DLPack 1.0
        return export(**options)


# CUDA array interface


def cuda_array_memory(exporter: object) -> ForeignMemory:
    """The memory of an object with ``__cuda_array_interface__`` (versions 0 to 3).

    Raises ``InputError`` for objects without it, masked arrays, and arrays that are not contiguous.
    """
    found: Any = getattr(exporter, "__cuda_array_interface__", None)
    if not isinstance(found, dict):
        raise InputError(f"{type(exporter).__name__} has no __cuda_array_interface__")
    interface = cast("dict[str, Any]", found)
    if interface.get("mask") is not None:
        raise InputError("a masked CUDA array cannot be imported")
    try:
        shape = [int(extent) for extent in interface["shape"]]
        dtype = np.dtype(str(interface["typestr"]))
        address, readonly = int(interface["data"][0]), bool(interface["data"][1])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"malformed __cuda_array_interface__: {error!r}") from None
    strides = interface.get("strides")
    if strides is not None:
        _require_dense(shape, list(strides), dtype.itemsize, "CUDA array")
    return ForeignMemory(
        address,
        math.prod(shape) * dtype.itemsize,
        readonly,
        dtype.alignment,
        exporter,
        None,
        (2, -1),  # the interface does not say which device
        interface.get("stream"),
    )


def _require_dense(shape: Sequence[int], strides: Sequence[int], itemsize: int, what: str) -> None:
    """Raise ``InputError`` unless ``strides`` (in units of ``itemsize`` bytes) are row-major."""
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 0:
            return
        if extent != 1 and stride != expected:
            raise InputError(
                f"{what} of shape {tuple(shape)} with strides {tuple(strides)} is not C-contiguous; "
                "make it contiguous first"
            )
        expected *= extent
