# SPDX-License-Identifier: Apache-2.0
"""The ``hlo`` dialect: StableHLO's operations with every region outlined.

One table, :data:`OPS`, defines the dialect: operand names, result count, attributes and traits. The IRDL
definition that MLIR verifies against, the accessors below and the documentation are derived from it.

Differences from StableHLO:

* A nested computation is a private ``func.func`` named by a symbol attribute (``to_apply``, ``cond``,
  ``body``, ``comparator``, ``branches``, ``calls``), as in HLO. Values that the region captured are
  explicit operands: for ``while`` they become loop-carried values that the body returns unchanged; for
  ``if``/``case`` they are the branch arguments; for the rest they follow the op's own operands and are
  passed as the computation's last arguments.
* Dimension numbers are plain attributes: ``array<i64: …>`` lists, strings for enumerations.
* ``fusion`` holds a fused computation and the name of the emitter kind that compiles it.

Two namespaces. IRDL unifies every use of a constraint, so it cannot describe a variadic operand list whose
members differ in type. Operations that need one (``while``, ``reduce``, ``fusion``, …: :func:`is_mixed`) are
spelled ``hlov.<name>`` and checked by the Python verifier alone; the rest are ``hlo.<name>`` and checked by
both. Code names operations without the prefix: :func:`build` adds it and :func:`short_name` strips it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlir import ir
from mlir._mlir_libs import _mlir  # pyright: ignore[reportAttributeAccessIssue]
from mlir.dialects import irdl

# Attribute kinds, each mapped to the IRDL constraint that checks it.
_ATTRIBUTE_BASES = {
    "i64": "#builtin.integer",
    "dims": "#builtin.dense_array",
    "symbol": "#builtin.symbol_ref",
    "symbols": "#builtin.array",
    "string": "#builtin.string",
    "bool": "#builtin.integer",
    "elements": None,
    "dict": None,
    "any": None,
}


@dataclass(frozen=True)
class OpDef:
    """What the table says of one operation.

    Attributes:
        operands: operand names; at most one starts with ``*`` and is variadic.
        results: number of results, or -1 for any number.
        attributes: required attributes, name to kind.
        optional: attributes that may be absent (not checked by IRDL, which cannot express it).
        traits: any of ``elementwise`` (one result, every operand and the result have one shape),
            ``commutative``, ``side_effect``, ``computation`` (refers to outlined functions),
            ``data_movement`` (the result's elements are operand elements, moved).
    """

    operands: tuple[str, ...]
    results: int = 1
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    optional: dict[str, str] = field(default_factory=dict[str, str])
    traits: frozenset[str] = frozenset()


def _op(
    operands: str,
    results: int = 1,
    traits: str = "",
    optional: dict[str, str] | None = None,
    **attributes: str,
) -> OpDef:
    return OpDef(
        tuple(operands.split()), results, attributes, optional or {}, frozenset(traits.split())
    )


_UNARY = (
    "abs cbrt ceil cosine count_leading_zeros exponential exponential_minus_one floor is_finite log "
    "log_plus_one logistic negate not popcnt round_nearest_afz round_nearest_even rsqrt sign sine "
    "sqrt tan tanh convert real imag "
    # chlo operations kept as they are because a direct kernel beats their expansion
    "erf erfc"
).split()
_BINARY = (
    "subtract divide power remainder atan2 shift_left shift_right_logical shift_right_arithmetic complex"
).split()
_COMMUTATIVE = "add multiply maximum minimum and or xor".split()

#: The dialect: operation name (without ``hlo.``) to its definition.
OPS: dict[str, OpDef] = {
    **{name: _op("operand", traits="elementwise") for name in _UNARY},
    **{name: _op("lhs rhs", traits="elementwise") for name in _BINARY},
    **{name: _op("lhs rhs", traits="elementwise commutative") for name in _COMMUTATIVE},
    # direction: EQ NE GE GT LE LT; type: FLOAT SIGNED UNSIGNED TOTALORDER
    "compare": _op("lhs rhs", traits="elementwise", direction="string", type="string"),
    # pred may be rank 0; min and max of clamp too
    "select": _op("pred on_true on_false", traits="elementwise"),
    "clamp": _op("min operand max", traits="elementwise"),
    "reduce_precision": _op(
        "operand", traits="elementwise", exponent_bits="i64", mantissa_bits="i64"
    ),
    "bitcast_convert": _op("operand"),
    # value: a dense elements attribute (small) or dense_resource<NAME> (see compiler.module)
    "constant": _op("", value="elements"),
    "iota": _op("", dimension="i64"),
    "broadcast_in_dim": _op("operand", traits="data_movement", dimensions="dims"),
    "reshape": _op("operand", traits="data_movement"),
    "transpose": _op("operand", traits="data_movement", permutation="dims"),
    "slice": _op(
        "operand",
        traits="data_movement",
        start_indices="dims",
        limit_indices="dims",
        strides="dims",
    ),
    "reverse": _op("operand", traits="data_movement", dimensions="dims"),
    "pad": _op("operand padding_value", low="dims", high="dims", interior="dims"),
    "concatenate": _op("*inputs", traits="data_movement", dimension="i64"),
    # start_indices: one rank-0 integer operand per dimension
    "dynamic_slice": _op("operand *start_indices", traits="data_movement", slice_sizes="dims"),
    "dynamic_update_slice": _op("operand update *start_indices"),
    "gather": _op(
        "operand start_indices",
        offset_dims="dims",
        collapsed_slice_dims="dims",
        operand_batching_dims="dims",
        start_indices_batching_dims="dims",
        start_index_map="dims",
        index_vector_dim="i64",
        slice_sizes="dims",
        indices_are_sorted="bool",
    ),
    # N inputs, indices, N updates, then captures; N = number of results
    "scatter": _op(
        "*args",
        results=-1,
        traits="computation",
        to_apply="symbol",
        update_window_dims="dims",
        inserted_window_dims="dims",
        input_batching_dims="dims",
        scatter_indices_batching_dims="dims",
        scatter_dims_to_operand_dims="dims",
        index_vector_dim="i64",
        indices_are_sorted="bool",
        unique_indices="bool",
    ),
    # N inputs, N initial values, then captures; N = number of results
    "reduce": _op("*args", results=-1, traits="computation", dimensions="dims", to_apply="symbol"),
    "reduce_window": _op(
        "*args",
        results=-1,
        traits="computation",
        to_apply="symbol",
        window_dimensions="dims",
        window_strides="dims",
        base_dilations="dims",
        window_dilations="dims",
        padding_low="dims",
        padding_high="dims",
    ),
    "select_and_scatter": _op(
        "operand source init_value",
        traits="computation",
        select="symbol",
        scatter="symbol",
        window_dimensions="dims",
        window_strides="dims",
        padding_low="dims",
        padding_high="dims",
    ),
    # num_inputs inputs, then captures
    "map": _op("*args", traits="computation", to_apply="symbol", num_inputs="i64"),
    # N inputs, then captures; N = number of results
    "sort": _op(
        "*args",
        results=-1,
        traits="computation",
        comparator="symbol",
        dimension="i64",
        is_stable="bool",
    ),
    # precision: e.g. "DEFAULT,HIGHEST"; algorithm: "" or the printed attribute
    "dot_general": _op(
        "lhs rhs",
        optional={"precision": "string", "algorithm": "string"},
        lhs_batching_dimensions="dims",
        rhs_batching_dimensions="dims",
        lhs_contracting_dimensions="dims",
        rhs_contracting_dimensions="dims",
    ),
    "convolution": _op(
        "lhs rhs",
        optional={"precision": "string"},
        window_strides="dims",
        padding_low="dims",
        padding_high="dims",
        lhs_dilation="dims",
        rhs_dilation="dims",
        window_reversal="dims",  # 0 or 1 per spatial dimension
        input_batch_dimension="i64",
        input_feature_dimension="i64",
        input_spatial_dimensions="dims",
        kernel_input_feature_dimension="i64",
        kernel_output_feature_dimension="i64",
        kernel_spatial_dimensions="dims",
        output_batch_dimension="i64",
        output_feature_dimension="i64",
        output_spatial_dimensions="dims",
        feature_group_count="i64",
        batch_group_count="i64",
    ),
    "fft": _op("operand", fft_type="string", fft_length="dims"),
    "cholesky": _op("a", lower="bool"),
    "triangular_solve": _op(
        "a b", left_side="bool", lower="bool", unit_diagonal="bool", transpose_a="string"
    ),
    # a LAPACK routine with its type letter; matrices are column-major (their last two dimensions are columns and
    # rows); options: "mode=V,uplo=L" and such (see compiler.emitters.cpu.lapack_arguments)
    "lapack": _op("*operands", results=-1, routine="string", options="string"),
    "rng_bit_generator": _op("initial_state", results=2, rng_algorithm="string"),
    "rng": _op("a b shape", rng_distribution="string"),
    # operands: carried values (captures included); results: the same number and types
    "while": _op("*operands", results=-1, traits="computation", cond="symbol", body="symbol"),
    # "if": branches = [true, false], pred is i1; "case": index is i32, clamped to the last branch
    "if": _op("pred *operands", results=-1, traits="computation", branches="symbols"),
    "case": _op("index *operands", results=-1, traits="computation", branches="symbols"),
    "optimization_barrier": _op("*operands", results=-1),
    # token_operands, token_results: those that only order effects, rank-0 i1; the callee does not see them
    "custom_call": _op(
        "*operands",
        results=-1,
        traits="side_effect",
        optional={
            "backend_config": "any",
            "has_side_effect": "bool",
            "error_message": "string",
            "token_operands": "dims",
            "token_results": "dims",
        },
        call_target_name="string",
    ),
    # calls: the fused computation; kind: an emitter kind (see compiler.emitters)
    "fusion": _op("*operands", results=-1, traits="computation", calls="symbol", kind="string"),
}


def irdl_operation(name: str, definition: OpDef) -> str:
    """The ``irdl.operation`` text of one table row (other dialects use it too)."""
    lines = [f"  irdl.operation @{name} {{"]
    operands: list[str] = []
    for index, operand in enumerate(definition.operands):
        lines.append(f"    %o{index} = irdl.any")
        variadic = "variadic " if operand.startswith("*") else ""
        operands.append(f"{operand.lstrip('*')}: {variadic}%o{index}")
    if operands:
        lines.append(f"    irdl.operands({', '.join(operands)})")
    results: list[str] = []
    for index in range(definition.results):
        lines.append(f"    %r{index} = irdl.any")
        results.append(f"out{index}: %r{index}")
    lines.append(f"    irdl.results({', '.join(results)})")
    attributes: list[str] = []
    for index, (attribute, kind) in enumerate(definition.attributes.items()):
        base = _ATTRIBUTE_BASES[kind]
        lines.append(f"    %a{index} = " + (f'irdl.base "{base}"' if base else "irdl.any"))
        attributes.append(f'"{attribute}" = %a{index}')
    if attributes:
        lines.append(f"    irdl.attributes {{{', '.join(attributes)}}}")
    lines.append("  }")
    return "\n".join(lines)


def is_mixed(name: str) -> bool:
    """Whether the op's variadic operands or results may differ in type (spelled ``hlov.<name>``)."""
    definition = OPS[name]
    return definition.results == -1 or any(
        operand.startswith("*") and operand != "*start_indices" for operand in definition.operands
    )


def full_name(name: str) -> str:
    """The MLIR name of a table operation: ``hlo.add``, ``hlov.while``."""
    return f"hlov.{name}" if is_mixed(name) else f"hlo.{name}"


def irdl_text() -> str:
    """The IRDL definition of the ``hlo`` namespace, derived from :data:`OPS`."""
    body = "\n".join(
        irdl_operation(name, definition) for name, definition in OPS.items() if not is_mixed(name)
    )
    return f"irdl.dialect @hlo {{\n{body}\n}}\n"


def register(context: ir.Context) -> None:
    """Load the dialect into ``context``; every ``hlo`` op is verified against it from then on."""
    context.allow_unregistered_dialects = True  # for the hlov namespace
    if "gristmill.dialects" not in _mlir.globals.dialect_search_modules:  # see hlov
        _mlir.globals.append_dialect_search_prefix("gristmill.dialects")
    with context:
        irdl.load_dialects(ir.Module.parse(irdl_text()))


def short_name(op: ir.Operation | ir.OpView) -> str:
    """``add`` for ``hlo.add``; the full name for an op of another dialect."""
    name = op.operation.name
    if name.startswith("hlo.") or name.startswith("hlov."):
        return name.partition(".")[2]
    return name


def has_trait(op: ir.Operation | ir.OpView, trait: str) -> bool:
    """Whether the op is an ``hlo`` op whose definition has ``trait``."""
    definition = OPS.get(short_name(op))
    return definition is not None and trait in definition.traits


def dims(op: ir.Operation | ir.OpView, name: str) -> list[int]:
    """The value of an ``array<i64>`` attribute as a list."""
    value = ir.DenseI64ArrayAttr(op.operation.attributes[name])
    return [value[index] for index in range(len(value))]  # its iterator is five times slower


def integer(op: ir.Operation | ir.OpView, name: str) -> int:
    """The value of an integer attribute."""
    return ir.IntegerAttr(op.operation.attributes[name]).value


def boolean(op: ir.Operation | ir.OpView, name: str) -> bool:
    """The value of a bool attribute; ``False`` when absent."""
    attributes = op.operation.attributes
    return name in attributes and ir.BoolAttr(attributes[name]).value


def string(op: ir.Operation | ir.OpView, name: str) -> str:
    """The value of a string attribute; ``""`` when absent."""
    attributes = op.operation.attributes
    return ir.StringAttr(attributes[name]).value if name in attributes else ""


def symbol(op: ir.Operation | ir.OpView, name: str) -> str:
    """The function name that a symbol attribute refers to."""
    return ir.FlatSymbolRefAttr(op.operation.attributes[name]).value


def symbols(op: ir.Operation | ir.OpView, name: str) -> list[str]:
    """The function names of an array of symbol attributes."""
    return [
        ir.FlatSymbolRefAttr(item).value for item in ir.ArrayAttr(op.operation.attributes[name])
    ]


def computations(op: ir.Operation | ir.OpView) -> Iterator[str]:
    """Names of every function the op refers to, in attribute-table order."""
    name = short_name(op)
    definition = OPS.get(name)
    if definition is None:
        return
    for attribute, kind in definition.attributes.items():
        if kind == "symbol":
            yield symbol(op, attribute)
        elif kind == "symbols":
            yield from symbols(op, attribute)


AttributeValue = int | bool | str | Sequence[int] | Sequence[str] | ir.Attribute


def attribute(kind: str, value: AttributeValue) -> ir.Attribute:
    """Build the attribute of a table kind from a plain Python value (current context)."""
    if isinstance(value, ir.Attribute):
        return value
    if kind == "i64" and isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if kind == "bool":
        return ir.BoolAttr.get(bool(value))
    if kind == "string" and isinstance(value, str):
        return ir.StringAttr.get(value)
    if kind == "symbol" and isinstance(value, str):
        return ir.FlatSymbolRefAttr.get(value)
    if kind == "symbols" and not isinstance(value, int | str):
        return ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(str(v)) for v in value])
    if kind == "dims" and not isinstance(value, int | str):
        return ir.DenseI64ArrayAttr.get([int(v) for v in value])
    raise TypeError(f"attribute of kind {kind!r} cannot hold {value!r}")


def build(
    name: str,
    results: Sequence[ir.Type],
    operands: Sequence[ir.Value] = (),
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
    **attributes: AttributeValue,
) -> ir.Operation:
    """Create the operation ``name`` at the current (or given) insertion point.

    Attribute values are plain Python values (see :func:`attribute`) or MLIR attributes; names and kinds
    come from :data:`OPS`. Raises ``KeyError`` for an op or attribute the table does not have.
    """
    definition = OPS[name]
    kinds = {**definition.attributes, **definition.optional}
    return ir.Operation.create(
        full_name(name),
        results=list(results),
        operands=list(operands),
        attributes={key: attribute(kinds[key], value) for key, value in attributes.items()},
        loc=loc,
        ip=ip,
    )
