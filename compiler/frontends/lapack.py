# SPDX-License-Identifier: Apache-2.0
"""LAPACK routines that JAX calls on CPUs, as StableHLO: LU, triangular solves and Cholesky factors.

Each call of a known target becomes a call of a private function written in StableHLO, of LAPACK's meaning and result
layout, for any number of batch dimensions. Unblocked algorithm of G. Golub and C. Van Loan, *Matrix Computations*:
LU with partial pivoting (3.4.1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from jaxlib.mlir import ir

from gristmill.compiler.frontends.views import first_block, operands, results, walk
from gristmill.runtime import custom_calls

_TARGET = re.compile(r"lapack_[sdcz](getrf|trsm|potrf)_ffi")


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

    @property
    def steps(self) -> int:
        """Number of columns to eliminate."""
        return min(self.rows, self.columns)

    def tensor(self, *dimensions: int, of: str | None = None) -> str:
        """A tensor type; the batch dimension comes first."""
        shape = "".join(f"{size}x" for size in (self.batch, *dimensions))
        return f"tensor<{shape}{of or self.element}>"

    @property
    def cube(self) -> str:
        """The type of integers for each element."""
        return self.tensor(self.rows, self.columns, of="i32")

    @property
    def mask(self) -> str:
        """The type of truth values for each element."""
        return self.tensor(self.rows, self.columns, of="i1")

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


def _prologue(call: _Call) -> str:
    """Constants and positions that the loops use."""
    return f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %nought = stablehlo.constant dense<{_number(call, 0)}> : tensor<{call.element}>
  %unit = stablehlo.constant dense<{_number(call, 1)}> : tensor<{call.element}>
  %rows = stablehlo.iota dim = 1 : {call.cube}
  %columns = stablehlo.iota dim = 2 : {call.cube}
  %noughts = stablehlo.broadcast_in_dim %nought, dims = [] : (tensor<{call.element}>) -> {call.matrix}
  %noughts_b = stablehlo.broadcast_in_dim %nought, dims = [] : (tensor<{call.element}>) -> {call.tensor()}
  %units_b = stablehlo.broadcast_in_dim %unit, dims = [] : (tensor<{call.element}>) -> {call.tensor()}"""


def _number(call: _Call, value: int) -> str:
    return f"({value}.0, 0.0)" if call.real != call.element else f"{value}.0"


def _positions(call: _Call) -> str:
    """Masks of step ``%i``: its row and column, what is below and right of them."""
    masks = [("at_row", "EQ", "rows"), ("below", "GT", "rows")]
    masks += [("at_column", "EQ", "columns"), ("right", "GT", "columns")]
    lines = [f"%here = stablehlo.broadcast_in_dim %i, dims = [] : (tensor<i32>) -> {call.cube}"]
    lines += [
        f"%{name} = stablehlo.compare {how}, %{of}, %here : ({call.cube}, {call.cube}) -> {call.mask}"
        for name, how, of in masks
    ]
    return "\n    ".join(lines)


def _sum(call: _Call, result: str, mask: str, value: str, axis: int) -> str:
    """Add, over ``axis``, the elements of ``value`` under ``mask`` (none of the others, not even NaN)."""
    kind = call.tensor(call.columns if axis == 1 else call.rows)
    return f"""%{result}_part = stablehlo.select %{mask}, %{value}, %noughts : {call.mask}, {call.matrix}
    %{result} = stablehlo.reduce(%{result}_part init: %nought) applies stablehlo.add across dimensions = [{axis}]
      : ({call.matrix}, tensor<{call.element}>) -> {kind}"""


def _element(call: _Call, result: str, of: str, axis: int) -> str:
    """Element ``%i`` of each vector ``of`` (one an index of ``axis``), as one number a batch."""
    size = call.rows if axis == 1 else call.columns
    one, vector = call.tensor(1), call.tensor(size)
    return f"""%{result}_one = stablehlo.dynamic_slice %{of}, %zero, %i, sizes = [{call.batch}, 1]
      : ({vector}, tensor<i32>, tensor<i32>) -> {one}
    %{result} = stablehlo.reshape %{result}_one : ({one}) -> {call.tensor()}"""


def _spread(call: _Call, result: str, of: str, dims: str, kind: str) -> str:
    """A vector or a number a batch, everywhere in the matrix."""
    return (
        f"%{result} = stablehlo.broadcast_in_dim %{of}, dims = [{dims}] : ({kind}) -> {call.matrix}"
    )


def _pivot(call: _Call) -> str:
    """``%pivot``: the row of the largest element of ``%column`` from row ``%i`` on, by LAPACK's magnitude."""
    vector, wide = call.tensor(call.rows, of=call.real), call.tensor(call.rows, of="i32")
    flags, scalar = call.tensor(call.rows, of="i1"), f"tensor<{call.real}>"
    size = f"%size = stablehlo.abs %column : {vector}"
    if call.real != call.element:
        given = call.tensor(call.rows)
        size = f"""%re = stablehlo.real %column : ({given}) -> {vector}
    %im = stablehlo.imag %column : ({given}) -> {vector}
    %re_size = stablehlo.abs %re : {vector}
    %im_size = stablehlo.abs %im : {vector}
    %size = stablehlo.add %re_size, %im_size : {vector}"""
    return f"""{size}
    %row = stablehlo.iota dim = 1 : {wide}
    %i_row = stablehlo.broadcast_in_dim %i, dims = [] : (tensor<i32>) -> {wide}
    %open = stablehlo.compare GE, %row, %i_row : ({wide}, {wide}) -> {flags}
    %minus = stablehlo.constant dense<-1.0> : {scalar}
    %minuses = stablehlo.broadcast_in_dim %minus, dims = [] : ({scalar}) -> {vector}
    %sizes = stablehlo.select %open, %size, %minuses : {flags}, {vector}
    %largest, %pivot = stablehlo.reduce(%sizes init: %minus), (%row init: %i) across dimensions = [1]
      : ({vector}, {wide}, {scalar}, tensor<i32>) -> ({call.tensor(of=call.real)}, {call.tensor(of="i32")})
      reducer(%x: {scalar}, %y: {scalar}) (%xi: tensor<i32>, %yi: tensor<i32>) {{
      %more = stablehlo.compare GT, %x, %y, FLOAT : ({scalar}, {scalar}) -> tensor<i1>
      %same = stablehlo.compare EQ, %x, %y, FLOAT : ({scalar}, {scalar}) -> tensor<i1>
      %first = stablehlo.compare LT, %xi, %yi : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %tie = stablehlo.and %same, %first : tensor<i1>
      %win = stablehlo.or %more, %tie : tensor<i1>
      %z = stablehlo.select %win, %x, %y : tensor<i1>, {scalar}
      %zi = stablehlo.select %win, %xi, %yi : tensor<i1>, tensor<i32>
      stablehlo.return %z, %zi : {scalar}, tensor<i32>
    }}"""


