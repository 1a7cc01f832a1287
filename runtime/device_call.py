# SPDX-License-Identifier: Apache-2.0
"""One call of a device executable: arguments in, steps, results out, and what is given back when all has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime import observer
from gristmill.runtime.arguments import describe
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.device_run import Frame, LoadedProgram, Memory, Run, root_cause
from gristmill.runtime.events import Event, ready, when_done
from gristmill.runtime.memory import host

Array = np.ndarray[Any, Any]

_DEFINED = ready("computed")


class Call:
    """One execution, from its arguments to the end of its work.

    Args:
        loaded: the program.
        frame: for this execution alone; ``leave`` is called with it when all has ended.
        donated: numbers of the inputs whose buffers results may take over.
        targets: for results on the host, the arrays for them, None for fresh ones; None: the device.

    Attributes:
        finished: done when everything has ended; fails with what went wrong first.
        arrays: results on the host.
    """

    def __init__(
        self,
        loaded: LoadedProgram,
        frame: Frame,
        donated: set[int],
        targets: Sequence[Array | None] | None,
        leave: Callable[[Frame], None],
    ) -> None:
        self.finished = Event(f"execution of {loaded.program.name}")
        self.arrays: list[Array] = []
        self._loaded, self._frame, self._leave = loaded, frame, leave
        self._donated = donated
        self._targets = targets
        self._memory: Memory = {}
        self._views: list[RawBuffer] = []  # closed when all has ended
        self._fresh: dict[int, RawBuffer] = {}  # results on the device
        self._ends: list[Event] = []
        self._error: BaseException | None = None

    def go(self, arguments: Sequence[object]) -> None:
        """Give all the work to the device; blocks where the host must know a predicate.

        Raises what keeps it from that, when what had been given before has ended.
        """
        try:
            self._bind(arguments)
            run = Run(self._loaded, self._frame, self._memory)
            try:
                run.nodes(self._loaded.nodes)
            finally:
                self._ends += run.last
            if self._targets is not None:
                self._download(self._targets, run.last)
        except BaseException as error:
            self._error = root_cause(error)
            self._end_after()
            self.finished.block(None)
            for buffer in self._fresh.values():
                buffer.let_go()
            raise self._error from None
        self._end_after()

    def take_results(self) -> list[RawBuffer]:
        """The results on the device, which the caller closes."""
        return [self._fresh[index] for index in range(len(self._fresh))]

    # Memory

    def _bind(self, arguments: Sequence[object]) -> None:
        program = self._loaded.program
        taken = self._take_donated(arguments)
        buffers = self._loaded.uploader.upload(arguments, self._memory_of_input)
        self._views += buffers
        for index, buffer in enumerate(buffers):
            self._memory["input", index] = buffer
            self._ends.append(buffer.definition)
        for index in range(len(program.outputs)):
            self._memory["output", index] = self._memory_of_output(index)
        for buffer in taken:
            buffer.close()

    def _take_donated(self, arguments: Sequence[object]) -> list[RawBuffer]:
        """Let outputs have the memory of donated buffers; returns those."""
        inputs, found = self._loaded.program.inputs, list[RawBuffer]()
        for index in sorted(self._donated):
            buffer, output = arguments[index], inputs[index].alias
            if not isinstance(buffer, RawBuffer):
                continue  # an array is copied to the device, where the copy is ours
            where = describe("argument", index, inputs[index])
            if buffer.readonly:
                raise InputError(f"{where}: a donated buffer must be writeable")
            for other, value in enumerate(arguments):
                if other != index and isinstance(value, RawBuffer) and _overlap(buffer, value):
                    raise InputError(
                        f"{where}: a donated buffer shares memory with argument {other}"
                    )
            if output is not None and buffer.nbytes == inputs[index].type.nbytes:
                view = buffer.slice(0, buffer.nbytes)
                view.definition = self.finished
                self._fresh[output] = view
                found.append(buffer)
        return found

    def _memory_of_input(self, index: int) -> RawBuffer:
        """Where the copy of an input that is on the host goes: to the output that may take it over."""
        signature = self._loaded.program.inputs[index]
        if signature.alias is not None and signature.alias not in self._fresh:
            return self._memory_of_output(signature.alias)
        return self._frame.memory("input", index, signature.type.nbytes)

    def _memory_of_output(self, index: int) -> RawBuffer:
        nbytes = self._loaded.program.outputs[index].type.nbytes
        if index not in self._fresh:
            if self._targets is not None:
                return self._frame.memory("output", index, nbytes)
            device = self._loaded.device
            self._fresh[index] = RawBuffer.allocate(device, nbytes, definition=self.finished)
        view = self._fresh[index].slice(0, nbytes)  # the caller may close the result before its end
        self._views.append(view)
        return view

    # The end

    def _download(self, targets: Sequence[Array | None], after: Sequence[Event]) -> None:
        outputs = self._loaded.program.outputs
        for index, (target, signature) in enumerate(zip(targets, outputs, strict=True)):
            if target is None:
                kind = signature.type
                target = host.PROCESS_POOL.empty(kind.shape, kind.element.dtype)
            self.arrays.append(target)
            source = self._memory["output", index]
            source.definition = _DEFINED  # of donated memory: the end of this call
            self._ends.append(source.copy_to_host(target, waits=after))

    def _end_after(self) -> None:
        for tool in observer.active:
            tool.joined(self.finished, tuple(self._ends))
        when_done(self._ends, self._end)

    def _end(self) -> None:
        failed = [event.error for event in self._ends if event.error is not None]
        error = self._error or (root_cause(failed[0]) if failed else None)
        for view in self._views:
            view.let_go()
        if self._targets is not None:
            for buffer in self._fresh.values():
                buffer.let_go()
        self._frame.recover()
        self._leave(self._frame)
        if error is None:
            self.finished.complete()
        else:
            self.finished.fail(error)


def _overlap(one: RawBuffer, other: RawBuffer) -> bool:
    return one.address < other.address + other.nbytes and other.address < one.address + one.nbytes
