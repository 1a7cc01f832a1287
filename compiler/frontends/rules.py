# SPDX-License-Identifier: Apache-2.0
"""One table, :data:`RULES`: source operation name to the function that translates it.

A rule gets the translator of the enclosing function and the source operation, builds ``hlo`` operations
and returns one target value a result. It raises ``UnsupportedError`` for a form that is not implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxlib.mlir import ir as source_ir
from jaxlib.mlir.dialects import stablehlo
from mlir import ir
from mlir.dialects import func

from gristmill.compiler.diagnostics import MLIRError
from gristmill.compiler.frontends import batch_norm, collectives, lapack_calls
from gristmill.compiler.frontends.legalise import KEPT_CHLO, KEPT_PREFIX
from gristmill.compiler.frontends.tokens import is_token
from gristmill.compiler.frontends.views import Value, defining_op, operands, results
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError
from gristmill.runtime import custom_calls

if TYPE_CHECKING:
    from gristmill.compiler.frontends.function import FunctionTranslator

Operation = source_ir.Operation
Rule = Callable[["FunctionTranslator", Operation], Sequence[ir.Value]]

#: Custom calls that annotate placement or sharding: the identity on one device.
_IDENTITY_TARGETS = {
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "annotate_device_placement",
    "LayoutConstraint",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
    "xla.sdy.PropagationBarrier",
    "xla.sdy.Sharding",
}
#: Custom calls that stand for one elementwise ``hlo`` operation.
_ELEMENTWISE_TARGETS = {
    f"{prefix}{name}": name
    for prefix in (KEPT_PREFIX, "mhlo.", "chlo.")
    for name in (kept.removeprefix("chlo.") for kept in KEPT_CHLO)
}


# Reading attributes


def _integers(op: Operation, name: str) -> list[int] | None:
    """A list of integers, or ``None`` when the attribute is absent."""
    if name not in op.attributes:
        return None
    value = op.attributes[name]
    if isinstance(value, source_ir.DenseBoolArrayAttr):
        return [int(item) for item in value]
    return [int(item) for item in source_ir.DenseI64ArrayAttr(value)]


def _integer(op: Operation, name: str, default: int = 0) -> int:
    if name not in op.attributes:
        return default
    return int(source_ir.IntegerAttr(op.attributes[name]).value)


def _boolean(op: Operation, name: str) -> bool:
    return name in op.attributes and source_ir.BoolAttr(op.attributes[name]).value


def _padding(op: Operation, rank: int) -> tuple[list[int], list[int]]:
    """The low and high halves of a ``rank × 2`` padding attribute; zeros when absent."""
    if "padding" not in op.attributes:
        return [0] * rank, [0] * rank
    value = source_ir.DenseIntElementsAttr(op.attributes["padding"])
    pairs = [int(value[index]) for index in range(2 * rank)]
    return pairs[::2], pairs[1::2]


def _rank(op: Operation) -> int:
    return len(source_ir.RankedTensorType(operands(op)[0].type).shape)


def _precision(op: Operation) -> dict[str, hlo.AttributeValue]:
    if "precision_config" not in op.attributes:
        return {}
    items = source_ir.ArrayAttr(op.attributes["precision_config"])
    return {"precision": ",".join(stablehlo.PrecisionAttr(item).value for item in items)}


# Rule factories


def _plain(name: str) -> Rule:
    """Same operands and results, no attributes."""

    def rule(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
        return scope.emit(op, name)

    return rule


def _renamed(**sources: str) -> Rule:
    """Same operands and results; each attribute is copied from the source attribute named by value."""

    def rule(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
        name = op.name.partition(".")[2]
        return scope.emit(op, name, **_read_all(op, name, sources))

    return rule


def _read_all(op: Operation, name: str, sources: dict[str, str]) -> dict[str, hlo.AttributeValue]:
    kinds = hlo.OPS[name].attributes
    return {target: _read(op, source, kinds[target]) for target, source in sources.items()}


def _read(op: Operation, name: str, kind: str) -> hlo.AttributeValue:
    if kind == "dims":
        return _integers(op, name) or []
    return _boolean(op, name) if kind == "bool" else _integer(op, name)


def _copied(names: str) -> Rule:
    """As :func:`_renamed` for attributes that have one name on both sides."""
    return _renamed(**{name: name for name in names.split()})


# Constants and elementwise operations


def _constant(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    importer = scope.importer
    result = results(op)[0].type
    array = importer.array(result)
    if array.element.kind == "complex":
        constant = importer.constants.convert_complex(op, array, importer.source)
    else:
        constant = importer.constants.convert(op.attributes["value"], array, importer.source)
    if not constant.splat:
        return scope.emit(op, "constant", value=constant.value)
    scalar = ir.Type.parse(f"tensor<{array.element.name}>")
    value = scope.emit(op, "constant", [], [scalar], value=constant.value)
    return scope.emit(op, "broadcast_in_dim", value, dimensions=())


def _after_all(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    """A token is a truth value that depends on what it comes after."""
    tokens = scope.operands(op)
    if not tokens:
        return scope.emit(op, "constant", value=ir.Attribute.parse("dense<true> : tensor<i1>"))
    joined = tokens[0]
    for token in tokens[1:]:
        (joined,) = scope.emit(op, "and", [joined, token])
    return [joined]


def _scalar_u32_zero(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    return scope.emit(op, "constant", value=ir.Attribute.parse("dense<0> : tensor<ui32>"))


def _compare(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    element = scope.importer.array(operands(op)[0].type).element
    if "compare_type" in op.attributes:
        kind = stablehlo.ComparisonTypeAttr(op.attributes["compare_type"]).value
    elif element.is_float or element.kind == "complex":
        kind = "FLOAT"
    else:
        kind = "UNSIGNED" if element.is_unsigned else "SIGNED"
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    return scope.emit(op, "compare", direction=direction, type=kind)


def _real(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    if scope.importer.array(operands(op)[0].type).element.kind == "complex":
        return scope.emit(op, "real")
    return scope.operands(op)


def _imag(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    element = scope.importer.array(operands(op)[0].type).element
    if element.kind == "complex":
        return scope.emit(op, "imag")
    text = f"tensor<{element.name}>"
    zero = ir.Attribute.parse(f"dense<0.0> : {text}")
    value = scope.emit(op, "constant", [], [ir.Type.parse(text)], value=zero)
    return scope.emit(op, "broadcast_in_dim", value, dimensions=())


def _get_dimension_size(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    size = scope.importer.array(operands(op)[0].type).shape[_integer(op, "dimension")]
    value = ir.Attribute.parse(f"dense<{size}> : tensor<i32>")
    return scope.emit(op, "constant", [], value=value)


def _set_dimension_size(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    raise UnsupportedError("the size is computed at run time")  # known ones have become slices


def _identity(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    return scope.operands(op)


# Indexing


def _gather(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    return scope.emit(
        op,
        "gather",
        offset_dims=numbers.offset_dims,
        collapsed_slice_dims=numbers.collapsed_slice_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.start_indices_batching_dims,
        start_index_map=numbers.start_index_map,
        index_vector_dim=numbers.index_vector_dim,
        slice_sizes=_integers(op, "slice_sizes") or [],
        indices_are_sorted=_boolean(op, "indices_are_sorted"),
    )


def _scatter(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    outlined = scope.outline(op, ["body"])
    return scope.emit(
        op,
        "scatter",
        [*scope.operands(op), *outlined.captures],
        to_apply=outlined.symbols[0],
        update_window_dims=numbers.update_window_dims,
        inserted_window_dims=numbers.inserted_window_dims,
        input_batching_dims=numbers.input_batching_dims,
        scatter_indices_batching_dims=numbers.scatter_indices_batching_dims,
        scatter_dims_to_operand_dims=numbers.scattered_dims_to_operand_dims,
        index_vector_dim=numbers.index_vector_dim,
        indices_are_sorted=_boolean(op, "indices_are_sorted"),
        unique_indices=_boolean(op, "unique_indices"),
    )


# Dynamic operations whose result has a static shape


def _first(name: str, **sources: str) -> Rule:
    """The static form of a dynamic op: the operands that only give the result's shape are dropped."""

    def rule(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
        kept = scope.operands(op)[: len(hlo.OPS[name].operands)]
        return scope.emit(op, name, kept, **_read_all(op, name, sources))

    return rule


def _real_dynamic_slice(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    """With unit strides: a dynamic slice of the result's size, from the elements of the start operand."""
    strides = defining_op(operands(op)[3])
    if strides is None or strides.name != "stablehlo.constant":
        raise UnsupportedError("strides that are not constant are not supported")
    if any(stride != 1 for stride in source_ir.DenseIntElementsAttr(strides.attributes["value"])):
        raise UnsupportedError("strides other than 1 are not supported")
    operand, start = scope.operands(op)[:2]
    element = scope.importer.array(operands(op)[1].type).element.name
    sizes = scope.importer.array(results(op)[0].type).shape
    indices: list[ir.Value] = []
    for axis in range(len(sizes)):
        single = scope.emit(
            op,
            "slice",
            [start],
            [ir.Type.parse(f"tensor<1x{element}>")],
            start_indices=[axis],
            limit_indices=[axis + 1],
            strides=[1],
        )
        indices += scope.emit(op, "reshape", single, [ir.Type.parse(f"tensor<{element}>")])
    return scope.emit(op, "dynamic_slice", [operand, *indices], slice_sizes=sizes)


# Operations with one region


def _reduce(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    outlined = scope.outline(op, ["body"])
    return scope.emit(
        op,
        "reduce",
        [*scope.operands(op), *outlined.captures],
        dimensions=_integers(op, "dimensions") or [],
        to_apply=outlined.symbols[0],
    )


def _reduce_window(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    rank = _rank(op)
    ones = [1] * rank
    low, high = _padding(op, rank)
    outlined = scope.outline(op, ["body"])
    return scope.emit(
        op,
        "reduce_window",
        [*scope.operands(op), *outlined.captures],
        to_apply=outlined.symbols[0],
        window_dimensions=_integers(op, "window_dimensions") or [],
        window_strides=_integers(op, "window_strides") or ones,
        base_dilations=_integers(op, "base_dilations") or ones,
        window_dilations=_integers(op, "window_dilations") or ones,
        padding_low=low,
        padding_high=high,
    )


def _select_and_scatter(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    rank = _rank(op)
    low, high = _padding(op, rank)
    outlined = scope.outline(op, ["select", "scatter"])
    if outlined.captures:
        raise UnsupportedError("its regions use values from outside, which is not supported")
    return scope.emit(
        op,
        "select_and_scatter",
        select=outlined.symbols[0],
        scatter=outlined.symbols[1],
        window_dimensions=_integers(op, "window_dimensions") or [1] * rank,
        window_strides=_integers(op, "window_strides") or [1] * rank,
        padding_low=low,
        padding_high=high,
    )


def _map(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    outlined = scope.outline(op, ["body"])
    inputs = scope.operands(op)
    return scope.emit(
        op,
        "map",
        [*inputs, *outlined.captures],
        to_apply=outlined.symbols[0],
        num_inputs=len(inputs),
    )


def _sort(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    outlined = scope.outline(op, ["comparator"])
    return scope.emit(
        op,
        "sort",
        [*scope.operands(op), *outlined.captures],
        comparator=outlined.symbols[0],
        dimension=_integer(op, "dimension", -1) % max(_rank(op), 1),
        is_stable=_boolean(op, "is_stable"),
    )


# Control flow and calls


def _while(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    outlined = scope.outline(op, ["cond", "body"], forward="body")
    inputs = [*scope.operands(op), *outlined.captures]
    outputs = scope.emit(
        op,
        "while",
        inputs,
        [*scope.result_types(op), *(value.type for value in outlined.captures)],
        cond=outlined.symbols[0],
        body=outlined.symbols[1],
    )
    return outputs[: len(results(op))]


def _if(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    outlined = scope.outline(op, ["true", "false"])
    inputs = [*scope.operands(op), *outlined.captures]
    return scope.emit(op, "if", inputs, branches=outlined.symbols)


def _case(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    outlined = scope.outline(op, [f"branch{index}" for index in range(len(op.regions))])
    inputs = [*scope.operands(op), *outlined.captures]
    return scope.emit(op, "case", inputs, branches=outlined.symbols)


def _call(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    callee = source_ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    call = func.CallOp(
        scope.result_types(op),
        ir.FlatSymbolRefAttr.get(callee),
        scope.operands(op),
        loc=scope.importer.location(op.location),
    )
    return list(call.operation.results)


def _custom_call(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    target = source_ir.StringAttr(op.attributes["call_target_name"]).value
    known = not custom_calls.is_registered(target)  # what the user registers goes first
    if known and target in _IDENTITY_TARGETS:
        return scope.operands(op)
    if known and target in _ELEMENTWISE_TARGETS:
        return scope.emit(op, _ELEMENTWISE_TARGETS[target])
    if known and lapack_calls.is_routine(target):
        return lapack_calls.translate(scope, op, target)
    if _has_computations(op):
        raise UnsupportedError(f"custom call @{target} with called computations is not supported")
    attributes: dict[str, hlo.AttributeValue] = {"call_target_name": target}
    for name in ("backend_config", "mhlo.backend_config"):
        if name in op.attributes:
            attributes["backend_config"] = _foreign(op.attributes[name])
    tokens = {
        "token_operands": _tokens(operands(op)),
        "token_results": _tokens(results(op)),
    }
    attributes.update({name: numbers for name, numbers in tokens.items() if numbers})
    if _boolean(op, "has_side_effect") or any(tokens.values()):
        attributes["has_side_effect"] = True
    if "error_message" in op.attributes:
        attributes["error_message"] = source_ir.StringAttr(op.attributes["error_message"]).value
    return scope.emit(op, "custom_call", **attributes)


def _tokens(values: Sequence[Value]) -> list[int]:
    return [number for number, value in enumerate(values) if is_token(value)]


def _has_computations(op: Operation) -> bool:
    name = "called_computations"
    return name in op.attributes and len(source_ir.ArrayAttr(op.attributes[name])) > 0


def _foreign(value: source_ir.Attribute) -> ir.Attribute:
    """The same attribute in the target context; its text as a string when its dialect is unknown there."""
    try:
        return ir.Attribute.parse(str(value))
    except MLIRError:
        return ir.StringAttr.get(str(value))


# Linear algebra


def _dot_general(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    attributes = _precision(op)
    if "algorithm" in op.attributes:
        attributes["algorithm"] = str(op.attributes["algorithm"])
    return scope.emit(
        op,
        "dot_general",
        lhs_batching_dimensions=numbers.lhs_batching_dimensions,
        rhs_batching_dimensions=numbers.rhs_batching_dimensions,
        lhs_contracting_dimensions=numbers.lhs_contracting_dimensions,
        rhs_contracting_dimensions=numbers.rhs_contracting_dimensions,
        **attributes,
    )


def _convolution(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    rank = _rank(op) - 2
    ones = [1] * rank
    low, high = _padding(op, rank)
    return scope.emit(
        op,
        "convolution",
        window_strides=_integers(op, "window_strides") or ones,
        padding_low=low,
        padding_high=high,
        lhs_dilation=_integers(op, "lhs_dilation") or ones,
        rhs_dilation=_integers(op, "rhs_dilation") or ones,
        window_reversal=_integers(op, "window_reversal") or [0] * rank,
        input_batch_dimension=numbers.input_batch_dimension,
        input_feature_dimension=numbers.input_feature_dimension,
        input_spatial_dimensions=numbers.input_spatial_dimensions,
        kernel_input_feature_dimension=numbers.kernel_input_feature_dimension,
        kernel_output_feature_dimension=numbers.kernel_output_feature_dimension,
        kernel_spatial_dimensions=numbers.kernel_spatial_dimensions,
        output_batch_dimension=numbers.output_batch_dimension,
        output_feature_dimension=numbers.output_feature_dimension,
        output_spatial_dimensions=numbers.output_spatial_dimensions,
        feature_group_count=_integer(op, "feature_group_count", 1),
        batch_group_count=_integer(op, "batch_group_count", 1),
        **_precision(op),
    )


def _fft(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    kind = stablehlo.FftTypeAttr(op.attributes["fft_type"]).value
    length = _integers(op, "fft_length") or []
    return scope.emit(op, "fft", fft_type=kind, fft_length=length)


def _triangular_solve(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    return scope.emit(
        op,
        "triangular_solve",
        left_side=_boolean(op, "left_side"),
        lower=_boolean(op, "lower"),
        unit_diagonal=_boolean(op, "unit_diagonal"),
        transpose_a=stablehlo.TransposeAttr(op.attributes["transpose_a"]).value,
    )


def _rng(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    kind = stablehlo.RngDistributionAttr(op.attributes["rng_distribution"]).value
    return scope.emit(op, "rng", rng_distribution=kind)


def _rng_bit_generator(scope: FunctionTranslator, op: Operation) -> Sequence[ir.Value]:
    kind = stablehlo.RngAlgorithmAttr(op.attributes["rng_algorithm"]).value
    return scope.emit(op, "rng_bit_generator", rng_algorithm=kind)


_SPECIAL: dict[str, Rule] = {
    "func.call": _call,
    "sdy.sharding_constraint": _identity,
    "stablehlo.after_all": _after_all,
    "stablehlo.all_gather": collectives.over_group,
    "stablehlo.all_reduce": collectives.over_group,
    "stablehlo.all_to_all": collectives.over_group,
    "stablehlo.batch_norm_grad": batch_norm.grad,
    "stablehlo.batch_norm_inference": batch_norm.inference,
    "stablehlo.batch_norm_training": batch_norm.training,
    "stablehlo.bitcast_convert": _plain("bitcast_convert"),
    "stablehlo.broadcast_in_dim": _renamed(dimensions="broadcast_dimensions"),
    "stablehlo.case": _case,
    "stablehlo.cholesky": _copied("lower"),
    "stablehlo.collective_broadcast": collectives.broadcast,
    "stablehlo.collective_permute": collectives.permute,
    "stablehlo.compare": _compare,
    "stablehlo.concatenate": _copied("dimension"),
    "stablehlo.constant": _constant,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_broadcast_in_dim": _first(
        "broadcast_in_dim", dimensions="broadcast_dimensions"
    ),
    "stablehlo.dynamic_iota": _first("iota", dimension="iota_dimension"),
    "stablehlo.dynamic_reshape": _first("reshape"),
    "stablehlo.dynamic_slice": _copied("slice_sizes"),
    "stablehlo.dynamic_update_slice": _plain("dynamic_update_slice"),
    "stablehlo.fft": _fft,
    "stablehlo.gather": _gather,
    "stablehlo.get_dimension_size": _get_dimension_size,
    "stablehlo.if": _if,
    "stablehlo.imag": _imag,
    "stablehlo.iota": _renamed(dimension="iota_dimension"),
    "stablehlo.map": _map,
    "stablehlo.optimization_barrier": _plain("optimization_barrier"),
    "stablehlo.pad": _renamed(
        low="edge_padding_low", high="edge_padding_high", interior="interior_padding"
    ),
    "stablehlo.partition_id": _scalar_u32_zero,
    "stablehlo.real": _real,
    "stablehlo.real_dynamic_slice": _real_dynamic_slice,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_precision": _copied("exponent_bits mantissa_bits"),
    "stablehlo.reduce_scatter": collectives.over_group,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.replica_id": _scalar_u32_zero,
    "stablehlo.reshape": _plain("reshape"),
    "stablehlo.reverse": _copied("dimensions"),
    "stablehlo.rng": _rng,
    "stablehlo.rng_bit_generator": _rng_bit_generator,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.set_dimension_size": _set_dimension_size,
    "stablehlo.slice": _copied("start_indices limit_indices strides"),
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _copied("permutation"),
    "stablehlo.triangular_solve": _triangular_solve,
    "stablehlo.while": _while,
}

#: Source operation name to its rule; elementwise operations without attributes come from the dialect's table.
RULES: dict[str, Rule] = {
    **{
        f"stablehlo.{name}": _plain(name)
        for name, definition in hlo.OPS.items()
        if "elementwise" in definition.traits
        and not definition.attributes
        and f"chlo.{name}" not in KEPT_CHLO
    },
    **dict.fromkeys(collectives.NO_PEER, collectives.refuse),
    **_SPECIAL,
}
