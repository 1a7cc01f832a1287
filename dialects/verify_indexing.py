# SPDX-License-Identifier: Apache-2.0
"""Verification of ``gather`` and ``scatter``."""

from __future__ import annotations

from gristmill.dialects.types import Tensor
from gristmill.dialects.verify_rules import (
    OpView,
    Rule,
    check,
    check_dimensions,
    check_element,
    check_length,
    check_shape,
    check_signature,
    check_type,
    scalar,
)


def _index_batch(indices: Tensor, index_vector_dim: int) -> tuple[list[int], int]:
    """(sizes of the batch dimensions of the indices, components of one index)."""
    check(
        0 <= index_vector_dim <= indices.rank,
        f"'index_vector_dim' must lie in [0, {indices.rank}], got {index_vector_dim}",
    )
    check(indices.is_integer, f"the indices must be integers, got {indices}")
    batch = [size for d, size in enumerate(indices.shape) if d != index_vector_dim]
    count = indices.shape[index_vector_dim] if index_vector_dim < indices.rank else 1
    return batch, count


def _check_operand_dims(
    operand: Tensor, named: dict[str, list[int]], window: int, window_name: str
) -> None:
    """Collapsed (or inserted) and batching dimensions: sorted, disjoint, the rest is the window."""
    every: list[int] = []
    for name, values in named.items():
        check_dimensions(name, values, operand.rank, increasing=True)
        every += values
    check(len(set(every)) == len(every), f"{' and '.join(map(repr, named))} overlap: {every}")
    check(
        operand.rank == len(every) + window,
        f"rank {operand.rank} of the operand must be the {len(every)} dimensions of "
        f"{' and '.join(map(repr, named))} and the {window} of {window_name!r}",
    )


def _check_batching(
    operand: Tensor,
    indices: Tensor,
    index_vector_dim: int,
    operand_dims: list[int],
    index_dims: list[int],
    index_name: str,
) -> None:
    check_dimensions(index_name, index_dims, indices.rank)
    check(
        index_vector_dim not in index_dims,
        f"{index_name!r} must not hold the index vector dimension {index_vector_dim}",
    )
    check_length(index_name, index_dims, len(operand_dims))
    for mine, theirs in zip(operand_dims, index_dims, strict=True):
        check(
            operand.shape[mine] == indices.shape[theirs],
            f"batching dimension {mine} of the operand has size {operand.shape[mine]}, that of the "
            f"indices {indices.shape[theirs]}",
        )


def _check_index_map(
    name: str, values: list[int], operand: Tensor, batching: list[int], components: int
) -> None:
    check_length(name, values, components)
    check_dimensions(name, values, operand.rank)
    check(not set(values) & set(batching), f"{name!r} overlaps the batching dimensions: {values}")


def _gather(view: OpView) -> None:
    operand, indices = view.operands
    offset, collapsed = view.dims("offset_dims"), view.dims("collapsed_slice_dims")
    batching = view.dims("operand_batching_dims")
    vector, sizes = view.integer("index_vector_dim"), view.dims("slice_sizes")
    check_element("result", view.result, operand.element)
    batch, components = _index_batch(indices, vector)
    removed = {"collapsed_slice_dims": collapsed, "operand_batching_dims": batching}
    _check_operand_dims(operand, removed, len(offset), "offset_dims")
    index_dims = view.dims("start_indices_batching_dims")
    _check_batching(operand, indices, vector, batching, index_dims, "start_indices_batching_dims")
    _check_index_map("start_index_map", view.dims("start_index_map"), operand, batching, components)
    check_length("slice_sizes", sizes, operand.rank)
    check(
        all(0 <= size <= extent for size, extent in zip(sizes, operand.shape, strict=True)),
        f"'slice_sizes' must lie within the operand {operand}, got {sizes}",
    )
    check(
        all(sizes[d] <= 1 for d in [*collapsed, *batching]),
        f"'slice_sizes' must be 1 in collapsed and batching dimensions, got {sizes}",
    )
    rank = len(batch) + len(offset)
    check_dimensions("offset_dims", offset, rank, increasing=True)
    window = iter([size for d, size in enumerate(sizes) if d not in {*collapsed, *batching}])
    outer = iter(batch)
    check_shape(
        "result", view.result, [next(window if d in offset else outer) for d in range(rank)]
    )


def _scatter(view: OpView) -> None:
    count = len(view.results)
    check(
        count > 0 and len(view.operands) >= 2 * count + 1,
        f"{count} results need {count} inputs, indices and {count} updates, "
        f"got {len(view.operands)} operands",
    )
    inputs, indices = view.operands[:count], view.operands[count]
    updates, captures = (
        view.operands[count + 1 : 2 * count + 1],
        view.operands[2 * count + 1 :],
    )
    for index, (operand, result) in enumerate(zip(inputs, view.results, strict=True)):
        check_shape(f"input {index}", operand, inputs[0].shape)
        check_shape(f"update {index}", updates[index], updates[0].shape)
        check_type(f"result {index}", result, operand)
    _check_scatter_dims(view, inputs[0], indices, updates[0])
    scalars = [scalar(kind) for kind in inputs]
    changes = [scalar(kind) for kind in updates]
    check_signature(view.function("to_apply"), [*scalars, *changes, *captures], scalars)


def _check_scatter_dims(view: OpView, operand: Tensor, indices: Tensor, update: Tensor) -> None:
    window, inserted = view.dims("update_window_dims"), view.dims("inserted_window_dims")
    batching, vector = view.dims("input_batching_dims"), view.integer("index_vector_dim")
    batch, components = _index_batch(indices, vector)
    removed = {"inserted_window_dims": inserted, "input_batching_dims": batching}
    _check_operand_dims(operand, removed, len(window), "update_window_dims")
    index_dims = view.dims("scatter_indices_batching_dims")
    _check_batching(operand, indices, vector, batching, index_dims, "scatter_indices_batching_dims")
    mapped = view.dims("scatter_dims_to_operand_dims")
    _check_index_map("scatter_dims_to_operand_dims", mapped, operand, batching, components)
    rank = len(batch) + len(window)
    check(update.rank == rank, f"updates must have rank {rank}, got {update}")
    check_dimensions("update_window_dims", window, rank, increasing=True)
    outer = [size for d, size in enumerate(update.shape) if d not in window]
    check(
        outer == batch, f"the updates' dimensions outside the window must be {batch}, got {outer}"
    )
    limits = [size for d, size in enumerate(operand.shape) if d not in {*inserted, *batching}]
    inner = [update.shape[d] for d in window]
    check(
        all(size <= limit for size, limit in zip(inner, limits, strict=True)),
        f"the updates' window {inner} must fit into the input's {limits}",
    )


#: Rules of these operations.
RULES: dict[str, Rule] = {"gather": _gather, "scatter": _scatter}
