# SPDX-License-Identifier: Apache-2.0
"""Functions that programs call: Python callables and C functions, registered by name.

A program names the targets of its custom calls; :func:`bind` finds their functions when an executable is made, which
keeps them from then on, whatever is registered or unregistered later. The C interface is ``custom_call.h`` beside
this file. A Python callable is called through it too: on the thread that called the executable, with Python's lock
held.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from gristmill.errors import CustomCallError, InputError
from gristmill.runtime.program import ACKNOWLEDGED, MESSAGE, MESSAGE_BYTES, CustomCall
from gristmill.runtime.types import ArrayType

Array = np.ndarray[Any, Any]

#: The C header.
HEADER = Path(__file__).with_name("custom_call.h")
INTERFACE_VERSION = 1

_CAPSULE_NAME = b"gristmill.custom_call"
_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_FUNCTION_POINTER = _PROTOTYPE.__mro__[1]


class Registration:
    """A registered function. A context manager that unregisters it.

    Attributes:
        name: the custom calls' target.
        function: the Python callable; ``None`` for a C function.
        address: of the C function; 0 for a Python callable.
        borrow, user_data: as given to :func:`register_custom_call`.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any] | None,
        address: int,
        borrow: bool,
        user_data: int,
        owner: object,
    ) -> None:
        self.name = name
        self.function = function
        self.address = address
        self.borrow = borrow
        self.user_data = user_data
        self._owner = owner  # keeps what the address belongs to

    def unregister(self) -> None:
        """Remove it, unless it has been replaced already; idempotent. Executables made before keep it."""
        with _lock:
            if _registry.get(self.name) is self:
                del _registry[self.name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unregister()

    def __repr__(self) -> str:
        what = repr(self.function) if self.function is not None else f"{self.address:#x}"
        return f"<Registration of {self.name!r}: {what}>"


_lock = threading.Lock()
_registry: dict[str, Registration] = {}


def register_custom_call(
    name: str,
    function: object,
    *,
    borrow: bool = False,
    user_data: int = 0,
    replace: bool = False,
) -> Registration:
    """Let programs call ``function`` by ``custom_call @name``.

    Args:
        name: the target's name.
        function: a Python callable; or a C function of ``custom_call.h``'s type: an address, a ``ctypes`` function,
            or a capsule called ``gristmill.custom_call``.

            A callable gets one read-only numpy array an operand, and the call's ``backend_config`` as keyword
            arguments (a dictionary's entries, or ``backend_config`` for a string that is not empty). It returns the
            result, a sequence when there are several, ``None`` when there is none; each must have exactly the shape
            and element type that the program says. What it raises ends the execution with a ``CustomCallError``
            whose ``__cause__`` it is.
        borrow: a Python callable gets the operands in place instead of copies, and the result arrays to fill as
            ``out=(…)``; it returns ``None``, and must not keep any of these arrays.
        user_data: an address, handed to a C function.
        replace: whether the name may be registered already.

    Returns:
        The registration; as a context manager it ends with the ``with``.

    Raises:
        InputError: the name is taken or empty, or ``function`` is nothing that can be called.
    """
    if not name:
        raise InputError("a custom call needs a name")
    address = _address(function)
    if address is None:
        if not callable(function):
            raise InputError(
                f"custom call {name!r}: {type(function).__name__} is neither a callable, an address, a ctypes "
                "function nor a capsule gristmill.custom_call"
            )
        if user_data:
            raise InputError(f"custom call {name!r}: user_data is for C functions only")
        made = Registration(name, function, 0, borrow, 0, function)
    else:
        if borrow:
            raise InputError(f"custom call {name!r}: borrow is for Python callables only")
        made = Registration(name, None, address, False, user_data, function)
    with _lock:
        if name in _registry and not replace:
            raise InputError(
                f"custom call {name!r} is registered already; unregister it, or say replace=True"
            )
        _registry[name] = made
    return made


def is_registered(name: str) -> bool:
    """Whether a function is registered under ``name``."""
    with _lock:
        return name in _registry


def registered_names() -> list[str]:
    """The names that functions are registered under, sorted."""
    with _lock:
        return sorted(_registry)


def _address(function: object) -> int | None:
    """The address of a C function; ``None`` for anything else. Raises ``InputError`` for a null pointer."""
    found: int | None = None
    if isinstance(function, int) and not isinstance(function, bool):
        found = function
    elif isinstance(function, _FUNCTION_POINTER):
        found = ctypes.cast(cast("Any", function), ctypes.c_void_p).value or 0
    elif type(function).__name__ == "PyCapsule":
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        try:
            found = pointer(function, _CAPSULE_NAME)
        except ValueError:
            raise InputError("the capsule is not called gristmill.custom_call") from None
    if found is not None and found <= 0:
        raise InputError("a custom call's address must not be null")
    return found


# The C structures


class _ArrayType(ctypes.Structure):
    _fields_ = (
        ("element", ctypes.c_char_p),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int64),
        ("target", ctypes.c_char_p),
        ("config", ctypes.c_char_p),
        ("config_size", ctypes.c_int64),
        ("num_inputs", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("inputs", ctypes.POINTER(_ArrayType)),
        ("outputs", ctypes.POINTER(_ArrayType)),
        ("user_data", ctypes.c_void_p),
    )


def _types(kinds: Sequence[ArrayType]) -> Any:
    table = (_ArrayType * max(len(kinds), 1))()
    for entry, kind in zip(table, kinds, strict=False):
        shape = (ctypes.c_int64 * max(len(kind.shape), 1))(*kind.shape)
        entry.element = kind.element.name.encode()
        entry.rank = len(kind.shape)
        entry.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    return table


def _call(call: CustomCall, user_data: int) -> _Call:
    config = call.config.encode()
    return _Call(
        INTERFACE_VERSION,
        call.target.encode(),
        config,
        len(config),
        len(call.inputs),
        len(call.outputs),
        _types(call.inputs),
        _types(call.outputs),
        user_data or None,
    )


class Sites:
    """The functions of one program's custom calls, as its entry function finds them.

    Attributes:
        calls: the calls.
        address: of the table of sites.
    """

    def __init__(self, calls: Sequence[CustomCall], registrations: Sequence[Registration]) -> None:
        self.calls = tuple(calls)
        self._kept: list[object] = []
        words: list[int] = []
        for call, registration in zip(calls, registrations, strict=True):
            address, acknowledgement = registration.address, 0
            if registration.function is not None:
                function = _PROTOTYPE(_PythonSite(call, registration))
                address = ctypes.cast(function, ctypes.c_void_p).value or 0
                acknowledgement = 1
                self._kept.append(function)
            data = _call(call, registration.user_data)
            self._kept += [data, registration]
            words += [address, ctypes.addressof(data), acknowledgement]
        self._table = (ctypes.c_uint64 * max(len(words), 1))(*words)
        self.address = ctypes.addressof(self._table)

    def failure(self, context: int) -> BaseException:
        """What to raise after the execution with the context at this address failed; resets the context."""
        code = ctypes.c_int64.from_address(context)
        call = self.calls[-1 - code.value]
        code.value = 0
        error = getattr(_raised, "error", None)
        _raised.error = None
        where = f"custom call @{call.target}"
        if isinstance(error, CustomCallError):
            return CustomCallError(f"{where}: {error.message}")
        if isinstance(error, Exception):
            text = str(error).strip()
            failure = CustomCallError(
                f"{where}: its function raised {type(error).__name__}{': ' if text else ''}{text}"
            )
            failure.__cause__ = error
            return failure
        if error is not None:
            return error  # an interrupt or an exit goes on as it is
        message = ctypes.string_at(context + MESSAGE, MESSAGE_BYTES).partition(b"\0")[0]
        ctypes.memset(context + MESSAGE, 0, MESSAGE_BYTES)
        reason = message.decode(errors="replace").strip()
        return CustomCallError(f"{where} failed: {reason or 'its function gave no reason'}")


def bind(calls: Sequence[CustomCall], program: str) -> Sites | None:
    """The sites of a program, ``None`` when it has none.

    Raises ``CustomCallError`` naming every target that no function is registered for.
    """
    if not calls:
        return None
    with _lock:
        found = [_registry.get(call.target) for call in calls]
    present = [registration for registration in found if registration is not None]
    if len(present) < len(calls):
        pairs = zip(calls, found, strict=True)
        missing = dict.fromkeys(f"@{call.target}" for call, one in pairs if one is None)
        raise CustomCallError(
            f"{program} needs custom calls that no function is registered for: {', '.join(missing)}; "
            "call gristmill.register_custom_call first (--custom-calls on the command line)"
        )
    return Sites(calls, present)


# Python callables

#: What the callable that failed last on this thread raised.
_raised = threading.local()


class _PythonSite:
    """The C function of one call of a Python callable."""

    def __init__(self, call: CustomCall, registration: Registration) -> None:
        function = registration.function
        assert function is not None
        self.call = call
        self.function = function
        self.borrow = registration.borrow
        self.attributes: dict[str, Any] = json.loads(call.config) if call.typed else {}
        if call.config and not call.typed:
            self.attributes["backend_config"] = call.config

    def __call__(self, call: int, inputs: int, outputs: int, message: int) -> int:
        acknowledged = message - (MESSAGE - ACKNOWLEDGED)
        try:
            self.run(inputs, outputs)
        except (
            BaseException
        ) as error:  # nothing may pass through native code; Sites.failure raises it
            _raised.error = error
            return 1
        ctypes.c_int64.from_address(acknowledged).value = 1
        return 0

    def run(self, inputs: int, outputs: int) -> None:
        call = self.call
        operands = [_view(inputs, n, kind) for n, kind in enumerate(call.inputs)]
        targets = [_view(outputs, n, kind) for n, kind in enumerate(call.outputs)]
        if not self.borrow:
            operands = [operand.copy() for operand in operands]
        for operand in operands:
            operand.flags.writeable = False
        if self.borrow:
            self.function(*operands, out=tuple(targets), **self.attributes)
            return
        results = _listed(self.function(*operands, **self.attributes), len(targets))
        for number, (result, target) in enumerate(zip(results, targets, strict=True)):
            array = np.asarray(result)
            if array.dtype != target.dtype or array.shape != target.shape:
                raise CustomCallError(
                    f"result {number} of its function is {array.dtype}{list(array.shape)}, not "
                    f"{target.dtype}{list(target.shape)}"
                )
            target[...] = array


def _listed(result: object, count: int) -> list[Any]:
    """The results of a callable, one each; raises ``CustomCallError`` when there are not ``count``."""
    if count == 1 and not isinstance(result, (tuple, list)):
        return [result]
    given: list[Any] = [] if result is None else [result]
    if isinstance(result, (tuple, list)):
        given = list(cast("list[Any]", result))
    if len(given) != count:
        raise CustomCallError(f"its function returned {len(given)} results, not {count}")
    return given


def _view(table: int, number: int, kind: ArrayType) -> Array:
    """The array that entry ``number`` of a table of pointers points to."""
    dtype = kind.element.dtype
    if kind.size == 0:
        return np.empty(kind.shape, dtype)
    address = ctypes.c_uint64.from_address(table + 8 * number).value
    memory = (ctypes.c_char * kind.nbytes).from_address(address)
    return np.ndarray(kind.shape, dtype, memory)