def _while(call: _Call, carried: dict[str, tuple[str, str]], body: str, results: str) -> str:
    """A loop over ``%i`` from 0 below the number of steps; ``carried``: name to initial value and type."""
    heads = "".join(f", %{name} = %{first}" for name, (first, _) in carried.items())
    kinds = ", ".join(["tensor<i32>", *(kind for _, kind in carried.values())])
    return f"""
  %steps = stablehlo.constant dense<{call.steps}> : tensor<i32>
  %end:{len(carried) + 1} = stablehlo.while(%i = %zero{heads}) : {kinds}
  cond {{
    %going = stablehlo.compare LT, %i, %steps : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %going : tensor<i1>
  }} do {{
    {body}
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, {results} : {kinds}
  }}"""


def _getrf(call: _Call) -> str:
    """``a → (l and u, pivots from 1, info)``."""
    pivots, info = call.tensor(call.steps, of="i32"), call.tensor(of="i32")
    number, column, line = call.tensor(), call.tensor(call.rows), call.tensor(call.columns)
    flags = call.tensor(of="i1")
    body = f"""{_positions(call)}
    {_sum(call, "column", "at_column", "a", 2)}
    {_pivot(call)}
    %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<i32>) -> {info}
    %pivot1 = stablehlo.add %pivot, %ones : {info}
    %pivot2 = stablehlo.reshape %pivot1 : ({info}) -> {call.tensor(1, of="i32")}
    %p1 = stablehlo.dynamic_update_slice %p, %pivot2, %zero, %i
      : ({pivots}, {call.tensor(1, of="i32")}, tensor<i32>, tensor<i32>) -> {pivots}
    %there = stablehlo.broadcast_in_dim %pivot, dims = [0] : ({info}) -> {call.cube}
    %at_pivot = stablehlo.compare EQ, %rows, %there : ({call.cube}, {call.cube}) -> {call.mask}
    {_sum(call, "line", "at_pivot", "a", 1)}
    {_sum(call, "old", "at_row", "a", 1)}
    {_spread(call, "lines", "line", "0, 2", line)}
    {_spread(call, "olds", "old", "0, 2", line)}
    %moved = stablehlo.select %at_pivot, %olds, %a : {call.mask}, {call.matrix}
    %swapped = stablehlo.select %at_row, %lines, %moved : {call.mask}, {call.matrix}
    {_sum(call, "swapped_column", "at_column", "swapped", 2)}
    {_element(call, "d", "swapped_column", 1)}
    %singular = stablehlo.compare EQ, %d, %noughts_b : ({number}, {number}) -> {flags}
    %divisor = stablehlo.select %singular, %units_b, %d : {flags}, {number}
    {_spread(call, "divisors", "divisor", "0", number)}
    {_spread(call, "all", "swapped_column", "0, 1", column)}
    %quotients = stablehlo.divide %all, %divisors : {call.matrix}
    %factors = stablehlo.select %below, %quotients, %noughts : {call.mask}, {call.matrix}
    %product = stablehlo.multiply %factors, %lines : {call.matrix}
    %rest = stablehlo.subtract %swapped, %product : {call.matrix}
    %inside = stablehlo.and %below, %right : {call.mask}
    %left = stablehlo.and %below, %at_column : {call.mask}
    %a1 = stablehlo.select %inside, %rest, %swapped : {call.mask}, {call.matrix}
    %a2 = stablehlo.select %left, %factors, %a1 : {call.mask}, {call.matrix}
    %clean = stablehlo.compare EQ, %info, %none : ({info}, {info}) -> {flags}
    %newly = stablehlo.and %clean, %singular : {flags}
    %i1 = stablehlo.add %i, %one : tensor<i32>
    %at = stablehlo.broadcast_in_dim %i1, dims = [] : (tensor<i32>) -> {info}
    %info1 = stablehlo.select %newly, %at, %info : {flags}, {info}"""
    carried = {
        "a": ("given", call.matrix),
        "p": ("pivots", pivots),
        "info": ("none", info),
    }
    return f"""(%given: {call.matrix}) -> ({call.matrix}, {pivots}, {info}) {{{_prologue(call)}
  %pivots = stablehlo.constant dense<0> : {pivots}
  %none = stablehlo.constant dense<0> : {info}{_while(call, carried, body, "%a2, %p1, %info1")}
  return %end#1, %end#2, %end#3 : {call.matrix}, {pivots}, {info}
}}"""


_ROUTINES: dict[str, Callable[[_Call], str]] = {
    "getrf": _getrf,
    "potrf": _potrf,
    "trsm": _trsm,
}
