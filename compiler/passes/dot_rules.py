# SPDX-License-Identifier: Apache-2.0
"""Rules of ``canonicalize-hlo`` for ``dot_general``.

Transposes are absorbed into the dimension numbers, and products of complex and narrow numbers become products of the
types that the dot emitter computes with.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from gristmill.compiler.passes.rewriting import Rewriter, Rule
from gristmill.dialects import builders, hlo
from gristmill.dialects.types import Tensor

Result = Sequence[ir.Value] | None

_SIDES = ("lhs", "rhs")


def _numbers(op: ir.Operation) -> dict[str, list[int]]:
    return {
        f"{side}_{kind}_dimensions": hlo.dims(op, f"{side}_{kind}_dimensions")
        for side in _SIDES
        for kind in ("batching", "contracting")
    }


def _options(op: ir.Operation) -> dict[str, hlo.AttributeValue]:
    """Every attribute besides the dimension numbers."""
    return {
        name: op.attributes[name]
        for name in hlo.OPS["dot_general"].optional
        if name in op.attributes
    }


def _rebuild(
    r: Rewriter,
    op: ir.Operation,
    operands: Sequence[ir.Value],
    numbers: dict[str, list[int]],
    options: dict[str, hlo.AttributeValue],
    element: str | None = None,
) -> ir.Value:
    return builders.dot_general(
        operands[0],
        operands[1],
        lhs_batching_dimensions=numbers["lhs_batching_dimensions"],
        rhs_batching_dimensions=numbers["rhs_batching_dimensions"],
        lhs_contracting_dimensions=numbers["lhs_contracting_dimensions"],
        rhs_contracting_dimensions=numbers["rhs_contracting_dimensions"],
        element=element or r.type(op.results[0]).element,
        **options,
    )


def complex_product(r: Rewriter, op: ir.Operation) -> Result:
    """A product of complex numbers → four products of their parts."""
    result = r.type(op.results[0])
    if not all(r.type(value).is_complex for value in (*op.operands, op.results[0])):
        return None
    numbers, options = _numbers(op), _options(op)
    options.pop("algorithm", None)
    element = result.element[len("complex<") : -1]
    lhs, rhs = (
        [builders.part(value, "real"), builders.part(value, "imag")] for value in op.operands
    )

    def product(i: int, j: int) -> ir.Value:
        return _rebuild(r, op, [lhs[i], rhs[j]], numbers, options, element)

    real = builders.subtract(product(0, 0), product(1, 1))
    imaginary = builders.add(product(0, 1), product(1, 0))
    return [builders.complex_(real, imaginary)]


def narrow_product(r: Rewriter, op: ir.Operation) -> Result:
    """Operands and results narrower than ``bf16`` and ``i8`` → ``f32``, ``i8`` and ``i32``, with conversions."""
    types = [r.type(value) for value in (*op.operands, op.results[0])]
    wide = [_widened(kind) for kind in types]
    if wide == [kind.element for kind in types]:
        return None
    operands = [
        value if kind == r.type(value).element else builders.convert(value, kind)
        for value, kind in zip(op.operands, wide[:2], strict=True)
    ]
    element = wide[2]
    if types[2].is_integer and types[2].bits < 8:
        element = "ui32" if types[2].is_unsigned else "i32"
    options = _options(op)
    options.pop("algorithm", None)
    product = _rebuild(r, op, operands, _numbers(op), options, element)
    return [product if element == types[2].element else builders.convert(product, types[2].element)]


def _widened(kind: Tensor) -> str:
    if kind.is_float and kind.bits < 16:
        return "f32"
    if kind.is_integer and kind.bits < 8:
        return "ui8" if kind.is_unsigned else "i8"
    return kind.element


def transposed_operand(r: Rewriter, op: ir.Operation) -> Result:
    """``dot(transpose(x), y)`` → ``dot(x, y)`` with other dimension numbers, if free dimensions keep their order."""
    numbers = _numbers(op)
    operands = list(op.operands)
    absorbed = False
    for index, side in enumerate(_SIDES):
        inner = r.operand(op, index, "transpose")
        if inner is None:
            continue
        permutation = hlo.dims(inner, "permutation")
        batching, contracting = f"{side}_batching_dimensions", f"{side}_contracting_dimensions"
        used = {*numbers[batching], *numbers[contracting]}
        free = [permutation[d] for d in range(len(permutation)) if d not in used]
        if free != sorted(free):
            continue
        numbers[batching] = [permutation[d] for d in numbers[batching]]
        numbers[contracting] = [permutation[d] for d in numbers[contracting]]
        operands[index] = inner.operands[0]
        absorbed = True
    return [_rebuild(r, op, operands, numbers, _options(op))] if absorbed else None


def transposed_result(r: Rewriter, op: ir.Operation) -> Result:
    """``transpose(dot(x, y))`` whose minor dimension is one of x → ``dot(y, x)``, transposed if need be.

    What is left of the transpose then keeps the minor dimension in place, and often nothing is left.
    """
    dot = r.operand(op, 0, "dot_general")
    if dot is None or not r.only_use(op.operands[0]):
        return None
    numbers = _numbers(dot)
    batch = len(numbers["lhs_batching_dimensions"])
    contracted = len(numbers["lhs_contracting_dimensions"])
    left = r.type(dot.operands[0]).rank - batch - contracted
    rank = r.type(op.results[0]).rank
    permutation = hlo.dims(op, "permutation")
    if not permutation or not batch <= permutation[-1] < batch + left < rank:
        return None
    swapped = [*range(batch), *range(batch + left, rank), *range(batch, batch + left)]
    rest = [swapped.index(d) for d in permutation]
    exchanged = {
        f"{side}_{kind}_dimensions": numbers[f"{other}_{kind}_dimensions"]
        for side, other in (("lhs", "rhs"), ("rhs", "lhs"))
        for kind in ("batching", "contracting")
    }
    options = _options(dot)
    if "algorithm" in options:
        return None  # it may name the operand types of both sides
    if "precision" in options:
        options["precision"] = ",".join(reversed(hlo.string(dot, "precision").split(",")))
    operands = [dot.operands[1], dot.operands[0]]
    product = _rebuild(r, dot, operands, exchanged, options)
    return [product if rest == list(range(rank)) else builders.transpose(product, rest)]


#: Op name to the rules that are tried on it, in order.
RULES: dict[str, tuple[Rule, ...]] = {
    "dot_general": (complex_product, narrow_product, transposed_operand),
    "transpose": (transposed_result,),
}
