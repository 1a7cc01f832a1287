# SPDX-License-Identifier: Apache-2.0
"""Executables: compiled programs as Python callables over numpy arrays.

Arrays go in and out without copies. Inputs need the natural alignment of their elements only, so any
C-contiguous numpy array is used in place. One executable may run in several Python threads at once;
the global lock is released while native code runs.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime import artifact, custom_calls, lapack, trampoline
from gristmill.runtime.arguments import admit, admit_outputs, check_count, chosen_inputs, describe
from gristmill.runtime.code import link
from gristmill.runtime.memory import host
from gristmill.runtime.program import CONTEXT_BYTES, PAGE, SITES, Program, Signature, align_up
from gristmill.runtime.threads import num_threads

Array = np.ndarray[Any, Any]
Results = Array | tuple[Array, ...]

#: Results below this come from numpy, whose small-block cache is faster than the pool.
_POOLED_RESULT_BYTES = 16 << 10

#: Arenas up to this stay with a call frame; larger ones are lent by the pool for each call.
_FRAME_ARENA_BYTES = 64 << 10


_ndarray = np.ndarray


class _Frame:
    """Native memory of one running call: the trampoline's frame and the tables it points to."""

    __slots__ = ("address", "arena", "arena_threads", "arrays", "context", "pointers", "slots")

    def __init__(self, inputs: int, outputs: int, sites: custom_calls.Sites | None) -> None:
        count = inputs + outputs
        self.context = (ctypes.c_uint64 * (CONTEXT_BYTES // 8 if sites else 1))()
        if sites is not None:
            self.context[SITES // 8] = sites.address
        self.slots = (ctypes.c_uint64 * trampoline.FRAME_SLOTS)()
        self.arrays = (ctypes.c_uint64 * count)()
        self.pointers = (ctypes.c_uint64 * count)()
        self.address = ctypes.addressof(self.slots)
        self.arena: Array | None = None
        self.arena_threads = 0
        self.slots[trampoline.INPUTS] = ctypes.addressof(self.pointers)
        self.slots[trampoline.OUTPUTS] = ctypes.addressof(self.pointers) + 8 * inputs
        self.slots[trampoline.ARRAYS] = ctypes.addressof(self.arrays)
        self.slots[trampoline.COUNT] = count
        self.slots[trampoline.CHECKED] = inputs
        self.slots[trampoline.CONTEXT] = ctypes.addressof(self.context)


class Executable:
    """A program loaded into this process. Call it with arrays; a context manager that closes it.

    Attributes:
        name: the program's name.
        inputs, outputs: signatures in calling order.
    """

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self.inputs: tuple[Signature, ...] = tuple(program.inputs)
        self.outputs: tuple[Signature, ...] = tuple(program.outputs)
        self._program = program
        self._constants = [host.aligned_copy(c) for c in program.constants]
        self._constant_pointers = (ctypes.c_uint64 * max(len(self._constants), 1))(
            *(host.data_address(c) for c in self._constants)
        )
        self._arena_bytes = align_up(program.arena_bytes)
        self._scratch_bytes = align_up(program.scratch_bytes)
        self._parallel = program.parallel
        self._call = trampoline.trampoline()
        self._input_count = len(self.inputs)
        self._expected = _expected_table(self.inputs)
        self._output_makers = [_maker(s) for s in self.outputs]
        self._frames: list[_Frame] = []
        self._frame_count = 0
        self._lock = threading.Lock()
        self._closed = False
        self._sites = custom_calls.bind(program.custom_calls, f"program {self.name}")
        self._code = link(program.objects)
        self._entry = self._code.address(program.entry)
        if any(name.startswith(lapack.PREFIX) for name in self._code.externals):
            self._call = lapack.limited(self._call)

    def __call__(
        self,
        *arrays: object,
        out: Array | Sequence[Array | None] | None = None,
        donate: bool | Iterable[int | str] = (),
        threads: int | None = None,
    ) -> Results:
        """Run the program.

        Args:
            arrays: one array for each input.
            out: arrays to write the results to: one, or a sequence with an entry (an array, or None
                for a fresh one) for each output.
            donate: inputs, by index or name, whose memory results may take over; True for all that
                can. A donated array that was taken over is returned as that result.
            threads: threads to use; default: :func:`gristmill.runtime.threads.num_threads`.

        Returns:
            The result when there is one output, else a tuple of results.

        Raises:
            InputError: an array does not fit the signature; the message names it.
            CustomCallError: a custom call failed; donated arrays may have been overwritten.
            ResourceExhaustedError: there is no memory for results or temporaries.
        """
        if out is not None or donate:
            return self._run_with_buffers(arrays, out, donate, threads)
        if len(arrays) != self._input_count:
            check_count(len(arrays), self.inputs, "arguments")
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._new_frame()
        try:
            objects = frame.arrays
            index = 0
            for array in arrays:
                if array.__class__ is not _ndarray:
                    return self._run_with_buffers(arrays, None, (), threads)
                objects[index] = id(array)
                index += 1
            results: list[Array] = []
            for make, shape, dtype in self._output_makers:
                result = make(shape, dtype)
                objects[index] = id(result)
                results.append(result)
                index += 1
            if not self._parallel and frame.arena_threads and (threads is None or threads > 0):
                misfit = self._call(frame.address)  # The frame's arena and thread count stand.
            else:
                misfit = self._run(frame, threads)
            if misfit < 0:
                raise self._failure(frame)
            if misfit:
                # Says what is wrong; or runs, when the array is odd but fits.
                return self._run_with_buffers(arrays, None, (), threads)
        finally:
            self._frames.append(frame)
            if self._closed:
                self._retire()
        return results[0] if len(results) == 1 else tuple(results)

    def save(self, path: str | Path) -> None:
        """Write the program as an artifact that :func:`gristmill.load` runs; atomic."""
        artifact.save(self._program, path)

    def close(self) -> None:
        """Unload the code, after the calls that are running; idempotent."""
        self._closed = True
        self._retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # When Python shuts down the memory goes with the process.
        if not sys.is_finalizing() and hasattr(self, "_entry"):
            self.close()

    def __repr__(self) -> str:
        def show(signatures: Sequence[Signature]) -> str:
            return ", ".join(f"{s.name}: {s.type}" for s in signatures)

        return f"<Executable {self.name}({show(self.inputs)}) -> ({show(self.outputs)})>"

    def _run(self, frame: _Frame, threads: int | None) -> int:
        """Call with a fitting arena and thread count; returns what the trampoline says."""
        if threads is not None and threads < 1:
            raise InputError(f"threads must be at least 1, not {threads}")
        count = 1
        if self._parallel:
            count = num_threads() if threads is None else threads
        frame.slots[trampoline.NUM_THREADS] = count
        if count <= frame.arena_threads:
            return self._call(frame.address)
        nbytes = max(self._arena_bytes + count * self._scratch_bytes, 1)
        if nbytes <= _FRAME_ARENA_BYTES:
            frame.arena = host.aligned_empty((nbytes,), np.dtype(np.uint8), PAGE)
            frame.arena_threads = count
            frame.slots[trampoline.ARENA] = host.data_address(frame.arena)
            return self._call(frame.address)
        block = host.PROCESS_POOL.acquire(nbytes)
        try:
            frame.slots[trampoline.ARENA] = block.address
            return self._call(frame.address)
        finally:
            # A small arena that the frame had for fewer threads has been displaced.
            frame.arena_threads = 0
            host.PROCESS_POOL.release(block)

    def _new_frame(self) -> _Frame:
        with self._lock:
            if self._closed:
                raise InputError(f"executable {self.name} has been closed")
            self._frame_count += 1
        frame = _Frame(len(self.inputs), len(self.outputs), self._sites)
        frame.slots[trampoline.CONSTANTS] = ctypes.addressof(self._constant_pointers)
        frame.slots[trampoline.ENTRY] = self._entry
        frame.slots[trampoline.EXPECTED] = ctypes.addressof(self._expected)
        return frame

    def _failure(self, frame: _Frame) -> BaseException:
        assert self._sites is not None, "only custom calls fail"
        return self._sites.failure(ctypes.addressof(frame.context))

    def _retire(self) -> None:
        """Drop idle frames; unload the code when none is in use any more."""
        with self._lock:
            while self._frames:
                self._frames.pop()
                self._frame_count -= 1
            if self._frame_count == 0:
                self._code.close()

    def _run_with_buffers(
        self,
        arrays: Sequence[object],
        out: Array | Sequence[Array | None] | None,
        donate: bool | Iterable[int | str],
        threads: int | None,
    ) -> Results:
        """The general call: with ``out`` arrays and donated inputs."""
        check_count(len(arrays), self.inputs, "arguments")
        inputs = [admit(a, s, i) for i, (a, s) in enumerate(zip(arrays, self.inputs, strict=True))]
        targets = admit_outputs(out, self.outputs)
        self._take_donated(inputs, targets, chosen_inputs(donate, self.inputs))
        results = [
            _maker(s)[0](s.type.shape, s.type.element.dtype) if t is None else t
            for t, s in zip(targets, self.outputs, strict=True)
        ]
        copies = self._separate(inputs, results)
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._new_frame()
        try:
            for index, array in enumerate([*inputs, *results]):
                frame.arrays[index] = id(array)
            frame.slots[trampoline.CHECKED] = 0  # It has been done, more generously.
            if self._run(frame, threads):
                raise self._failure(frame)
        finally:
            frame.slots[trampoline.CHECKED] = len(self.inputs)
            self._frames.append(frame)
            if self._closed:
                self._retire()
        for index, target in copies.items():
            target[...] = results[index]
            results[index] = target
        return results[0] if len(results) == 1 else tuple(results)

    def _take_donated(
        self, inputs: Sequence[Array], targets: list[Array | None], donated: set[int]
    ) -> None:
        """Let outputs without a target take over the donated inputs they alias."""
        for index in sorted(donated):
            signature, array = self.inputs[index], inputs[index]
            if not array.flags.writeable:
                where = describe("argument", index, signature)
                raise InputError(f"{where}: a donated array must be writeable")
            if signature.alias is None or targets[signature.alias] is not None:
                continue
            # Memory that another result goes to cannot hold this one too.
            if not any(t is not None and np.may_share_memory(array, t) for t in targets):
                targets[signature.alias] = array

    def _separate(self, inputs: Sequence[Array], results: list[Array]) -> dict[int, Array]:
        """Replace results that overlap an input, unless the program allows exactly that.

        Returns the arrays to copy the replacements to afterwards, by output index.
        """
        copies: dict[int, Array] = {}
        for index, result in enumerate(results):
            for number, array in enumerate(inputs):
                if not np.may_share_memory(result, array):
                    continue
                same = host.data_address(result) == host.data_address(array)
                if not (same and self.inputs[number].alias == index):
                    copies[index] = result
        for index, target in copies.items():
            results[index] = np.empty_like(target)
        return copies


def _expected_table(signatures: Sequence[Signature]) -> ctypes.Array[ctypes.c_uint64]:
    """What the trampoline compares the inputs with."""
    words: list[int] = []
    for signature in signatures:
        kind = signature.type
        words += trampoline.expectation(kind.element.dtype, kind.shape)
    return (ctypes.c_uint64 * len(words))(*words)


def _maker(signature: Signature) -> tuple[Callable[..., Array], tuple[int, ...], np.dtype[Any]]:
    """The function that makes an array for an output, and its arguments."""
    kind = signature.type
    make = host.PROCESS_POOL.empty if kind.nbytes >= _POOLED_RESULT_BYTES else np.empty
    return make, kind.shape, kind.element.dtype
