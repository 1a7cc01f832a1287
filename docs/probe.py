# SPDX-License-Identifier: Apache-2.0
"""Which element types each StableHLO operation compiles for, found by compiling a tiny function of each.

A template is a function's signature and body. ``T`` stands for the element type, ``R`` for the type of a complex
number's parts. Which types an operation allows is StableHLO's own verifier to say; the rest is said by our compiler,
up to the emitted kernels.
"""

from __future__ import annotations

import re

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.frontends.source import make_source_context
from gristmill.dialects import hlo
from gristmill.errors import GristmillError
from gristmill.runtime.types import ELEMENT_TYPES

#: Collectives over groups of the one device that there is.
ONE_DEVICE = "the operand itself, as there is one device"

#: What is refused by design, and why.
REASONS = {
    "infeed": "no host queue: pass the data as an argument",
    "outfeed": "no host queue: return the data as a result",
    "recv": "no other device or host channel: pass the data as an argument",
    "send": "no other device or host channel: return the data as a result",
    "uniform_quantize": "quantised types",
    "uniform_dequantize": "quantised types",
    "custom_call": "registered functions; placement and sharding marks, shape assertions, JAX's LAPACK calls for CPUs, "
    "`ApproxTopK`, `PartialReduce`, `mhlo.topk`, `TopK`",
}

#: What is said of the others; operations without a template all compile.
NOTES = {
    "after_all": "tokens order custom calls",
    "all_gather": ONE_DEVICE,
    "all_reduce": ONE_DEVICE,
    "all_to_all": ONE_DEVICE,
    "async_done": "done at once",
    "async_start": "done at once",
    "collective_broadcast": f"{ONE_DEVICE}, or zeros",
    "collective_permute": f"{ONE_DEVICE}, or zeros",
    "create_token": "tokens order custom calls",
    "cross-replica-sum": ONE_DEVICE,
    "reduce_scatter": ONE_DEVICE,
    "composite": "its decomposition is compiled",
    "dynamic_broadcast_in_dim": "once the shapes are known",
    "dynamic_conv": "once the padding is known",
    "dynamic_gather": "once the slice sizes are known",
    "dynamic_iota": "once the shapes are known",
    "dynamic_pad": "once the padding is known",
    "dynamic_reshape": "once the shapes are known",
    "einsum": "removed from StableHLO; use `dot_general`",
    "get_dimension_size": "a constant once the shapes are known",
    "get_tuple_element": "tuples are taken apart at compile time",
    "partition_id": "0",
    "real_dynamic_slice": "of strides 1, once the shapes are known",
    "replica_id": "0",
    "return": "ends a region",
    "set_dimension_size": "once the size is known",
    "torch_index_select": "removed from StableHLO; use `gather`",
    "tuple": "taken apart at compile time",
    "unary_einsum": "removed from StableHLO; use `transpose`",
}


def _region(operation: str) -> str:
    return (
        f"({{\n^bb0(%a: tensor<T>, %b: tensor<T>):\n  %r = stablehlo.{operation} %a, %b : tensor<T>\n"
        "  stablehlo.return %r : tensor<T>\n})"
    )


_COMPARATOR = (
    "({\n^bb0(%a: tensor<T>, %b: tensor<T>):\n  %r = stablehlo.compare LT, %a, %b : "
    "(tensor<T>, tensor<T>) -> tensor<i1>\n  stablehlo.return %r : tensor<i1>\n})"
)
_I = "tensor<i32>"
_GATHER = (
    "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], "
    "index_vector_dim = 1>"
)
_SCATTER = (
    "#stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
    "index_vector_dim = 1>"
)
_SQUARE = "tensor<4x4xT>"
_ROW = "tensor<4xT>"

