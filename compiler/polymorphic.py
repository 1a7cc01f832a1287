# SPDX-License-Identifier: Apache-2.0
"""``PolymorphicExecutable``: a program with dynamic shapes, compiled for each set of shapes when first called.

The shapes of a call's arguments, and the content of the few arguments that sizes are computed from, are the
key of a cache of :class:`~gristmill.runtime.executable.Executable`\\ s.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, cast

import numpy as np

from gristmill.compiler.frontends.polymorphic import PolymorphicArgument, PolymorphicModule
from gristmill.compiler.module import HloModule
from gristmill.errors import InputError
from gristmill.runtime.arguments import as_array
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.executable import Executable

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
AnyExecutable = Executable | DeviceExecutable
#: What a specialisation is made for: the arguments' shapes, and the content of those whose values matter.
Key = tuple[Shapes, tuple[bytes, ...]]
#: Gives the executable of a key; the function makes the program for it, in case it has to be compiled.
Build = Callable[[Key, Callable[[], HloModule]], AnyExecutable]

#: Specialisations kept; the oldest goes when there are more, and is closed unless the user asked for it.
CAPACITY = 256


class PolymorphicExecutable:
    """A program with dynamic shapes. Call it with arrays; several threads may.

    Attributes:
        name: the program's name.
        inputs: its arguments; ``str()`` of one is, for example, ``f32[b, 2*b + 1]``.
    """

    def __init__(
        self,
        program: PolymorphicModule,
        build: Build,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """``build`` gives the executable of one specialisation of ``program``; ``on_close`` is called at the end."""
        self._on_close = on_close
        self.name = program.name
        self.inputs: tuple[PolymorphicArgument, ...] = program.inputs
        self._program = program
        self._build = build
        self._by_value = [i for i, item in enumerate(program.inputs) if item.by_value]
        self._ready: dict[Key, AnyExecutable] = {}
        self._pending: dict[Key, Future[AnyExecutable]] = {}
        #: Those for devices that the user was given, which are closed at the end only.
        self._given: dict[DeviceExecutable, None] = {}
        self._evicted: weakref.WeakSet[AnyExecutable] = weakref.WeakSet()
        self._lock = threading.Lock()

    def __call__(
        self,
        *arrays: object,
        **options: Any,
    ) -> Any:
        """Run the program, after compiling it if these shapes are new.

        ``options`` and the result are those of :meth:`Executable.__call__`, or of
        :meth:`DeviceExecutable.__call__`. Raises ``InputError`` when an array, or the shapes together, do not
        fit the program.
        """
        executable = self._known(arrays)
        if executable is None:
            arrays = tuple(self._admit(arrays))
            executable = self._executable(arrays)
        try:
            return cast("Callable[..., Any]", executable)(*arrays, **options)
        except InputError:
            if executable not in self._evicted:
                raise
        return self(*arrays, **options)  # it was closed between being found and being called

    def close(self) -> None:
        """Close every specialisation, and the device if it was opened for them; idempotent."""
        with self._lock:
            ready, self._ready = self._ready, {}
            given, self._given = self._given, {}
            on_close, self._on_close = self._on_close, None
        for executable in (*ready.values(), *given):
            executable.close()
        if on_close is not None:
            on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def specialise(
        self, *shapes: Sequence[int], values: Mapping[int | str, object] | None = None
    ) -> AnyExecutable:
        """The executable for concrete shapes, one for each argument, from the cache or compiled now.

        It is closed with this one.

        Args:
            shapes: the shapes; ``()`` for a scalar.
            values: the content, by index or name, of the arguments that are ``by_value``.
        """
        given = self._values(values or {})
        return self._give((tuple(tuple(shape) for shape in shapes), given))

    def specialised_for(self, *arrays: object) -> AnyExecutable:
        """The executable that a call with ``arrays`` runs; it is closed with this one."""
        return self._give(self._key(self._admit(arrays)))

    def module_for(
        self, *shapes: Sequence[int], values: Mapping[int | str, object] | None = None
    ) -> HloModule:
        """The program for concrete shapes, not compiled. Arguments as for :meth:`specialise`."""
        return self._module((tuple(tuple(shape) for shape in shapes), self._values(values or {})))

    def __len__(self) -> int:
        """How many specialisations are cached."""
        return len(self._ready)

    def __repr__(self) -> str:
        return f"<PolymorphicExecutable {self.name}({self._program}), {len(self)} specialised>"

    def _known(self, arrays: Sequence[Any]) -> AnyExecutable | None:
        """The cached executable for these shapes, if no values matter: it checks the arrays itself."""
        if self._by_value:
            return None
        try:
            return self._ready.get((tuple([array.shape for array in arrays]), ()))
        except (AttributeError, TypeError):  # no array
            return None

    def _admit(self, arrays: Sequence[object]) -> list[Array]:
        if len(arrays) != len(self.inputs):
            raise InputError(
                f"{len(arrays)} arguments given, {len(self.inputs)} expected ({self._program})"
            )
        inputs: list[Array] = []
        for index, (value, item) in enumerate(zip(arrays, self.inputs, strict=True)):
            array = as_array(value, f"argument {index} ({item.name!r})")
            if array.dtype != item.element.dtype:
                raise InputError(
                    f"argument {index} ({item.name!r}): dtype {array.dtype} does not fit {item}; "
                    f"convert it with .astype({item.element.dtype.name!r})"
                )
            inputs.append(array)
        return inputs

    def _executable(self, inputs: Sequence[Array]) -> AnyExecutable:
        key = self._key(inputs)
        return self._ready.get(key) or self._compiled(key)

    def _key(self, inputs: Sequence[Array]) -> Key:
        return (
            tuple([array.shape for array in inputs]),
            tuple([inputs[index].tobytes() for index in self._by_value]),
        )

    def _values(self, values: Mapping[int | str, object]) -> tuple[bytes, ...]:
        given: list[bytes] = []
        for index in self._by_value:
            item = self.inputs[index]
            value = values.get(index, values.get(item.name))
            if value is None:
                raise InputError(
                    f"argument {index} ({item.name!r}): shapes depend on its value; give it in values"
                )
            given.append(np.asarray(value, item.element.dtype).tobytes())
        return tuple(given)

    def _compiled(self, key: Key) -> AnyExecutable:
        """The executable for ``key``: cached, or compiled by the first of the threads that ask for it."""
        with self._lock:
            ready = self._ready.get(key)
            if ready is not None:
                return ready
            future = self._pending.get(key)
            mine = future is None
            if future is None:
                future = self._pending[key] = Future()
        if mine:
            self._compile(key, future)
        return future.result()

    def _give(self, key: Key) -> AnyExecutable:
        """The executable for ``key``, for the user, who may keep it."""
        while True:
            executable = self._compiled(key)
            with self._lock:
                if executable in self._evicted:  # since it was found
                    continue
                if isinstance(executable, DeviceExecutable):
                    self._given[executable] = None
                return executable

    def _make_room(self) -> list[DeviceExecutable]:
        """Forget the oldest specialisations, with the lock held; those that the caller has to close without it.

        One for the CPU unloads its code when the last reference to it goes.
        """
        evicted: list[DeviceExecutable] = []
        while len(self._ready) >= CAPACITY:
            oldest = self._ready.pop(next(iter(self._ready)))
            if isinstance(oldest, DeviceExecutable) and oldest not in self._given:
                self._evicted.add(oldest)
                evicted.append(oldest)
        return evicted

    def _compile(self, key: Key, future: Future[AnyExecutable]) -> None:
        try:
            executable = self._build(key, lambda: self._module(key))
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            future.set_exception(error)
            return
        with self._lock:
            evicted = self._make_room()
            self._ready[key] = executable
            del self._pending[key]
        future.set_result(executable)
        for old in evicted:
            old.close()

    def _module(self, key: Key) -> HloModule:
        shapes, contents = key
        values: dict[int, Array] = {}
        for index, content in zip(self._by_value, contents, strict=True):
            flat = np.frombuffer(content, self.inputs[index].element.dtype)
            if index < len(shapes) and flat.size == int(np.prod(shapes[index])):
                values[index] = flat.reshape(shapes[index])
        return self._program.specialise(shapes, values)
