# SPDX-License-Identifier: Apache-2.0
"""Where a ``scatter`` puts its updates: index arithmetic shared by the emitters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.elemental.core import to_index
from gristmill.compiler.graph import Node


@dataclass(frozen=True)
class ScatterProblem:
    """One ``scatter``: an update's index is a *batch* part (which scatter index) and a *window* part."""

    node: Node

    @property
    def count(self) -> int:
        """Number of inputs, of updates and of results."""
        return len(self.node.siblings)

    @property
    def inputs(self) -> list[Node]:
        """What is updated."""
        return self.node.operands[: self.count]

    @property
    def indices(self) -> Node:
        """The scatter indices."""
        return self.node.operands[self.count]

    @property
    def updates(self) -> list[Node]:
        """What is combined into the inputs."""
        return self.node.operands[self.count + 1 : 2 * self.count + 1]

    @property
    def captures(self) -> list[Node]:
        """What the body reads besides."""
        return self.node.operands[2 * self.count + 1 :]

    @cached_property
    def window(self) -> list[int]:
        """Dimensions of an update that are its window."""
        return self.node.dims("update_window_dims")

    @cached_property
    def batch(self) -> list[int]:
        """Dimensions of an update that are not its window."""
        return [d for d in range(len(self.updates[0].shape)) if d not in self.window]

    @cached_property
    def apart(self) -> list[int]:
        """Dimensions of an update's window along which windows do not move: what differs there never meets."""
        if math.prod(self.updates[0].shape[d] for d in self.batch) <= 1:
            return self.window
        indexed = self.node.dims("scatter_dims_to_operand_dims")
        pairs = zip(self.window, self.window_dims(), strict=True)
        return [d for d, target in pairs if target not in indexed]

    def window_dims(self) -> list[int]:
        """Input dimensions that window offsets are added to, in window order."""
        node = self.node
        skipped = {*node.dims("inserted_window_dims"), *node.dims("input_batching_dims")}
        return [d for d in range(len(self.inputs[0].shape)) if d not in skipped]

    def inside(self, at: list[Index], dims: Sequence[int]) -> ir.Value | None:
        """Whether ``at`` is inside the input in ``dims``; ``None`` where it cannot be outside."""
        inside: ir.Value | None = None
        indexed = set(self.node.dims("scatter_dims_to_operand_dims"))
        for d in dims:
            if d not in indexed:
                continue  # a plain window or batching index: within the extent by the operation's rules
            extent = self.inputs[0].shape[d]
            for condition in (build.at_least(at[d], 0), build.less(at[d], extent)):
                inside = condition if inside is None else arith.AndIOp(inside, condition).result
        return inside

    def starts(self, e: Elemental, batch: list[Index]) -> list[Index]:
        """Where this scatter index's window starts in the input (``full_start_index`` + batching index)."""
        node = self.node
        result: list[Index] = [0] * len(self.inputs[0].shape)
        vector_dim = node.integer("index_vector_dim")
        for position, d in enumerate(node.dims("scatter_dims_to_operand_dims")):
            at = list(batch)
            if vector_dim < len(self.indices.shape):
                at.insert(vector_dim, position)
            result[d] = to_index(self.indices.type.element, e.value(self.indices, at))
        batching = zip(
            node.dims("input_batching_dims"),
            node.dims("scatter_indices_batching_dims"),
            strict=True,
        )
        for d, start_dim in batching:
            result[d] = batch[start_dim - (1 if start_dim > vector_dim else 0)]
        return result

    def update_index(self, batch: list[Index], window: list[Index]) -> list[Index]:
        """The index in an update of a batch part and a window part."""
        outer, inner = iter(batch), iter(window)
        return [
            next(inner) if d in self.window else next(outer)
            for d in range(len(self.updates[0].shape))
        ]