#: Name to (operand types, attributes and regions, result type); operations without one are elementwise.
TEMPLATES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "batch_norm_grad": (
        (_SQUARE, _ROW, _ROW, _ROW, _SQUARE),
        "<{epsilon = 0.1 : f32, feature_index = 1 : i64}>",
        f"({_SQUARE}, {_ROW}, {_ROW})",
    ),
    "batch_norm_inference": (
        (_SQUARE, _ROW, _ROW, _ROW, _ROW),
        "<{epsilon = 0.1 : f32, feature_index = 1 : i64}>",
        _SQUARE,
    ),
    "batch_norm_training": (
        (_SQUARE, _ROW, _ROW),
        "<{epsilon = 0.1 : f32, feature_index = 1 : i64}>",
        f"({_SQUARE}, {_ROW}, {_ROW})",
    ),
    "bitcast_convert": ((_ROW,), "", _ROW),
    "broadcast": ((_ROW,), "<{broadcast_sizes = array<i64: 2>}>", "tensor<2x4xT>"),
    "broadcast_in_dim": ((_ROW,), "<{broadcast_dimensions = array<i64: 1>}>", _SQUARE),
    "case": (
        (_I,),
        "({\n  %a = stablehlo.constant dense<1> : tensor<i32>\n  stablehlo.return %a : tensor<i32>\n})",
        _I,
    ),
    "cholesky": ((_SQUARE,), "<{lower = true}>", _SQUARE),
    "clamp": ((_ROW, _ROW, _ROW), "", _ROW),
    "compare": (
        (_ROW, _ROW),
        "<{comparison_direction = #stablehlo<comparison_direction EQ>}>",
        "tensor<4xi1>",
    ),
    "complex": ((_ROW, _ROW), "", "tensor<4xcomplex<T>>"),
    "concatenate": ((_ROW, _ROW), "<{dimension = 0 : i64}>", "tensor<8xT>"),
    "convert": ((_ROW,), "", "tensor<4xf32>"),
    "convolution": (
        ("tensor<1x4x2xT>", "tensor<3x2x2xT>"),
        "<{batch_group_count = 1 : i64, feature_group_count = 1 : i64, dimension_numbers = "
        "#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>}>",
        "tensor<1x2x2xT>",
    ),
    "dot": ((_SQUARE, _SQUARE), "", _SQUARE),
    "dot_general": (
        (_SQUARE, _SQUARE),
        "<{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], "
        "rhs_contracting_dimensions = [0]>}>",
        _SQUARE,
    ),
    "dynamic_slice": ((_ROW, _I), "<{slice_sizes = array<i64: 2>}>", "tensor<2xT>"),
    "dynamic_update_slice": ((_ROW, "tensor<2xT>", _I), "", _ROW),
    "einsum": ((_SQUARE, _SQUARE), '<{einsum_config = "ab,bc->ac"}>', _SQUARE),
    "fft": (
        (_ROW,),
        "<{fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 4>}>",
        _ROW,
    ),
    "gather": (
        (_SQUARE, "tensor<2x1xi32>"),
        f"<{{dimension_numbers = {_GATHER}, slice_sizes = array<i64: 1, 4>}}>",
        "tensor<2x4xT>",
    ),
    "get_dimension_size": ((_ROW,), "<{dimension = 0 : i64}>", _I),
    "imag": ((_ROW,), "", "tensor<4xR>"),
    "iota": ((), "<{iota_dimension = 0 : i64}>", _ROW),
    "is_finite": ((_ROW,), "", "tensor<4xi1>"),
    "map": ((_ROW, _ROW), "<{dimensions = array<i64: 0>}> " + _region("add"), _ROW),
    "optimization_barrier": ((_ROW,), "", _ROW),
    "pad": (
        (_ROW, "tensor<T>"),
        "<{edge_padding_low = array<i64: 1>, edge_padding_high = array<i64: 1>, "
        "interior_padding = array<i64: 0>}>",
        "tensor<6xT>",
    ),
    "partition_id": ((), "", "tensor<ui32>"),
    "real": ((_ROW,), "", "tensor<4xR>"),
    "reduce": ((_SQUARE, "tensor<T>"), "<{dimensions = array<i64: 1>}> " + _region("add"), _ROW),
    "reduce_precision": ((_ROW,), "<{exponent_bits = 4 : i32, mantissa_bits = 2 : i32}>", _ROW),
    "reduce_window": (
        (_ROW, "tensor<T>"),
        "<{window_dimensions = array<i64: 2>}> " + _region("add"),
        "tensor<3xT>",
    ),
    "replica_id": ((), "", "tensor<ui32>"),
    "reshape": ((_SQUARE,), "", "tensor<2x8xT>"),
    "reverse": ((_ROW,), "<{dimensions = array<i64: 0>}>", _ROW),
    "rng": (
        ("tensor<T>", "tensor<T>", "tensor<1xi64>"),
        "<{rng_distribution = #stablehlo<rng_distribution UNIFORM>}>",
        _ROW,
    ),
    "rng_bit_generator": (
        ("tensor<2xui64>",),
        "<{rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>}>",
        f"(tensor<2xui64>, {_ROW})",
    ),
    "scatter": (
        (_SQUARE, "tensor<2x1xi32>", "tensor<2x4xT>"),
        f"<{{scatter_dimension_numbers = {_SCATTER}}}> " + _region("add"),
        _SQUARE,
    ),
    "select": (("tensor<4xi1>", _ROW, _ROW), "", _ROW),
    "select_and_scatter": (
        (_ROW, "tensor<2xT>", "tensor<T>"),
        "<{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> "
        + _COMPARATOR.replace("})", "}, ")
        + _region("add")[1:],
        _ROW,
    ),
    "slice": (
        (_ROW,),
        "<{start_indices = array<i64: 1>, limit_indices = array<i64: 3>, strides = array<i64: 1>}>",
        "tensor<2xT>",
    ),
    "sort": ((_ROW,), "<{dimension = 0 : i64, is_stable = true}> " + _COMPARATOR, _ROW),
    "torch_index_select": (
        (_SQUARE, "tensor<2xi32>"),
        "<{dim = 0 : i64, batch_dims = 0 : i64}>",
        "tensor<2x4xT>",
    ),
    "transpose": (("tensor<2x4xT>",), "<{permutation = array<i64: 1, 0>}>", "tensor<4x2xT>"),
    "triangular_solve": (
        (_SQUARE, _SQUARE),
        "<{left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}>",
        _SQUARE,
    ),
    "unary_einsum": ((_SQUARE,), '<{einsum_config = "ab->ba"}>', _SQUARE),
    "while": (
        ("tensor<i1>", _ROW),
        "({\n^bb0(%a: tensor<i1>, %b: tensor<4xT>):\n  stablehlo.return %a : tensor<i1>\n}, {\n"
        "^bb0(%a: tensor<i1>, %b: tensor<4xT>):\n  stablehlo.return %a, %b : tensor<i1>, tensor<4xT>\n})",
        f"(tensor<i1>, {_ROW})",
    ),
    "if": (
        ("tensor<i1>",),
        "({\n  %a = stablehlo.constant dense<1> : tensor<i32>\n  stablehlo.return %a : tensor<i32>\n}, {\n"
        "  %a = stablehlo.constant dense<2> : tensor<i32>\n  stablehlo.return %a : tensor<i32>\n})",
        _I,
    ),
    "constant": ((), "", _ROW),
}


