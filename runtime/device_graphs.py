# SPDX-License-Identifier: Apache-2.0
"""Segments of a program that run again and again, recorded as CUDA graphs: one call gives all their work.

A graph holds addresses. A segment is recorded when it came with the same ones often enough, as the body of a loop
does, or a program that is called with host arrays, whose memory its frame keeps. Whoever launches a graph keeps the
memory alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.device_plan import PlacedStep, Segment
from gristmill.runtime.device_program import BufferRange, CopyStep, DeviceKernel, LaunchStep
from gristmill.runtime.devices.cuda import CudaDevice
from gristmill.runtime.devices.cuda_module import CudaGraph, CudaKernel
from gristmill.runtime.devices.launching import Kernel, LaunchDevice

#: A segment with fewer steps gains nothing.
FEWEST_STEPS = 2

#: How often a segment must have run with the same addresses before it is recorded.
RUNS_BEFORE = 2

_Key = tuple[str, int]


@dataclass
class _Entry:
    """What is known of one segment: the addresses it had last, how often, and its graph."""

    addresses: tuple[int, ...]
    runs: int = 0
    graph: CudaGraph | None = None

    def close(self) -> None:
        if self.graph is not None:
            self.graph.close()
            self.graph = None


class Graphs:
    """The graphs of one frame; not thread-safe."""

    def __init__(self, device: CudaDevice, kernels: Sequence[tuple[DeviceKernel, Kernel]]) -> None:
        self._device = device
        self._kernels = kernels
        self._entries: dict[Segment, _Entry] = {}
        self._roots: dict[Segment, tuple[_Key, ...]] = {}

    @staticmethod
    def of(device: LaunchDevice, kernels: Sequence[tuple[DeviceKernel, Kernel]]) -> Graphs | None:
        """Graphs on ``device``, or None where it has none."""
        return Graphs(device, kernels) if isinstance(device, CudaDevice) else None

    def ready(
        self,
        segment: Segment,
        addresses: Mapping[_Key, int],
        memory: Mapping[_Key, RawBuffer],
        owns: Callable[[RawBuffer], bool],
    ) -> CudaGraph | None:
        """A graph of ``segment`` for these addresses, recorded now or before; None: run its steps.

        A graph holds the memory of its copies: ``owns`` says whether it may.
        """
        if len(segment.steps) < FEWEST_STEPS:
            return None
        roots = self._roots.get(segment)
        if roots is None:
            places = [place for placed in segment.steps for place in ranges_of(placed)]
            roots = tuple(dict.fromkeys((place.root, place.index) for place in places))
            self._roots[segment] = roots
        at = tuple([addresses[key] for key in roots])
        entry = self._entries.get(segment)
        if entry is None or entry.addresses != at:
            if entry is not None:
                entry.close()
            entry = self._entries[segment] = _Entry(at)
        entry.runs += 1
        if (
            entry.graph is None
            and entry.runs > RUNS_BEFORE
            and all(owns(memory[key]) for key in _copied(segment))
        ):
            entry.graph = self._record(segment, addresses, memory)
        return entry.graph

    def _record(
        self, segment: Segment, addresses: Mapping[_Key, int], memory: Mapping[_Key, RawBuffer]
    ) -> CudaGraph:
        with self._device.record_graph() as recorder:
            for placed in segment.steps:
                step = placed.step
                if isinstance(step, LaunchStep):
                    kernel, loaded = self._kernels[step.kernel]
                    assert isinstance(loaded, CudaKernel)
                    at = [addresses[p.root, p.index] + p.offset for p in ranges_of(placed)]
                    recorder.launch(loaded, kernel.grid, kernel.block, at)
                else:
                    (to, to_base) = memory[step.destination.root, step.destination.index].storage
                    (of, of_base) = memory[step.source.root, step.source.index].storage
                    to_at, of_at = to_base + step.destination.offset, of_base + step.source.offset
                    recorder.copy(to, to_at, of, of_at, step.source.nbytes)
        return recorder.graph

    def close(self) -> None:
        """Release all graphs."""
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()


def ranges_of(placed: PlacedStep) -> tuple[BufferRange, ...]:
    """All that a step touches, in the order of a kernel's parameters."""
    step = placed.step
    if isinstance(step, LaunchStep):
        return (*step.reads, *step.writes)
    return (step.source, step.destination)


def _copied(segment: Segment) -> set[_Key]:
    """What the copies of a segment touch, constants aside."""
    ends = [
        end
        for placed in segment.steps
        if isinstance(placed.step, CopyStep)
        for end in (placed.step.source, placed.step.destination)
    ]
    return {(end.root, end.index) for end in ends if end.root != "constant"}
