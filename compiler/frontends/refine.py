# SPDX-License-Identifier: Apache-2.0
"""Dynamic shapes of a source module made concrete, in place.

:func:`flatten` prepares a parsed module once: every call inlined into ``@main``, bounds taken off the types.
:func:`refine` then takes a copy of it to concrete argument shapes: jaxlib's refinement passes propagate them,
``set_dimension_size`` to a known size becomes a slice, and the dynamic operations become static ones.
:func:`shape_arguments` says which arguments have to be known by value, not only by shape.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import cast

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from gristmill.compiler.frontends.source import short_location
from gristmill.compiler.frontends.views import (
    Value,
    arguments,
    blocks,
    defining_op,
    first_block,
    operands,
    operations,
    regions,
    results,
    walk,
)
from gristmill.errors import InputError, UnsupportedError

#: Arguments of more elements than this are never taken for shapes.
MAX_SHAPE_ELEMENTS = 64

#: Operations whose operands, from the given position on, are sizes, and what they hold is needed only if
#: the result's type does not say it already.
_SHAPED_BY = {
    "chlo.dynamic_reshape": 1,
    "stablehlo.dynamic_broadcast_in_dim": 1,
    "stablehlo.dynamic_gather": 2,
    "stablehlo.dynamic_iota": 0,
    "stablehlo.dynamic_reshape": 1,
    "stablehlo.real_dynamic_slice": 2,
    "stablehlo.rng": 2,
}
#: As above, but the operands have to be constants in any case.
_MADE_BY = {
    "stablehlo.dynamic_conv": 2,
    "stablehlo.dynamic_pad": 2,
    "stablehlo.set_dimension_size": 1,
}
#: Custom calls that only XLA's own refinement knows.
_XLA_CALLS = {
    f"stablehlo.{name}"
    for name in "dynamic_approx_top_k dynamic_reduce_window dynamic_rng_bit_generator dynamic_top_k".split()
}
_ASSERTION = "shape_assertion"
_KEPT_ASSERTION = "gristmill.shape_assertion"


def is_dynamic(module: ir.Operation) -> bool:
    """Whether a parsed module has dynamic dimensions, or operations that make them."""
    for op in walk(module):
        if op.name in _SHAPED_BY or op.name in _MADE_BY:
            return True
        if any(_unknown(value.type) for value in results(op)):
            return True
        for block in blocks(regions(op)[0]) if op.name == "func.func" else ():
            if any(_unknown(value.type) for value in arguments(block)):
                return True
    return False


def _unknown(kind: ir.Type) -> bool:
    return isinstance(kind, ir.ShapedType) and kind.has_rank and not kind.has_static_shape


# Once for each module


def flatten(module: ir.Operation, entry: ir.Operation) -> None:
    """Inline every call into ``entry`` and take the bounds off all types."""
    run_passes(module, "func.func(stablehlo-legalize-composite-to-call)")
    _name_variables(entry)
    _inline(module, entry)
    run_passes(module, "symbol-dce,cse")
    _drop_bounds(module)


def _name_variables(entry: ir.Operation) -> None:
    """Name the arguments that JAX made for dimension variables."""
    if "arg_attrs" not in entry.attributes:
        return
    dictionaries = ir.ArrayAttr(entry.attributes["arg_attrs"])
    for argument, dictionary in zip(arguments(first_block(entry)), dictionaries, strict=True):
        named = ir.DictAttr(dictionary)
        if "jax.global_constant" in named:
            _take_name(
                argument, ir.Location.name(ir.StringAttr(named["jax.global_constant"]).value)
            )


def _inline(module: ir.Operation, entry: ir.Operation) -> None:
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in operations(first_block(module))
        if op.name == "func.func"
    }
    pending = [(op, ()) for op in walk(entry) if op.name == "func.call"]
    while pending:
        call, path = cast("tuple[ir.Operation, tuple[str, ...]]", pending.pop())
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if name in path:
            raise UnsupportedError(f"recursive call of @{name} is not supported")
        body = _splice(call, functions[name])
        pending += [
            (inner, (*path, name)) for op in body for inner in walk(op) if inner.name == "func.call"
        ]
    for name, function in functions.items():
        if function != entry:  # so that what is not called any more can go
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        elif name != "main":
            function.attributes["sym_name"] = ir.StringAttr.get("main")


def _splice(call: ir.Operation, callee: ir.Operation) -> list[ir.Operation]:
    """Replace ``call`` by a copy of the callee's body; returns the operations that took its place."""
    copy = callee.clone(ip=ir.InsertionPoint(callee)).operation
    block = first_block(copy)
    for parameter, operand in zip(arguments(block), operands(call), strict=True):
        if _is_argument(operand) and isinstance(parameter.location, ir.NameLoc):
            # jax.export names the arguments of the function it wraps, not those of the entry
            _take_name(operand, parameter.location)
        parameter.replace_all_uses_with(operand)
    *body, terminator = operations(block)
    for op in body:
        op.move_before(call)
    for result, value in zip(results(call), operands(terminator), strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()
    return body


def _is_argument(value: Value) -> bool:
    owner = value.owner
    return isinstance(owner, ir.Block) and owner.owner.operation.name == "func.func"


def _take_name(value: Value, location: ir.Location) -> None:
    """Name the entry's argument, unless it has a name."""
    if not isinstance(value.location, ir.NameLoc):
        cast("ir.BlockArgument[ir.Type]", ir.BlockArgument(value)).set_location(location)


def _drop_bounds(module: ir.Operation) -> None:
    for op in walk(module):
        values = results(op)
        for region in regions(op):
            for block in blocks(region):
                values += arguments(block)
        for value in values:
            kind = value.type
            if isinstance(kind, ir.RankedTensorType) and kind.encoding is not None:
                value.set_type(ir.RankedTensorType.get(kind.shape, kind.element_type))
        if op.name == "func.func":
            _retype(op)


def _retype(function: ir.Operation) -> None:
    """Make the type of ``function`` that of its arguments and of what it returns."""
    block = first_block(function)
    kind = ir.FunctionType.get(
        [value.type for value in arguments(block)],
        [value.type for value in operands(operations(block)[-1])],
    )
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


def keep_assertions(module: ir.Operation) -> None:
    """Leave of a flattened module what its shape assertions depend on."""
    block = first_block(_main(module))
    *body, terminator = operations(block)
    ir.Operation.create("func.return", loc=terminator.location, ip=ir.InsertionPoint(terminator))
    terminator.erase()
    for op in reversed(body):
        asserts = op.name == "stablehlo.custom_call" and _target(op) == _ASSERTION
        if not asserts and not any(list(result.uses) for result in results(op)):
            op.erase()
    entry = _main(module)
    if "res_attrs" in entry.attributes:
        del entry.attributes["res_attrs"]
    _retype(entry)


def bounds(kind: ir.RankedTensorType) -> tuple[int | None, ...]:
    """The upper bound of every dimension; ``None`` where the type has none."""
    limits: Sequence[int] = ()
    if kind.encoding is not None:
        limits = stablehlo.TypeExtensions(kind.encoding).bounds
    none = ir.ShapedType.get_dynamic_size()
    return tuple(None if limit == none else limit for limit in limits) or (None,) * kind.rank


# Which arguments have to be known by value


def shape_arguments(entry: ir.Operation) -> list[int]:
    """Indices of the arguments of a flattened entry function that some size is computed from.

    Only static integer arguments of at most :data:`MAX_SHAPE_ELEMENTS` elements count.
    """
    block = first_block(entry)
    numbers = {value: index for index, value in enumerate(arguments(block))}
    pending = [value for op in walk(entry) for value in _sizes(op)]
    seen: set[Value] = set()
    found: set[int] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in numbers:
            if _may_be_shape(value.type):
                found.add(numbers[value])
            continue
        producer = defining_op(value)
        if producer is None:  # inside a region: whatever its operation reads
            owner = value.owner
            producer = owner.owner.operation if isinstance(owner, ir.Block) else None
        if producer is not None and producer.name != "stablehlo.get_dimension_size":
            pending += [v for op in walk(producer) for v in operands(op)]
    return sorted(found)


def _sizes(op: ir.Operation) -> list[Value]:
    """The operands of ``op`` that have to be constants for its result to have a static shape."""
    inputs = operands(op)
    if op.name in _MADE_BY:
        return inputs[_MADE_BY[op.name] :]
    if not any(_unknown(result.type) for result in results(op)):
        return []
    if op.name == "stablehlo.real_dynamic_slice":
        return [_extent(inputs[1], inputs[2]), inputs[3]]
    if op.name in _SHAPED_BY:
        return inputs[_SHAPED_BY[op.name] :]
    if op.name == "stablehlo.custom_call":
        return [value for value in inputs if _may_be_shape(value.type)]
    return []


def _extent(start: Value, limit: Value) -> Value:
    """``n`` when ``limit`` is ``start + n``, else ``limit``: a slice may move without changing its size."""
    sum_ = defining_op(limit)
    if sum_ is not None and sum_.name == "stablehlo.add" and start in operands(sum_):
        left, right = operands(sum_)
        return right if left == start else left
    return limit


def _may_be_shape(kind: ir.Type) -> bool:
    if not isinstance(kind, ir.RankedTensorType) or _unknown(kind):
        return False
    integral = isinstance(kind.element_type, ir.IntegerType) and kind.element_type.width > 1
    return integral and int(np.prod(kind.shape)) <= MAX_SHAPE_ELEMENTS


# Once for each set of shapes


def refine(
    module: ir.Operation,
    shapes: Sequence[Sequence[int]],
    values: Mapping[int, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
    name: str,
) -> ir.Operation:
    """Take a flattened module, of one function ``@main``, to concrete argument shapes; it is consumed.

    Args:
        module: the module.
        shapes: the shape of every argument.
        values: the content of arguments, by index, that are to become constants.
        name: stands for the file in locations.

    Returns the refined module, another operation in cases. Raises ``InputError`` when the shapes
    contradict the program. Dimensions that nothing determines stay unknown.
    """
    entry = _main(module)
    parameters = arguments(first_block(entry))
    for index, value in values.items():
        _make_constant(parameters[index], value, first_block(entry))
    types = [
        ir.RankedTensorType.get(shape, ir.RankedTensorType(parameter.type).element_type)
        if isinstance(parameter.type, ir.RankedTensorType)
        else parameter.type
        for shape, parameter in zip(shapes, parameters, strict=True)
    ]
    listed = ",".join(str(kind) for kind in types)
    try:
        run_passes(module, f"stablehlo-refine-arguments{{types={listed}}},{_REFINE}")
        if _calls(module) & _XLA_CALLS:
            module = _refine_as_xla(module)
        while _slice_sized(module):
            run_passes(module, _REFINE)
        run_passes(module, "func.func(stablehlo-canonicalize-dynamism)")
    except ir.MLIRError as error:
        raise InputError(f"the shapes do not fit the program: {diagnostic(error, name)}") from None
    return module


_REFINE = "stablehlo-refine-shapes,cse,stablehlo-refine-shapes"


def _main(module: ir.Operation) -> ir.Operation:
    for op in operations(first_block(module)):
        if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return op
    raise AssertionError("a flattened module has a @main")


def _make_constant(
    parameter: Value, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]], block: ir.Block
) -> None:
    text = str(np.asarray(value).tolist()) if value.size else ""
    constant = ir.Operation.create(
        "stablehlo.constant",
        results=[parameter.type],
        attributes={"value": ir.Attribute.parse(f"dense<{text}> : {parameter.type}")},
        loc=parameter.location,
        ip=ir.InsertionPoint.at_block_begin(block),
    )
    parameter.replace_all_uses_with(results(constant)[0])


