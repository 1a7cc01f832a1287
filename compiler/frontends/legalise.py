# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a source module, in place, before it is translated.

In: any module that jaxlib parses. Out: composites expanded into calls, CHLO legalised (:data:`KEPT_CHLO`
excepted), deprecated operations replaced, removable dynamism and tuples removed, asynchronous operations made
synchronous. What cannot be rewritten stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from gristmill.compiler.frontends import lapack, tokens, top_k, tuples
from gristmill.compiler.frontends.views import Value, operands, results, walk

#: CHLO operations that the ``hlo`` dialect has: kept as custom calls of this prefix while CHLO is legalised.
KEPT_CHLO = ("chlo.erf", "chlo.erfc")
KEPT_PREFIX = "gristmill."
#: Operations that importing HLO text leaves in MHLO, and their CHLO names.
_MHLO_TO_CHLO = {
    "mhlo.topk": "chlo.top_k",
    **{
        f"mhlo.{name}": f"chlo.{name}"
        for name in "acos acosh asin asinh atan atanh cosh erf sinh".split()
    },
}

_DYNAMIC_OPS = {
    f"stablehlo.{name}"
    for name in (
        "dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota dynamic_pad dynamic_reshape "
        "real_dynamic_slice"
    ).split()
}
_DEPRECATED_OPS = {
    f"stablehlo.{name}"
    for name in "broadcast create_token cross-replica-sum dot einsum unary_einsum".split()
}


def prepare(module: ir.Operation) -> None:
    """Apply every rewrite that ``module`` needs; jaxlib's passes must be registered."""
    names = _names(module)
    if "stablehlo.custom_call" in names:
        lapack.expand(module)
        top_k.expand(module)
        names = _names(module)
    if names & _MHLO_TO_CHLO.keys():
        for op in walk(module):
            if op.name in _MHLO_TO_CHLO:
                _to_chlo(op)
        names = _names(module)
    if "stablehlo.composite" in names:
        _run(module, "func.func(stablehlo-legalize-composite-to-call)")
    if any(name.startswith("chlo.") for name in names):
        for op in walk(module):
            if op.name in KEPT_CHLO:
                _keep(op)
            elif op.name in ("chlo.sinh", "chlo.cosh") and _is_complex(operands(op)[0]):
                _turn(op)
        _run(module, "func.func(chlo-legalize-to-stablehlo)")
        names = _names(module)
    if names & _DEPRECATED_OPS:
        _run(module, "func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false})")
    if names & _DYNAMIC_OPS:
        _run(module, "func.func(stablehlo-canonicalize-dynamism)")
        _run(module, "stablehlo-refine-shapes")
    tuples.remove(module)
    if "stablehlo.async_start" in names:
        tokens.inline_asynchronous(module)


def _names(module: ir.Operation) -> set[str]:
    return {op.name for op in walk(module)}


def _keep(op: ir.Operation) -> None:
    target = KEPT_PREFIX + op.name.partition(".")[2]
    attributes = {"call_target_name": ir.StringAttr.get(target)}
    _replace(op, "stablehlo.custom_call", attributes)


def _is_complex(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, ir.ShapedType) and isinstance(kind.element_type, ir.ComplexType)


def _turn(op: ir.Operation) -> None:
    """sinh z = -i sin(i z) and cosh z = cos(i z): the exponentials that CHLO's pass subtracts cancel near 0."""
    with ir.InsertionPoint(op), op.location:
        operand = cast("ir.Value[ir.RankedTensorType]", operands(op)[0])
        real, imaginary = stablehlo.real(operand), stablehlo.imag(operand)
        turned = stablehlo.complex(stablehlo.negate(imaginary), real)
        if op.name == "chlo.cosh":
            result = stablehlo.cosine(turned)
        else:
            sine = stablehlo.sine(turned)
            result = stablehlo.complex(stablehlo.imag(sine), stablehlo.negate(stablehlo.real(sine)))
    results(op)[0].replace_all_uses_with(result)
    op.erase()


def _to_chlo(op: ir.Operation) -> None:
    attributes: dict[str, ir.Attribute] = {}
    if op.name == "mhlo.topk":
        if "largest" in op.attributes and not ir.BoolAttr(op.attributes["largest"]).value:
            return  # CHLO has no form for the smallest; reported by the translation
        attributes["k"] = op.attributes["k"]
    _replace(op, _MHLO_TO_CHLO[op.name], attributes)


def _replace(op: ir.Operation, name: str, attributes: Mapping[str, ir.Attribute]) -> None:
    new = ir.Operation.create(
        name,
        results=[result.type for result in results(op)],
        operands=operands(op),
        attributes=dict(attributes),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, result in zip(results(op), results(new), strict=True):
        old.replace_all_uses_with(result)
    op.erase()


def _run(module: ir.Operation, pipeline: str) -> None:
    manager = passmanager.PassManager.parse(f"builtin.module({pipeline})")
    try:
        manager.run(module)
    except ir.MLIRError:
        # What a pass cannot convert stays as it was and is reported, with its location, by the translation.
        return
