# SPDX-License-Identifier: Apache-2.0
"""One execution of a device program: its steps given to streams, its predicates read on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.errors import DependencyError
from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.device_graphs import Graphs, ranges_of
from gristmill.runtime.device_plan import (
    BranchNode,
    LoopNode,
    Node,
    PlacedStep,
    Segment,
    streams_of,
)
from gristmill.runtime.device_program import BufferRange, DeviceKernel, DeviceProgram, LaunchStep
from gristmill.runtime.devices.launching import Kernel, LaunchDevice
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event
from gristmill.runtime.predicates import PredicateReader
from gristmill.runtime.prefetch import InputUploader

#: The memory that a root and index stand for.
Memory = dict[tuple[str, int], RawBuffer]


@dataclass(frozen=True)
class LoadedProgram:
    """A program on a device, ready to run.

    Attributes:
        kernels: its kernels, and what was loaded for each.
        nodes: its steps, planned.
        constants: its constants on the device.
        uploader: brings its inputs to the device.
        predicates: reads what its loops and branches decide by.
    """

    program: DeviceProgram
    device: LaunchDevice
    kernels: Sequence[tuple[DeviceKernel, Kernel]]
    nodes: Sequence[Node]
    constants: Sequence[RawBuffer]
    uploader: InputUploader
    predicates: PredicateReader


class Frame:
    """What one execution has for itself and leaves to the next.

    Attributes:
        streams: that it uses; their errors are chained.
        graphs: recorded segments, on devices that record.
    """

    def __init__(self, loaded: LoadedProgram) -> None:
        self.device = loaded.device
        self.streams: list[Stream] = []
        self.graphs = Graphs.of(loaded.device, loaded.kernels)
        self._memory: Memory = {}
        program = loaded.program
        try:
            # Kernels without a workspace get the arena's address, so that there must be one.
            self.memory("arena", 0, max(program.arena_bytes, self.device.alignment))
            for number in range(streams_of(loaded.nodes)):
                self.streams.append(self.device.create_stream(f"{program.name} {number}"))
        except BaseException:
            self.close()
            raise

    def memory(self, root: str, index: int, nbytes: int) -> RawBuffer:
        """Memory for the frame's executions, made when first asked for."""
        key = (root, index)
        if key not in self._memory:
            self._memory[key] = RawBuffer.allocate(self.device, nbytes)
        return self._memory[key]

    def owns(self, buffer: RawBuffer) -> bool:
        """Whether the memory of ``buffer`` is the frame's."""
        memory = buffer.storage[0]
        return any(own.storage[0] is memory for own in self._memory.values())

    def recover(self) -> None:
        """Let the streams forget a failure, so that the next execution runs."""
        for stream in self.streams:
            if stream.error is not None:
                stream.recover()

    def close(self) -> None:
        """Release everything; nothing of the frame may run any more."""
        if self.graphs is not None:
            self.graphs.close()
        for stream in self.streams:
            stream.close()
        for buffer in self._memory.values():
            buffer.close()


