# SPDX-License-Identifier: Apache-2.0
"""Asynchronous copies to workgroup memory in the simulator: ``nvgpu.device_async_copy``, ``_create_group``, ``_wait``.

PTX ISA, "Data movement and conversion instructions: cp.async", leaves the destination undefined until the thread that
started the copy has waited for its group. So a copy fills its destination with ones (a NaN in every float type) when
it is started, and happens when its thread waits for it, and not at all without that: a missing wait, one that leaves
too many groups running, and a copy over what others still read are all found in the results, and by the checks of
:mod:`.simulator_checks`, for which the start and the end of a copy are both writes. Each thread has a queue of its
running copies in its frame (:mod:`.simulator_queue`).
"""

from __future__ import annotations

from typing import Protocol

from mlir import ir
from mlir.dialects import arith, func, llvm, memref, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.gpu.frame import type_bytes
from gristmill.compiler.lowering.simulator_checks import Instrumenter
from gristmill.compiler.lowering.simulator_queue import AWAIT, COMMIT, COPY, QUEUE_WORDS


class Thread(Protocol):
    """What the rules need of the thread being converted; ``queue`` is null until the first of them makes it."""

    checker: Instrumenter
    checks: bool
    queue: ir.Value | None

    @property
    def record(self) -> ir.Value:
        """The thread's record."""
        ...


def start(thread: Thread, op: ir.Operation) -> list[ir.Value]:
    """``nvgpu.device_async_copy``: ``dstElements`` elements, those after the first ``srcElements`` zero."""
    rank = ir.MemRefType(op.operands[0].type).rank
    target, source = op.operands[0], op.operands[1 + rank]
    sizes = [ir.MemRefType(x.type).rank for x in (target, source)]
    where = list(op.operands)[1 : 1 + sizes[0]]
    origin = list(op.operands)[2 + sizes[0] : 2 + sizes[0] + sizes[1]]
    kind = ir.MemRefType(target.type).element_type
    count = ir.IntegerAttr(op.attributes["dstElements"]).value
    rest = list(op.operands)[2 + sum(sizes) :]
    valid = rest[0] if rest else build.index_value(count)
    text = thread.checker.text(f"{thread.checker.kernel}: {op.name} to {target.type}")
    if thread.checks:
        _check_source(thread, source, origin, valid, text)
    _poison(target, where, kind, count)
    width = type_bytes(kind)
    numbers = [
        _address(target, where),
        _address(source, origin),
        _constant(count * width),
        arith.MulIOp(_wide(valid), _constant(width)).result,
    ]
    func.CallOp([], COPY, [thread.record, _queue(thread, op), *numbers, text])
    return [_token()]


def close_group(thread: Thread, op: ir.Operation) -> list[ir.Value]:
    """``nvgpu.device_async_create_group``: what was started since the last group."""
    text = thread.checker.text(f"{thread.checker.kernel}: {op.name}")
    func.CallOp([], COMMIT, [thread.record, _queue(thread, op), text])
    return [_token()]


def wait(thread: Thread, op: ir.Operation) -> list[ir.Value]:
    """``nvgpu.device_async_wait``: all groups but the last ``numGroups`` are finished."""
    keep = ir.IntegerAttr(op.attributes["numGroups"]).value if "numGroups" in op.attributes else 0
    text = thread.checker.text(f"{thread.checker.kernel}: {op.name}")
    numbers = [_constant(keep), _constant(int(thread.checks))]
    func.CallOp([], AWAIT, [thread.record, _queue(thread, op), *numbers, text])
    return []


def declare(module: ir.Module) -> None:
    """Declare the functions that the rules call; :mod:`.simulator_queue` defines them."""
    pointer, i64 = ir.Type.parse("!llvm.ptr"), ir.IntegerType.get_signless(64)
    with ir.InsertionPoint(module.body):
        func.FuncOp(COPY, ([pointer, pointer, *[i64] * 4, pointer], []), visibility="private")
        func.FuncOp(COMMIT, ([pointer, pointer, pointer], []), visibility="private")
        func.FuncOp(AWAIT, ([pointer, pointer, i64, i64, pointer], []), visibility="private")


def _queue(thread: Thread, op: ir.Operation) -> ir.Value:
    """The thread's queue, made at the function's entry when it is first needed."""
    if thread.queue is not None:
        return thread.queue
    function = op.parent
    while function is not None and function.name != "func.func":
        function = function.parent
    assert function is not None, "an operation of a thread function"
    i64, pointer = ir.IntegerType.get_signless(64), ir.Type.parse("!llvm.ptr")
    with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]):
        queue = llvm.AllocaOp(pointer, _constant(QUEUE_WORDS), ir.TypeAttr.get(i64)).result
        for number in range(4):
            place = llvm.GEPOp(pointer, queue, [], [number], i64, None).result
            llvm.StoreOp(_constant(0), place)
    thread.queue = queue
    return queue


def _token() -> ir.Value:
    kind = ir.Type.parse("!nvgpu.device.async.token")
    return ir.Operation.create(
        "builtin.unrealized_conversion_cast", [kind], [_constant(0)]
    ).results[0]


def _check_source(
    thread: Thread, source: ir.Value, origin: list[ir.Value], valid: ir.Value, text: ir.Value
) -> None:
    """Report the first and the last element that are read, if there are any, when outside the source."""
    some = arith.CmpIOp(arith.CmpIPredicate.ne, valid, build.index_value(0)).result
    *outer, extent = ir.MemRefType(source.type).shape
    with build.if_then(some):
        for index, limit in zip(origin, [*outer, extent], strict=True):
            thread.checker.bound(index, limit, text)
        last = build.sub(build.add(origin[-1], valid), 1)
        thread.checker.bound(build.index_value(last), extent, text)


def _poison(target: ir.Value, where: list[ir.Value], kind: ir.Type, count: int) -> None:
    """Fill the destination with ones; a store like any other, so it is checked like one."""
    bits = ir.IntegerType.get_signless(8 * type_bytes(kind))
    lanes = ir.VectorType.get([count], bits)
    ones = ir.DenseElementsAttr.get_splat(lanes, ir.IntegerAttr.get(bits, -1))
    value = arith.ConstantOp(lanes, ones).result
    if bits != kind:
        value = vector.BitCastOp(ir.VectorType.get([count], kind), value).result
    vector.StoreOp(value, target, where)


def _address(buffer: ir.Value, index: list[ir.Value]) -> ir.Value:
    kind = ir.MemRefType(buffer.type)
    strides, offset = kind.get_strides_and_offset()
    place: build.Index = offset
    for component, stride in zip(index, strides, strict=True):
        place = build.add(place, build.mul(component, stride))
    start = memref.ExtractAlignedPointerAsIndexOp(buffer).result
    return _wide(
        build.index_value(build.add(build.mul(place, type_bytes(kind.element_type)), start))
    )


def _wide(index: ir.Value) -> ir.Value:
    return arith.IndexCastOp(ir.IntegerType.get_signless(64), index).result


def _constant(number: int) -> ir.Value:
    return arith.ConstantOp(ir.IntegerType.get_signless(64), number).result
