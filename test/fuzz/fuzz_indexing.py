# SPDX-License-Identifier: Apache-2.0
"""Gathers, scatters and sorts of random programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fuzz_elementwise import merged
from fuzz_movement import any_value
from fuzz_scope import MOST_ELEMENTS, Scope, dims, region, scalar_arguments
from fuzz_values import (
    Value,
    count,
    is_complex,
    is_float,
    is_integer,
    overflows,
    rounded,
)


@dataclass(frozen=True)
class Windows:
    """The dimension numbers that gathers and scatters share.

    Attributes:
        sizes: of a window, along each dimension of the operand.
        mapped: dimensions that the indices are of.
        dropped: dimensions of size 1 that the windows in the result do not have.
        batching: dimensions of the operand that the indices have too.
        index_shape: shape of the indices.
        index_batching: where those dimensions are in the indices.
        vector: the dimension of the indices that holds one index each.
        places: dimensions of the result that are those of a window.
        shape: of all windows together.
        times: number of windows.
    """

    sizes: list[int]
    mapped: list[int]
    dropped: list[int]
    batching: list[int]
    index_shape: tuple[int, ...]
    index_batching: list[int]
    vector: int
    places: list[int]
    shape: tuple[int, ...]
    times: int

    def numbers(self, names: tuple[str, str, str, str, str]) -> str:
        """The text of the dimension numbers, by the operation's names for the lists."""
        lists = [self.places, self.dropped, self.batching, self.index_batching, self.mapped]
        parts = [f"{name} = {items}" for name, items in zip(names, lists, strict=True) if items]
        return ", ".join([*parts, f"index_vector_dim = {self.vector}"])


def windows(scope: Scope, shape: tuple[int, ...]) -> Windows:
    """Any dimension numbers for an operand of ``shape``, which has no dimension of size 0."""
    choose = scope.choose
    rank = len(shape)
    order = choose.permutation(rank)
    mapped = order[: choose.integer(1, rank)]
    batching = [a for a in order[len(mapped) :] if shape[a] <= 5 and choose.coin()]
    sizes = [
        1
        if axis in batching or (axis in mapped and choose.coin())
        else choose.integer(1, shape[axis])
        for axis in range(rank)
    ]
    batching.sort()
    dropped = [a for a in range(rank) if sizes[a] == 1 and a not in batching and choose.coin()]
    free = choose.shape((0, 2), 20)
    lead = [(-1, size) for size in free] + [(axis, shape[axis]) for axis in batching]
    lead = [lead[index] for index in choose.permutation(len(lead))]
    batch = tuple(size for _, size in lead)
    vector = len(batch)
    index_shape = batch
    if len(mapped) > 1 or not choose.coin():
        vector = choose.integer(0, len(batch))
        index_shape = (*batch[:vector], len(mapped), *batch[vector:])
    at = {axis: place + (place >= vector) for place, (axis, _) in enumerate(lead)}
    window = [s for axis, s in enumerate(sizes) if axis not in dropped and axis not in batching]
    places = sorted(choose.permutation(len(window) + len(batch))[: len(window)])
    result, left, right = list[int](), list(window), list(batch)
    for axis in range(len(window) + len(batch)):
        result.append(left.pop(0) if axis in places else right.pop(0))
    return Windows(
        sizes,
        mapped,
        dropped,
        batching,
        index_shape,
        [at[axis] for axis in batching],
        vector,
        places,
        tuple(result),
        count(batch),
    )


GATHER = (
    "offset_dims",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "start_index_map",
)
SCATTER = (
    "update_window_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims",
)


def gather(scope: Scope) -> list[Value]:
    """A gather of any dimension numbers; some windows are out of bounds."""
    value = any_value(scope, 1)
    if 0 in value.shape:
        return []
    form = windows(scope, value.shape)
    if count(form.shape) > 2 * MOST_ELEMENTS or count(form.index_shape) > MOST_ELEMENTS:
        return []
    starts = scope.indices(form.index_shape, scope.choose.of(("i32", "i64", "ui8", "i8")))
    text = f"dimension_numbers = #stablehlo.gather<{form.numbers(GATHER)}>, "
    text += f"{dims('slice_sizes', form.sizes)}, indices_are_sorted = false"
    return [scope.one("gather", [value, starts], replace(value, shape=form.shape), text)]