class Run:
    """Gives the steps of a program to a frame's streams; ``memory`` has its inputs and outputs."""

    def __init__(self, loaded: LoadedProgram, frame: Frame, memory: Memory) -> None:
        self._frame = frame
        self._kernels = loaded.kernels
        self._predicates = loaded.predicates
        memory = {
            **memory,
            **{("constant", index): buffer for index, buffer in enumerate(loaded.constants)},
            ("arena", 0): frame.memory("arena", 0, 0),
        }
        self._memory = memory
        self._addresses = {key: buffer.address for key, buffer in memory.items()}
        #: The event of the latest work on each stream.
        self._last: list[Event | None] = [None] * len(frame.streams)
        #: What brings inputs, as far as it is under way, by root and index of what it writes.
        self._uploads: dict[tuple[str, int], Event] = {}
        for index, signature in enumerate(loaded.program.inputs):
            event = memory["input", index].definition
            if not event.ok:
                self._uploads["input", index] = event
                if signature.alias is not None:  # its memory may be that of the output
                    self._uploads["output", signature.alias] = event

    @property
    def last(self) -> list[Event]:
        """What everything given to the streams so far has ended with."""
        return [event for event in self._last if event is not None]

    def nodes(self, nodes: Sequence[Node]) -> None:
        """Run the nodes in order; blocks where the host must know a predicate.

        What is given to streams fails their events. Raises what keeps a step from being given, or a predicate
        from being known; :attr:`last` says what is still running then.
        """
        for node in nodes:
            if isinstance(node, Segment):
                self._segment(node)
            elif isinstance(node, LoopNode):
                self.nodes(node.cond)
                while self._read(node.predicate, "pred"):
                    self.nodes(node.body)
                    self.nodes(node.cond)
            else:
                self.nodes(node.branches[self._choose(node)])

    def _choose(self, node: BranchNode) -> int:
        if node.boolean:
            return 0 if self._read(node.selector, "pred") else 1
        index, count = self._read(node.selector, "s32"), len(node.branches)
        return index if 0 <= index < count else count - 1

    def _read(self, place: BufferRange, primitive: str) -> int:
        buffer = self._memory[place.root, place.index]
        stream = self._frame.streams[0]
        pending = self._predicates.start(buffer, place.offset, primitive, self.last, stream)
        return int(pending.wait())

    def _segment(self, segment: Segment) -> None:
        graphs = self._frame.graphs
        if graphs is not None and not observer.active:
            graph = graphs.ready(segment, self._addresses, self._memory, self._frame.owns)
            if graph is not None:
                waits = [event for event in self._last[1:] if event is not None]
                waits += self._uploads_of([p for step in segment.steps for p in ranges_of(step)])
                self._last[0] = graph.launch(self._frame.streams[0], waits)
                return
        before = list(self._last)
        events: list[Event] = []
        for placed in segment.steps:
            waits = [events[number] for number in placed.waits]
            if placed.first:
                waits += [e for s, e in enumerate(before) if e is not None and s != placed.stream]
            event = self._step(placed, waits)
            events.append(event)
            self._last[placed.stream] = event

    def _uploads_of(self, places: Sequence[BufferRange]) -> list[Event]:
        """What writes ``places`` from the host."""
        if not self._uploads:
            return []
        roots = {(place.root, place.index) for place in places}
        found = [self._uploads[key] for key in roots if key in self._uploads]
        return list(dict.fromkeys(found))

    def _step(self, placed: PlacedStep, waits: list[Event]) -> Event:
        step, stream = placed.step, self._frame.streams[placed.stream]
        places = ranges_of(placed)
        waits += self._uploads_of(places)
        if isinstance(step, LaunchStep):
            kernel, loaded = self._kernels[step.kernel]
            arguments = [self._addresses[p.root, p.index] + p.offset for p in places]
            touches = None
            if observer.active:
                touches = self._accesses(places), self._accesses(step.writes)
            return loaded.launch(
                stream, kernel.grid, kernel.block, arguments, waits=waits, touches=touches
            )
        return self._copy(step.source, step.destination, stream, waits)

    def _copy(
        self, source: BufferRange, target: BufferRange, stream: Stream, waits: list[Event]
    ) -> Event:
        origin = self._memory[source.root, source.index]
        destination = self._memory[target.root, target.index]
        if origin.address + source.offset == destination.address + target.offset:
            return _after(stream, waits)
        (to, to_offset), (of, of_offset) = destination.storage, origin.storage
        device = self._frame.device
        return device.copy(
            to,
            to_offset + target.offset,
            of,
            of_offset + source.offset,
            source.nbytes,
            stream,
            waits,
        )

    def _accesses(self, places: Sequence[BufferRange]) -> tuple[observer.Access, ...]:
        return tuple(
            observer.Access(self._addresses[p.root, p.index] + p.offset, p.nbytes)
            for p in places
            if p.nbytes
        )


def _after(stream: Stream, waits: Sequence[Event]) -> Event:
    """An event in the order of ``stream`` that is also after ``waits``."""
    for event in waits:
        stream.wait_event(event)
    return stream.record_event("nothing to copy")


def root_cause(error: BaseException) -> BaseException:
    """The failure that began a chain of work that was not run because of it."""
    while isinstance(error, DependencyError) and error.__cause__ is not None:
        error = error.__cause__
    return error
