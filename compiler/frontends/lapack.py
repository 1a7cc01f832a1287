# SPDX-License-Identifier: Apache-2.0
"""LAPACK routines that JAX calls on CPUs and StableHLO has operations for: triangular solves and Cholesky factors.

Each call becomes a call of a private function written in StableHLO, of LAPACK's meaning and result layout, for any
number of batch dimensions. The others are called: :mod:`gristmill.compiler.frontends.lapack_calls`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from jaxlib.mlir import ir

from gristmill.compiler.frontends.views import first_block, operands, results, walk
from gristmill.errors import UnsupportedError
from gristmill.runtime import custom_calls

_TARGET = re.compile(r"lapack_[sdcz](trsm|potrf)_ffi")


@dataclass(frozen=True)
class _Call:
    """A call.

    Attributes:
        element: StableHLO's name of the element type.
        batch, rows, columns: the shape of the first operand, batch dimensions joined.
        options: LAPACK's letters, by option.
        other: rows and columns of the last operand.
    """

    element: str
    batch: int
    rows: int
    columns: int
    options: dict[str, str]
    other: tuple[int, int]

    @property
    def real(self) -> str:
        """The type of magnitudes."""
        return self.element.removeprefix("complex<").rstrip(">")

    def tensor(self, *dimensions: int, of: str | None = None) -> str:
        """A tensor type; the batch dimension comes first."""
        shape = "".join(f"{size}x" for size in (self.batch, *dimensions))
        return f"tensor<{shape}{of or self.element}>"

    @property
    def matrix(self) -> str:
        """The type of the first operand."""
        return self.tensor(self.rows, self.columns)


def expand(module: ir.Operation) -> None:
    """Replace, in place, every call of a known routine."""
    calls = [op for op in walk(module) if op.name == "stablehlo.custom_call"]
    for number, op in enumerate(calls):
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        match = _TARGET.fullmatch(target)
        if match is not None and not custom_calls.is_registered(target):
            _expand(module, op, match[1], f"lapack_{match[1]}_{number}")


def _expand(module: ir.Operation, op: ir.Operation, routine: str, name: str) -> None:
    _require_form(op, routine)
    shapes = [list(ir.RankedTensorType(value.type).shape) for value in operands(op)]
    rows, columns = shapes[0][-2:]
    batch = math.prod(shapes[0][:-2])
    element = str(ir.RankedTensorType(operands(op)[0].type).element_type)
    call = _Call(element, batch, rows, columns, _options(op), _last_two(shapes[-1]))
    text = _ROUTINES[routine](call)
    source = ir.Module.parse(f"func.func private @{name}{text}")
    place = ir.InsertionPoint(first_block(module))
    function = source.body.operations[0].operation.clone(place)
    kinds = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    with ir.InsertionPoint(op), op.location:
        flat = [
            results(ir.Operation.create("stablehlo.reshape", [kind], [value]))[0]
            for value, kind in zip(operands(op), kinds.inputs, strict=True)
        ]
        callee: dict[str, ir.Attribute] = {"callee": ir.FlatSymbolRefAttr.get(name)}
        made = ir.Operation.create("func.call", list(kinds.results), flat, attributes=callee)
        for old, new in zip(results(op), results(made), strict=True):
            shaped = ir.Operation.create("stablehlo.reshape", [old.type], [new])
            old.replace_all_uses_with(results(shaped)[0])
    op.erase()


#: Operands, result types by the operand that they are like (None: the batch's), and option letters of each routine.
_FORMS: dict[str, tuple[int, tuple[int | None, ...], dict[str, str]]] = {
    "potrf": (1, (0, None), {"uplo": "LU"}),
    "trsm": (2, (1,), {"side": "LR", "uplo": "LU", "diag": "NU", "trans_x": "NTC"}),
}


def _require_form(op: ir.Operation, routine: str) -> None:
    """Raise ``UnsupportedError`` unless operands, results and options are the routine's."""
    count, likes, letters = _FORMS[routine]
    given = [ir.RankedTensorType(value.type) for value in operands(op)]
    element = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}[
        ir.StringAttr(op.attributes["call_target_name"]).value[len("lapack_")]
    ]
    batches = {tuple(kind.shape[:-2]) for kind in given}
    fits = len(given) == count and len(batches) == 1
    fits = fits and all(k.rank >= 2 and str(k.element_type) == element for k in given)
    if fits:
        info = ir.RankedTensorType.get(list(*batches), ir.IntegerType.get_signless(32))
        fits = [r.type for r in results(op)] == [info if i is None else given[i] for i in likes]
    try:
        options = _options(op)
    except (ValueError, OverflowError):  # no letters
        options = {}
    if not fits or any(options.get(name) not in tuple(known) for name, known in letters.items()):
        raise UnsupportedError(
            f"a call of {routine} whose arrays or options are not the routine's",
            location=str(op.location),
        )


def _last_two(shape: list[int]) -> tuple[int, int]:
    return shape[-2] if len(shape) > 1 else 1, shape[-1]


def _options(op: ir.Operation) -> dict[str, str]:
    """LAPACK's option letters: ``uplo``, ``side``, ``trans_x``, ``diag``."""
    if "mhlo.backend_config" not in op.attributes:
        return {}
    items = ir.DictAttr(op.attributes["mhlo.backend_config"])
    return {item.name: chr(ir.IntegerAttr(item.attr).value) for item in items}


def _potrf(call: _Call) -> str:
    """``(a) → (factor, info)``; info is 1 where the factor is not a number."""
    lower = str(call.options.get("uplo") == "L").lower()
    info, flags = call.tensor(of="i32"), call.tensor(call.rows, call.columns, of="i1")
    real = "%0" if call.real == call.element else "%real"
    parts = call.tensor(call.rows, call.columns, of=call.real)
    part = f"%real = stablehlo.real %0 : ({call.matrix}) -> {parts}" if real == "%real" else ""
    return f"""(%a: {call.matrix}) -> ({call.matrix}, {info}) {{
  %0 = stablehlo.cholesky %a, lower = {lower} : {call.matrix}
  {part}
  %1 = stablehlo.compare NE, {real}, {real}, FLOAT : ({parts}, {parts}) -> {flags}
  %false = stablehlo.constant dense<false> : tensor<i1>
  %2 = stablehlo.reduce(%1 init: %false) applies stablehlo.or across dimensions = [1, 2]
    : ({flags}, tensor<i1>) -> {call.tensor(of="i1")}
  %3 = stablehlo.convert %2 : ({call.tensor(of="i1")}) -> {info}
  return %0, %3 : {call.matrix}, {info}
}}"""


def _trsm(call: _Call) -> str:
    """``(a, b) → x`` with op(a) x = b or x op(a) = b."""
    kind = call.tensor(*call.other)
    transpose = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[call.options["trans_x"]]
    attributes = (
        f"left_side = {str(call.options['side'] == 'L').lower()}, "
        f"lower = {str(call.options['uplo'] == 'L').lower()}, "
        f"unit_diagonal = {str(call.options['diag'] == 'U').lower()}, "
        f"transpose_a = #stablehlo<transpose {transpose}>"
    )
    return f"""(%a: {call.matrix}, %b: {kind}) -> {kind} {{
  %0 = "stablehlo.triangular_solve"(%a, %b) <{{{attributes}}}> : ({call.matrix}, {kind}) -> {kind}
  return %0 : {kind}
}}"""


_ROUTINES: dict[str, Callable[[_Call], str]] = {
    "potrf": _potrf,
    "trsm": _trsm,
}