def scatter(scope: Scope) -> list[Value]:
    """A scatter of any dimension numbers into one or two values, by operations that commute."""
    value = any_value(scope, 1)
    if 0 in value.shape:
        return []
    form = windows(scope, value.shape)
    if count(form.shape) > 2 * MOST_ELEMENTS or count(form.index_shape) > MOST_ELEMENTS:
        return []
    values = [value]
    if scope.choose.coin():
        other = scope.find(lambda v: v.size > 0)
        values.append(scope.fit(value if other is None else other, value.shape))
    updates = [scope.fit(scope.of_type(v.element), form.shape) for v in values]
    starts = scope.indices(form.index_shape)
    chosen = [_combination(scope, v, u, form.times) for v, u in zip(values, updates, strict=True)]
    if any(overflows(info.element, info.bound) for _, info in chosen):
        return []
    text = f"scatter_dimension_numbers = #stablehlo.scatter<{form.numbers(SCATTER)}>, "
    text += "indices_are_sorted = false, unique_indices = false"
    arguments = scalar_arguments(scope, [v.element for v in (*values, *updates)])
    body = scope.inner()
    results: list[Value] = []
    for index, (name, _) in enumerate(chosen):
        pair = [arguments[index], arguments[index + len(values)]]
        kind = Value("", pair[0].element, ())
        results.append(body.one(name, pair, kind) if name else pair[1])
    inside = region(body, arguments, results, body.lines)
    # The interpreter writes into its operand, which other operations read: give it a copy.
    copies = [scope.one("reverse", [v], v, dims("dimensions", [])) for v in values]
    infos = [info for _, info in chosen]
    made = scope.op("scatter", [*copies, starts, *updates], infos, text, inside)
    return [scope.tame(v) for v in made]


def _combination(scope: Scope, value: Value, updates: Value, times: int) -> tuple[str, Value]:
    """How a scatter combines: the operation (none: the update wins), and what is known of the result."""
    names = ["add"]
    if value.element == "i1":
        names = ["or", "and", "xor"]
    elif not is_complex(value.element):
        names += ["maximum", "minimum"]
    if is_integer(value.element):
        names += ["multiply", "and", "or", "xor"]
    if times <= 1:
        names.append("")
    name = scope.choose.of(names)
    info = merged(value, updates)
    if name == "add" and not is_integer(value.element):
        bound = value.bound + times * updates.bound
        grid = info.grid
        error, grid = rounded(value.element, bound, value.error + times * updates.error, grid)
        info = replace(info, bound=bound, error=error * (1 if error == 0 else times + 1), grid=grid)
    return name, info


def _kind(element: str) -> str:
    """How numbers of a type are compared."""
    if element.startswith("u") or element == "i1":
        return "UNSIGNED"
    return "FLOAT" if is_float(element) else "SIGNED"


def compared(scope: Scope, direction: str, left: Value, right: Value, kind: str = "") -> Value:
    """A comparison, of the usual kind unless it is given."""
    text = f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
    text += f"compare_type = #stablehlo<comparison_type {kind or _kind(left.element)}>"
    return scope.one("compare", [left, right], Value("", "i1", left.shape), text)


def _first(scope: Scope, body: Scope, arguments: list[Value], second: Value | None) -> Value:
    """Whether the first of two elements comes first, by an order of the key and of a second key."""
    direction = scope.choose.of(("LT", "GT"))
    pair = arguments[:2]
    forms = ["plain", "plain", "never"]
    if is_float(pair[0].element):
        forms += ["magnitude", "total"]
    if is_integer(pair[0].element):
        forms.append("bits")
    if second is not None and second.exact and not is_complex(second.element):
        forms += ["lexicographic", "second"]
    form = scope.choose.of(forms)
    if form == "never":
        return body.constant("i1", 0)
    if form == "total":
        return compared(body, direction, pair[0], pair[1], "TOTALORDER")
    if form == "magnitude":
        pair = [body.one("abs", [v], v) for v in pair]
    if form == "bits":
        mask = body.constant(pair[0].element, 3)
        pair = [body.one("and", [v, mask], v) for v in pair]
    if form == "second":
        return compared(body, direction, arguments[2], arguments[3])
    result = compared(body, direction, pair[0], pair[1])
    if form == "lexicographic":
        flag = Value("", "i1", ())
        equal = compared(body, "EQ", pair[0], pair[1])
        later = compared(body, scope.choose.of(("LT", "GT")), arguments[2], arguments[3])
        result = body.one("or", [result, body.one("and", [equal, later], flag)], flag)
    return result


def sort(scope: Scope) -> list[Value]:
    """A stable sort of one to three operands along any dimension by many kinds of comparator."""
    key = scope.find(lambda v: v.exact and not is_complex(v.element) and len(v.shape) >= 1)
    if key is None:
        return []
    axis = scope.choose.integer(0, len(key.shape) - 1)
    operands = [key]
    for _ in range(scope.choose.integer(0, 2)):
        other = scope.find(lambda v: True)
        assert other is not None, "a program has arguments"
        operands.append(scope.fit(other, key.shape))
    arguments = scalar_arguments(scope, [o.element for o in operands for _ in range(2)])
    body = scope.inner()
    smaller = _first(scope, body, arguments, operands[1] if len(operands) > 1 else None)
    inside = region(body, arguments, [smaller], body.lines)
    attributes = f"dimension = {axis} : i64, is_stable = true"
    return scope.op("sort", operands, operands, attributes, inside)


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (gather, scatter, sort)
