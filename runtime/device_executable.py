# SPDX-License-Identifier: Apache-2.0
"""Executables on a device: compiled programs as Python callables over numpy arrays and device buffers.

    with DeviceExecutable(program, device) as executable:
        y = executable(x)                                  # host to host
        with executable(x, results="device") as hidden:    # stays on the device; returns at once
            z = executable(hidden)

Inputs are uploaded ahead of the launches that need them; memory that the device reaches is used where it lies. An
execution has a *frame* for itself, with an arena, streams and memory for what comes from and goes to the host, which
a later one takes over; so many threads may call at once. A failure is of one call: its streams are cleared after it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime import artifact, observer
from gristmill.runtime.arguments import admit_outputs, check_count, chosen_inputs
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.device_call import Call
from gristmill.runtime.device_plan import plan_steps
from gristmill.runtime.device_program import BUFFER_ALIGNMENT, DeviceProgram
from gristmill.runtime.device_run import Frame, LoadedProgram
from gristmill.runtime.devices.launching import LaunchDevice
from gristmill.runtime.predicates import PredicateReader
from gristmill.runtime.prefetch import InputUploader, PrefetchOptions
from gristmill.runtime.program import Signature
from gristmill.runtime.types import ArrayType, element_type_of

Array = np.ndarray[Any, Any]
Results = Array | tuple[Array, ...]
DeviceResults = RawBuffer | tuple[RawBuffer, ...]

_OPTIONS = PrefetchOptions(alignment=BUFFER_ALIGNMENT)


class DeviceExecutable:
    """A program loaded on a device. Call it; a context manager that closes it.

    Args:
        program: what to run.
        device: where; it must outlive the executable.
        owns_device: whether the device is closed with the executable.

    Raises ``DeviceError`` when the program has no kernels for this device, ``ResourceExhaustedError``.

    Attributes:
        name: the program's name.
        inputs, outputs: signatures in calling order.
        owns_device: as given; it may be changed.
    """

    def __init__(
        self, program: DeviceProgram, device: LaunchDevice, *, owns_device: bool = False
    ) -> None:
        self.name = program.name
        self.inputs: tuple[Signature, ...] = tuple(program.inputs)
        self.outputs: tuple[Signature, ...] = tuple(program.outputs)
        self.device = device
        self.owns_device = owns_device
        self._program = program
        self._idle: list[Frame] = []
        self._running = 0
        self._closed = True  # until there is something to close
        self._changed = threading.Condition(threading.RLock())
        with ExitStack() as parts:
            self._loaded = _load(program, device, parts)
            self._parts = parts.pop_all()
        self._closed = False
        for tool in observer.active:
            tool.opened(self)

    @overload
    def __call__(
        self,
        *arguments: object,
        out: Array | Sequence[Array | None] | None = None,
        donate: bool | Iterable[int | str] = (),
        results: Literal["host"] = "host",
    ) -> Results: ...
    @overload
    def __call__(
        self,
        *arguments: object,
        donate: bool | Iterable[int | str] = (),
        results: Literal["device"],
    ) -> DeviceResults: ...
    def __call__(
        self,
        *arguments: object,
        out: Array | Sequence[Array | None] | None = None,
        donate: bool | Iterable[int | str] = (),
        results: Literal["host", "device"] = "host",
    ) -> Results | DeviceResults:
        """Run the program.

        Args:
            arguments: for each input a numpy array, or a buffer of the device that holds its bytes.
            out: arrays for results on the host, as in ``Executable``.
            donate: inputs, by index or name, whose buffers results may take over; True for all that can. A
                buffer that was taken over is closed.
            results: where they go. With ``device`` the call returns when all work was given to the device:
                each result is a buffer, which the caller closes, whose ``definition`` is done at the end.
                Arrays given must not change before.

        Returns:
            The result when there is one output, else a tuple of results.

        Raises:
            InputError: an argument does not fit the signature; the message names it.
            ResourceExhaustedError: there is no memory for results or temporaries.
            DeviceError: a kernel or copy failed; of results on the device the definitions fail instead.
        """
        check_count(len(arguments), self.inputs, "arguments")
        if results not in ("host", "device"):
            raise InputError(f"results: {results!r} is neither 'host' nor 'device'")
        if results == "device" and out is not None:
            raise InputError("out: arrays on the host are for results='host'")
        donated = chosen_inputs(donate, self.inputs)
        targets = admit_outputs(out, self.outputs) if results == "host" else None
        frame = self._take_frame()
        try:
            call = Call(self._loaded, frame, donated, targets, self._leave)
        except BaseException:  # an interrupt
            self._leave(frame)
            raise
        call.go(arguments)
        if results == "device":
            buffers = call.take_results()
            return buffers[0] if len(buffers) == 1 else tuple(buffers)
        call.finished.wait()
        return call.arrays[0] if len(call.arrays) == 1 else tuple(call.arrays)

    def save(self, path: str | Path) -> None:
        """Write the program as an artifact that :func:`gristmill.load` runs; atomic."""
        artifact.save(self._program, path)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Wait for the calls that are running, then release everything; idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            while self._running:
                self._changed.wait()
            idle, self._idle = self._idle, []
        for tool in observer.active:
            tool.closed(self)
        with ExitStack() as last:
            if self.owns_device:
                last.callback(self.device.close)
            with self._parts:
                for frame in idle:
                    frame.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not sys.is_finalizing():
            warnings.warn(
                f"executable {self.name} was not closed: its memory stays on {self.device}",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        def show(signatures: Sequence[Signature]) -> str:
            return ", ".join(f"{s.name}: {s.type}" for s in signatures)

        return (
            f"<DeviceExecutable {self.name}({show(self.inputs)}) -> ({show(self.outputs)}) on "
            f"{self.device}>"
        )

    def _take_frame(self) -> Frame:
        """A frame that nobody else uses."""
        with self._changed:
            if self._closed:
                raise InputError(f"executable {self.name} has been closed")
            self._running += 1
        try:
            with self._changed:
                if self._idle:
                    return self._idle.pop()
            return Frame(self._loaded)
        except BaseException:
            self._leave(None)
            raise

    def _leave(self, frame: Frame | None) -> None:
        """A call has ended, and its frame is free."""
        with self._changed:
            self._running -= 1
            if frame is not None:
                self._idle.append(frame)
            self._changed.notify_all()


def _load(program: DeviceProgram, device: LaunchDevice, parts: ExitStack) -> LoadedProgram:
    """Put a program on a device; ``parts`` closes what that takes."""
    module = parts.enter_context(device.load_kernels(program.images, program.chip, program.kernels))
    kernels = [(kernel, module.kernel(kernel.name)) for kernel in program.kernels]
    uploader = parts.enter_context(InputUploader(device, program.inputs, options=_OPTIONS))
    constants = _upload_constants(device, program.constants)
    for buffer in constants:
        parts.callback(buffer.close)
    nodes = plan_steps(program.steps, program.inputs)
    return LoadedProgram(
        program, device, kernels, nodes, constants, uploader, PredicateReader(device)
    )


def _upload_constants(device: LaunchDevice, constants: Sequence[Array]) -> list[RawBuffer]:
    """The constants on the device, all there; those that it reaches on the host stay where they are."""
    signatures = [
        Signature(f"constant {number}", ArrayType(array.shape, element_type_of(array.dtype)))
        for number, array in enumerate(constants)
    ]
    with InputUploader(device, signatures, options=_OPTIONS) as uploader:
        buffers = uploader.upload(constants)
    try:
        for buffer in buffers:
            buffer.definition.wait()
    except BaseException:
        for buffer in buffers:
            buffer.close()
        raise
    return buffers
