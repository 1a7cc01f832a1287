# SPDX-License-Identifier: Apache-2.0
"""A convolution in one normal form: batch, spatial dimensions, channels last; groups apart; tiles chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.blocking import DEFAULT, Blocking
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.conv_dimension import ConvDimension
from gristmill.compiler.emitters.cpu.windows import WindowDimension
from gristmill.compiler.emitters.elemental.contraction import accumulator_type
from gristmill.compiler.graph import Node
from gristmill.compiler.target import Target
from gristmill.runtime.types import ElementType

#: Tasks that each thread should have at least.
_TASKS_A_THREAD = 4
#: Multiply-adds below which the elementwise form is as good.
_MIN_WORK = 4096
#: Features up to which vectors may hold channels instead, and a number of channels that fills vectors.
_FEW_FOR_CHANNELS, _MANY_CHANNELS = 4, 16
#: Features of a group up to which vectors of a row's outputs are preferred: where rows have to be copied, where they
#: need not, and there of one channel, when there is little work for the stores of features that lie apart.
_FEW_OF_COPIED, _FEW_FEATURES, _FEW_OF_ONE_CHANNEL = 4, 7, 16
#: Outputs of a row that vectors can be made of.
_MIN_ROW = 4


@dataclass(frozen=True)
class ConvProblem:
    """One ``convolution``.

    Attributes:
        node: the operation.
        element: the type it is computed in.
        batch: output batches.
        groups: feature or batch groups; 1 where depthwise.
        batch_groups: whether groups divide the batch rather than the input features.
        depthwise: every feature is computed from the channel of the same number.
        channels: input channels of one output feature.
        features: output features of one group.
        inputs: input channels in all.
        extents: the input's spatial extents.
        kernel: the window's spatial extents.
        outputs: the output's spatial extents.
        strides, dilations, low, base, reversal: of the window; the padding before and the dilation of the input.
    """

    node: Node
    element: ElementType
    batch: int
    groups: int
    batch_groups: bool
    depthwise: bool
    channels: int
    features: int
    inputs: int
    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    outputs: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    base: tuple[int, ...]
    reversal: tuple[int, ...]

    @staticmethod
    def of(node: Node) -> ConvProblem:
        """Read the operation; a convolution without spatial dimensions gets one of extent 1."""
        lhs, rhs = node.operands
        feature_groups, batch_groups = (
            node.integer("feature_group_count"),
            node.integer("batch_group_count"),
        )
        groups = feature_groups * batch_groups
        features = node.shape[node.integer("output_feature_dimension")]
        channels = rhs.shape[node.integer("kernel_input_feature_dimension")]
        depthwise = feature_groups > 1 and channels == 1 and features == feature_groups
        has_space = bool(node.dims("input_spatial_dimensions"))

        def spatial(shape: Sequence[int], name: str) -> tuple[int, ...]:
            return tuple(shape[d] for d in node.dims(name)) if has_space else (1,)

        def window(name: str, default: int) -> tuple[int, ...]:
            return tuple(node.dims(name)) if has_space else (default,)

        return ConvProblem(
            node,
            accumulator_type(lhs.type.element, rhs.type.element, node.type.element),
            node.shape[node.integer("output_batch_dimension")],
            1 if depthwise else groups,
            batch_groups > 1,
            depthwise,
            channels,
            features if depthwise else features // max(1, groups),
            lhs.shape[node.integer("input_feature_dimension")],
            spatial(lhs.shape, "input_spatial_dimensions"),
            spatial(rhs.shape, "kernel_spatial_dimensions"),
            spatial(node.shape, "output_spatial_dimensions"),
            window("window_strides", 1),
            window("rhs_dilation", 1),
            window("padding_low", 0),
            window("lhs_dilation", 1),
            window("window_reversal", 0),
        )

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return math.prod(self.kernel)

    @cached_property
    def dimensions(self) -> tuple[ConvDimension, ...]:
        """The spatial dimensions."""
        fields = (self.kernel, self.strides, self.dilations, self.low, self.base, self.outputs)
        return tuple(ConvDimension(*values) for values in zip(*fields, strict=True))

    @property
    def work(self) -> int:
        """Multiply-adds, those with the zeros between a dilated input's elements left out."""
        windows = self.node.type.size // math.prod(self.outputs)
        return windows * math.prod(d.reads for d in self.dimensions) * self.channels

    @property
    def width(self) -> int:
        """Pixels of a row that are computed from the same taps."""
        return self.dimensions[-1].windows(0)

    @property
    def is_dilated(self) -> bool:
        """Whether there are zeros between the input's elements."""
        return any(b > 1 for b in self.base)

    @property
    def padding(self) -> tuple[int, ...]:
        """Elements before the input's first that windows reach, not counting the zeros between elements."""
        return tuple(d.padding for d in self.dimensions)

    @property
    def padded(self) -> tuple[int, ...]:
        """Spatial extents of the input with the padding that windows reach."""
        return tuple(d.padded for d in self.dimensions)

    @property
    def natural_input(self) -> bool:
        """Whether the operand is laid out batch, space, channels, in the type computed in."""
        node, rank = self.node, len(self.node.shape)
        return (
            node.integer("input_batch_dimension") == 0
            and node.integer("input_feature_dimension") == rank - 1
            and node.dims("input_spatial_dimensions") == list(range(1, rank - 1))
            and node.operands[0].type.element == self.element
        )

    @property
    def reads_input(self) -> bool:
        """Whether windows can read the operand as it is, without a look at its borders."""
        inside = all(p <= e for p, e in zip(self.padded, self.extents, strict=True))
        return self.natural_input and inside and not any(self.padding)

    def window(self, dimension: int) -> WindowDimension:
        """The windows along one spatial dimension of an input that is not dilated."""
        return WindowDimension(
            self.kernel[dimension],
            self.strides[dimension],
            self.dilations[dimension],
            self.low[dimension],
            self.extents[dimension],
            self.outputs[dimension],
        )

    @property
    def reads_kernel(self) -> bool:
        """Whether the weights are laid out window, channel, feature."""
        node, rank = self.node, len(self.node.shape)
        return (
            node.integer("kernel_output_feature_dimension") == rank - 1
            and node.integer("kernel_input_feature_dimension") == rank - 2
            and node.dims("kernel_spatial_dimensions") == list(range(rank - 2))
            and node.operands[1].type.element == self.element
            and not any(self.reversal)
        )

    @property
    def writes_output(self) -> bool:
        """Whether the output is laid out batch, space, features, in the type computed in."""
        node, rank = self.node, len(self.node.shape)
        return (
            node.integer("output_batch_dimension") == 0
            and node.integer("output_feature_dimension") == rank - 1
            and node.dims("output_spatial_dimensions") == list(range(1, rank - 1))
            and node.type.element == self.element
        )

    @property
    def row_dimension(self) -> int:
        """The spatial dimension that vectors lie along where features do not fill them: the last with extent."""
        return max((d for d, size in enumerate(self.outputs) if size > 1), default=0)

    @property
    def reads_rows(self) -> bool:
        """Whether neighbouring windows along ``row_dimension`` read neighbouring elements of the operand as it is."""
        lhs, d = self.node.operands[0], self.row_dimension
        where = self.node.dims("input_spatial_dimensions")[d]
        adjacent = math.prod(lhs.shape[where + 1 :]) == 1 and self.strides[d] == 1
        return adjacent and lhs.type.element == self.element

    @property
    def writes_rows(self) -> bool:
        """The same of the output: whether neighbouring ones along ``row_dimension`` are neighbouring elements."""
        where = self.node.dims("output_spatial_dimensions")[self.row_dimension]
        adjacent = math.prod(self.node.shape[where + 1 :]) == 1
        return adjacent and self.node.type.element == self.element

    @property
    def runs_along_rows(self) -> bool:
        """Whether vectors of neighbouring outputs are better than vectors of features or channels.

        They are where features do not fill vectors, and where rows need not be copied while features would.
        """
        width = self.outputs[self.row_dimension]
        if width < _MIN_ROW or self.is_dilated:
            return False
        in_rows = self.reads_rows and self.writes_rows
        if self.depthwise:
            return in_rows and width >= 2 * _MIN_ROW
        if not in_rows:  # rows would be copied; channels that fill vectors need not be
            return self.features <= _FEW_OF_COPIED and self.channels % _MANY_CHANNELS != 0
        return self.features <= (_FEW_OF_ONE_CHANNEL if self.channels == 1 else _FEW_FEATURES)

    def input_index(self, batch: Index, channel: Index, position: Sequence[Index]) -> list[Index]:
        """Where an element lies in the operand."""
        node = self.node
        index: list[Index] = [0] * len(node.operands[0].shape)
        index[node.integer("input_batch_dimension")] = batch
        index[node.integer("input_feature_dimension")] = channel
        for d, at in zip(node.dims("input_spatial_dimensions"), position, strict=False):
            index[d] = at
        return index

    def kernel_index(self, window: Sequence[Index], channel: Index, feature: Index) -> list[Index]:
        """Where the weight of a position of the window lies in the kernel, which may be reversed."""
        node = self.node
        index: list[Index] = [0] * len(node.operands[1].shape)
        index[node.integer("kernel_input_feature_dimension")] = channel
        index[node.integer("kernel_output_feature_dimension")] = feature
        where = node.dims("kernel_spatial_dimensions")
        for d, at, size, flipped in zip(where, window, self.kernel, self.reversal, strict=False):
            index[d] = build.sub(size - 1, at) if flipped else at
        return index

    def output_index(self, batch: Index, feature: Index, position: Sequence[Index]) -> list[Index]:
        """Where an output lies in the result."""
        node = self.node
        index: list[Index] = [0] * len(node.shape)
        index[node.integer("output_batch_dimension")] = batch
        index[node.integer("output_feature_dimension")] = feature
        for d, at in zip(node.dims("output_spatial_dimensions"), position, strict=False):
            index[d] = at
        return index

    def multiply_add(self, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """``total + a * b`` in the type computed in, fused where there is an instruction for it."""
        if self.element.is_float:
            contract = arith.FastMathFlags.contract
            product = arith.MulFOp(a, b, fastmath=contract).result
            return arith.AddFOp(total, product, fastmath=contract).result
        return arith.AddIOp(total, arith.MulIOp(a, b).result).result


def is_direct(node: Node) -> bool:
    """Whether the convolution emitter serves the operation: numbers of one kind, and work enough."""
    if 0 in (node.type.size, node.operands[0].type.size, node.operands[1].type.size):
        return False
    problem = ConvProblem.of(node)
    kinds = {x.type.element.kind for x in (node, *node.operands)}
    return (kinds <= {"float"} or kinds <= {"int", "uint"}) and (problem.work >= _MIN_WORK)


@dataclass(frozen=True)
class Tile:
    """What is held in registers: ``pixels`` of the last spatial dimension by ``vectors`` of ``lanes`` features.

    Of too few features to fill a vector, each has a vector of its own, of the sums over every ``lanes``-th channel.

    Attributes:
        features: features of one group, padded to whole tiles.
        chunk: pixels of one task, a multiple of ``pixels``.
        channels: input channels that are multiplied at a time: 1, or ``lanes`` where those are channels.
    """

    lanes: int
    vectors: int
    pixels: int
    features: int
    chunk: int
    channels: int = 1

    @staticmethod
    def of(problem: ConvProblem, width: int, target: Target, blocking: Blocking = DEFAULT) -> Tile:
        """The tile for a problem, for rows of ``width`` pixels."""
        lanes = max(2, target.lanes(problem.element.nbytes))
        many_registers = target.vector_bytes == 64
        few = problem.features <= min(_FEW_FOR_CHANNELS, lanes // 2)
        if few and not problem.depthwise and problem.channels % lanes == 0:
            pixels = min(max(1, width), 12, (24 if many_registers else 12) // problem.features)
            chunk = max(1, -(-min(width, int(64 * blocking.rows)) // pixels)) * pixels
            return Tile(lanes, problem.features, pixels, problem.features, chunk, channels=lanes)
        lanes = min(lanes, 1 << (problem.features - 1).bit_length())
        count = -(-problem.features // lanes)
        widest = 4 if many_registers else 2
        options = [v for v in range(widest, 0, -1) if v > 1 or count == 1]
        vectors = min(options, key=lambda v: (-(-count // v) * v, -v))
        if blocking.vectors is not None and blocking.vectors in options:
            vectors = blocking.vectors
        most = min(max(1, width), 12, (24 if many_registers else 12) // vectors)
        # A size that leaves no remainder, if there is one not much smaller; of few registers all are needed to have
        # sums enough under way.
        even = [p for p in range(most, most // 2, -1) if width % p == 0]
        pixels = even[0] if even and (many_registers or problem.depthwise) else most
        chunk = max(1, -(-min(width, int(64 * blocking.rows)) // pixels)) * pixels
        return Tile(lanes, vectors, pixels, -(-count // vectors) * vectors * lanes, chunk)

    @property
    def block(self) -> int:
        """Features of one tile."""
        return self.vectors * self.lanes // self.channels

    def spans(self, width: int) -> list[tuple[int, int, int]]:
        """A row of ``width`` pixels as ``(begin, end, pixels of a tile)``: tiles that differ by one pixel at most."""
        size, larger = divmod(width, -(-width // self.pixels))
        border = larger * (size + 1)
        spans = [(0, border, size + 1), (border, width, size)]
        return [span for span in spans if span[0] < span[1]]


@dataclass(frozen=True)
class WeightChunk:
    """The part of a block's weights that all tiles of a row are multiplied by before the next part.

    Attributes:
        leading: window dimensions of which it has one position.
        channels: input channels that it has.
    """

    leading: int
    channels: int

    @staticmethod
    def of(problem: ConvProblem, tile: Tile, target: Target) -> WeightChunk | None:
        """The chunk, half the first-level cache; ``None`` if the weights fit or nobody would use them twice.

        With wide vectors, each weight is multiplied by so many pixels that the second-level cache keeps up.
        """
        few = min(problem.width, tile.chunk) <= tile.pixels
        if problem.depthwise or few or tile.channels > 1 or target.vector_bytes == 64:
            return None
        row = tile.block * problem.element.nbytes
        most = max(1, target.l1_bytes // (2 * row))
        kernel = [d.most_taps for d in problem.dimensions]
        for leading in range(len(kernel) + 1):
            if math.prod(kernel[leading:]) * problem.channels <= most:
                return WeightChunk(leading, problem.channels) if leading else None
        channels = max(c for c in range(1, most + 1) if problem.channels % c == 0)
        return WeightChunk(len(kernel), channels if 2 * channels > most else most)


def blocks_of_task(problem: ConvProblem, tile: Tile, target: Target) -> int:
    """Blocks of features that a task computes of a tile of pixels before it goes on to the next.

    One, unless depthwise: all features read the same channels. Depthwise each block reads channels of its own, which
    lie side by side in memory, so a row is read once when all are done together. Their weights must stay in the
    first-level cache, and tasks enough be left.
    """
    rows = problem.batch * math.prod(problem.outputs[:-1])
    parts = -(-_TASKS_A_THREAD * target.max_threads // max(1, rows))
    count = -(-(tile.features // tile.block) // parts)
    weights = count * problem.taps * tile.block * problem.element.nbytes
    return count if problem.depthwise and weights <= target.l1_bytes * 3 // 4 else 1