def _slice_sized(module: ir.Operation) -> bool:
    """Turn each ``set_dimension_size`` of a static operand to a constant size into a slice."""
    changed = False
    for op in walk(module):
        if op.name != "stablehlo.set_dimension_size":
            continue
        operand, size = operands(op)
        producer = defining_op(size)
        if _unknown(operand.type) or producer is None or producer.name != "stablehlo.constant":
            continue
        count = int(ir.DenseIntElementsAttr(producer.attributes["value"])[0])
        dimension = ir.IntegerAttr(op.attributes["dimension"]).value
        _to_slice(op, operand, dimension, count)
        changed = True
    if changed:
        _retype(_main(module))
    return changed


def _to_slice(op: ir.Operation, operand: Value, dimension: int, count: int) -> None:
    kind = ir.RankedTensorType(operand.type)
    shape = list(kind.shape)
    if not 0 <= count <= shape[dimension]:
        raise InputError(
            f"set_dimension_size: size {count} of dimension {dimension} is not between 0 and {shape[dimension]}"
        )
    shape[dimension] = count
    part = ir.Operation.create(
        "stablehlo.slice",
        results=[ir.RankedTensorType.get(shape, kind.element_type)],
        operands=[operand],
        attributes={
            "start_indices": ir.DenseI64ArrayAttr.get([0] * len(shape)),
            "limit_indices": ir.DenseI64ArrayAttr.get(shape),
            "strides": ir.DenseI64ArrayAttr.get([1] * len(shape)),
        },
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    results(op)[0].replace_all_uses_with(results(part)[0])
    op.erase()


def _calls(module: ir.Operation) -> set[str]:
    return {_target(op) for op in walk(module) if op.name == "stablehlo.custom_call"}


def _target(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _refine_as_xla(module: ir.Operation) -> ir.Operation:
    """XLA's own refinement, which knows its custom calls; it would drop the shape assertions."""
    _rename_calls(module, _ASSERTION, _KEPT_ASSERTION)
    bytecode = io.BytesIO()
    module.write_bytecode(bytecode)
    converter = import_module("jaxlib._jax").mlir
    try:
        refined: bytes = converter.refine_polymorphic_shapes(
            bytecode.getvalue(), enable_shape_assertions=False, validate_static_shapes=False
        )
    except (RuntimeError, ValueError) as error:
        message = str(error).strip().partition("\n")[0]
        raise InputError(f"the shapes do not fit the program: {message}") from None
    result = ir.Module.parse(refined).operation
    _rename_calls(result, _KEPT_ASSERTION, _ASSERTION)
    return result


def _rename_calls(module: ir.Operation, old: str, new: str) -> None:
    for op in walk(module):
        if op.name == "stablehlo.custom_call" and _target(op) == old:
            op.attributes["call_target_name"] = ir.StringAttr.get(new)


def run_passes(module: ir.Operation, pipeline: str) -> None:
    """Run jaxlib's passes; raises ``MLIRError``."""
    passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module)


def diagnostic(error: ir.MLIRError, name: str) -> str:
    """The first message of ``error`` and where it points, in one line."""
    for diagnostic in error.error_diagnostics:
        where = short_location(diagnostic.location, name)
        message = diagnostic.message.strip().partition("\n")[0]
        return f"{where}: {message}" if where else message
    return re.sub(r"\s+", " ", str(error)).strip()