def names() -> list[str]:
    """Every StableHLO operation, then the CHLO operations that have a kernel."""
    classes = (v for v in vars(stablehlo).values() if isinstance(v, type))
    found = {str(vars(c)["OPERATION_NAME"]) for c in classes if "OPERATION_NAME" in vars(c)}
    return [*sorted(name.partition(".")[2] for name in found), "chlo.erf", "chlo.erfc"]


def has_probe(name: str) -> bool:
    """Whether the operation can be tried."""
    short = name.removeprefix("chlo.")
    return name in TEMPLATES or (short in hlo.OPS and "elementwise" in hlo.OPS[short].traits)


def _module(name: str, element: str) -> str:
    part = element[len("complex<") : -1] if element.startswith("complex") else element
    if name in TEMPLATES:
        operands, middle, result = TEMPLATES[name]
    else:
        short = name.removeprefix("chlo.")
        operands, middle, result = (_ROW,) * len(hlo.OPS[short].operands), "", _ROW
        if short == "abs":
            result = "tensor<4xR>"
    if name == "constant":
        value = "true" if element == "i1" else "(1.0, 0.0)" if part != element else "1"
        value = "1.0" if element.startswith(("f", "bf")) else value
        middle = f"<{{value = dense<{value}> : tensor<4xT>}}>"
    header = ", ".join(f"%{index}: {kind}" for index, kind in enumerate(operands))
    used = ", ".join(f"%{index}" for index in range(len(operands)))
    full = name if "." in name else f"stablehlo.{name}"
    count = result.count("tensor<") if result.startswith("(") else 1
    head = f'"{full}"({used}) {middle}'
    returned = ", ".join(f"%r#{index}" for index in range(count)) if count > 1 else "%r"
    given = f"%r:{count}" if count > 1 else "%r"
    text = (
        f"func.func @main({header}) -> {result} {{\n"
        f"  {given} = {head} : ({', '.join(operands)}) -> {result}\n"
        f'  "func.return"({returned}) : {result if count > 1 else f"({result})"} -> ()\n}}\n'
    )
    text = re.sub(r"(?<=[x<])T(?=>)", element, text)
    return re.sub(r"(?<=[x<])R(?=>)", part, text)


def _together(modules: list[str]) -> str:
    """One module whose ``@main`` calls the ``@main`` of each of ``modules``."""
    functions: list[str] = []
    lines: list[str] = []
    header: list[str] = []
    returned: list[tuple[str, str]] = []
    for number, text in enumerate(modules):
        functions.append(text.replace("func.func @main(", f"func.func private @f{number}(", 1))
        signature = text[: text.index(" {\n")]
        operands = re.findall(r"%\d+: (tensor<[^%]*?>)(?=, %|\))", signature)
        results = re.findall(r"tensor<[^,]*>(?=, tensor|\)|$)", signature.partition(") -> ")[2])
        names = [f"%a{number}_{index}" for index in range(len(operands))]
        header += [f"{name}: {kind}" for name, kind in zip(names, operands, strict=True)]
        made = [f"%r{number}#{index}" for index in range(len(results))]
        lines.append(
            f"  %r{number}:{len(results)} = func.call @f{number}({', '.join(names)}) : "
            f"({', '.join(operands)}) -> ({', '.join(results)})"
        )
        returned += zip(made, results, strict=True)
    kinds = ", ".join(kind for _, kind in returned)
    end = f"  return {', '.join(name for name, _ in returned)} : {kinds}"
    return "\n".join(
        [*functions, f"func.func @main({', '.join(header)}) -> ({kinds}) {{", *lines, end, "}\n"]
    )


def _compiles(text: str) -> bool:
    try:
        compile_stages(import_source(text), stop_after="rt")
    except GristmillError:
        return False
    return True


def support(name: str) -> tuple[list[str], list[str]]:
    """The element types that StableHLO allows an operation to have: those that compile, and those that do not."""
    allowed: list[str] = []
    with make_source_context(), ir.Location.unknown():
        for element in ELEMENT_TYPES:
            try:
                ir.Module.parse(_module(name, element))
            except ir.MLIRError:
                continue
            allowed.append(element)
            if not is_generic(name):
                break
    if allowed and _compiles(_together([_module(name, element) for element in allowed])):
        return allowed, []
    compiled = [element for element in allowed if _compiles(_module(name, element))]
    return compiled, [element for element in allowed if element not in compiled]


def is_generic(name: str) -> bool:
    """Whether the operation's template has an element type to choose."""
    if name not in TEMPLATES:
        return True
    operands, _, result = TEMPLATES[name]
    return any(re.search(r"[x<]T>", kind) for kind in (*operands, result))
