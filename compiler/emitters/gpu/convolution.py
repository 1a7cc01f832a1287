# SPDX-License-Identifier: Apache-2.0
"""The convolution emitter for a GPU: an implicit matrix product, or a thread for each element.

A convolution is the product of a matrix with one row for each output pixel and one column for each output feature of
a group; the sum runs over window positions and channels. The left operand is never built: where an element of it lies
in the input, and whether it does, is computed when a tile is fetched. So the tiles of :mod:`.dot` serve, tensor cores
included. Depthwise convolutions and groups of few features have too little to share and read their windows
directly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.conv_problem import ConvProblem
from gristmill.compiler.emitters.cpu.convolution import ConvolutionEmitter as TasksOfConvolution
from gristmill.compiler.emitters.cpu.dot_build import flat, narrow
from gristmill.compiler.emitters.cpu.dot_problem import accumulator
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.gpu.dot import access_width, emit_product
from gristmill.compiler.emitters.gpu.dot_operand import Axis, TileOperand
from gristmill.compiler.emitters.gpu.dot_tiles import Product
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, LaunchFrame
from gristmill.compiler.emitters.gpu.loop import LoopEmitter
from gristmill.compiler.emitters.gpu.tasks import TaskEmitter
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node

#: Features of a group below which tiles would be mostly empty.
_FEW_FEATURES = 8


class ConvolutionEmitter:
    """Compiles one ``convolution``."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node = source.graph.results[0]
        self.problem = ConvProblem.of(self.node)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        problem, node = self.problem, self.node
        elements = [x.type.element for x in (*node.operands, node)]
        if any(x.is_float and x.bits < 16 for x in elements):
            return TaskEmitter(TasksOfConvolution, self.source).emit()
        if problem.depthwise or problem.features < _FEW_FEATURES:
            return LoopEmitter(self.source, kind="convolution").emit()
        order = _SumOrder.of(problem)
        product = Product(
            problem.groups,
            problem.batch * math.prod(problem.outputs),
            problem.features,
            problem.taps * problem.channels,
            accumulator(*elements),
            _Input(problem, order),
            _Weights(problem, order),
            self._finish,
            access_width(self.source),
            is_gathered=True,
        )
        # Neighbouring threads store neighbouring columns.
        last = node.integer("output_feature_dimension") == len(node.shape) - 1
        return emit_product(self.source, product if last else product.swap(), "convolution")

    def _finish(
        self, launch: LaunchFrame, total: ir.Value, group: Index, m: Index, n: Index
    ) -> None:
        problem, node = self.problem, self.node
        batch, *position = build.delinearize(m, (problem.batch, *problem.outputs))
        index: list[Index] = [0] * len(node.shape)
        index[node.integer("output_batch_dimension")] = batch
        feature = build.add(build.mul(group, problem.features), n)
        index[node.integer("output_feature_dimension")] = feature
        for d, component in zip(node.dims("output_spatial_dimensions"), position, strict=False):
            index[d] = component
        kinds = (x.type.element for x in (*node.operands, node))
        value = narrow(total, accumulator(*kinds), node.type.element)
        launch.store(0, value, index, node.type)


class _SumOrder:
    """The order of the sum: window positions outermost, or channels.

    Channels innermost where the input has them innermost; else as the weights have it, if they have both together.
    """

    def __init__(self, problem: ConvProblem, channels_first: bool):
        self.problem, self.channels_first = problem, channels_first

    @staticmethod
    def of(problem: ConvProblem) -> _SumOrder:
        """The order for a problem."""
        node = problem.node
        rank = len(node.operands[0].shape)
        spatial = node.dims("kernel_spatial_dimensions")
        innermost = node.integer("input_feature_dimension") == rank - 1
        together = node.integer("kernel_input_feature_dimension") == rank - len(spatial) - 1
        return _SumOrder(
            problem, not innermost and together and spatial == list(range(rank))[-len(spatial) :]
        )

    def split(self, k: Index) -> tuple[Index, list[Index]]:
        """Channel and window position."""
        problem = self.problem
        if self.channels_first:
            channel, *window = build.delinearize(k, (problem.channels, *problem.kernel))
            return channel, window
        *window, channel = build.delinearize(k, (*problem.kernel, problem.channels))
        return channel, window


class _Array:
    """An operand's dimensions by role: one of channels or features each way, the spatial ones."""

    def __init__(self, operand: Node, outer: int, inner: int, spatial: Sequence[int]):
        shape = operand.shape
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        self.strides = strides
        self.outer, self.inner = strides[outer], strides[inner]
        self.spatial = [strides[d] for d in spatial]
        self.widest = BUFFER_ALIGNMENT // operand.type.element.nbytes

    def width(self, line: int, others: Sequence[int]) -> int:
        """Elements of an access in lines of ``line`` neighbours that start at multiples of ``others``."""
        width = self.widest
        while width > 1 and any(x % width for x in (line, *others)):
            width //= 2
        return width


class _Input(TileOperand):
    """The input as a matrix of pixels by window positions and channels."""

    def __init__(self, problem: ConvProblem, order: _SumOrder):
        node = problem.node
        self.problem, self.order, self.parameter = problem, order, node.operands[0]
        self.element = self.parameter.type.element
        self.free = problem.batch * math.prod(problem.outputs)
        self.k = problem.taps * problem.channels
        self.array = array = _Array(
            self.parameter,
            node.integer("input_batch_dimension"),
            node.integer("input_feature_dimension"),
            node.dims("input_spatial_dimensions"),
        )
        self.along: Axis = "free"
        self.width = 1
        if array.inner == 1 and not order.channels_first:
            self.along = "k"
            self.width = array.width(problem.channels, [array.outer, *array.spatial])
        elif self._is_pointwise:
            self.width = array.width(math.prod(problem.outputs), [array.outer, array.inner])

    @property
    def _is_pointwise(self) -> bool:
        """Whether pixels lie next to one another as the output's do."""
        p = self.problem
        whole = p.outputs == p.extents and p.taps == 1 and not any(p.low)
        plain = all(x == 1 for x in (*p.strides, *p.base))
        dense = [math.prod(p.extents[d + 1 :]) for d in range(len(self.array.spatial))]
        return whole and plain and bool(dense) and self.array.spatial == dense

    def place(self, batch: Index, free: Index, k: Index) -> tuple[Index, list[ir.Value]]:
        """Where a window position lies, and whether it does."""
        problem, group = self.problem, batch
        image, *pixel = build.delinearize(free, (problem.batch, *problem.outputs))
        channel, window = self.order.split(k)
        if problem.batch_groups:
            image = build.add(build.mul(group, problem.batch), image)
        else:
            channel = build.add(build.mul(group, problem.channels), channel)
        offset = build.add(build.mul(image, self.array.outer), build.mul(channel, self.array.inner))
        conditions: list[ir.Value] = []
        for d, stride in enumerate(self.array.spatial):
            at, inside = self._position(d, pixel[d], window[d])
            conditions += inside
            offset = build.add(offset, build.mul(at, stride))
        return offset, conditions

    def _position(self, d: int, pixel: Index, window: Index) -> tuple[Index, list[ir.Value]]:
        """The position along one dimension and when it is inside the input; meaningless elsewhere."""
        p = self.problem
        at = build.add(build.mul(pixel, p.strides[d]), build.mul(window, p.dilations[d]))
        at = build.sub(at, p.low[d])
        reach = (p.outputs[d] - 1) * p.strides[d] + (p.kernel[d] - 1) * p.dilations[d] - p.low[d]
        conditions: list[ir.Value] = []
        if p.low[d] > 0:
            conditions.append(build.at_least(at, 0))
        if p.base[d] > 1:
            at = build.maximum(at, 0)
            conditions.append(build.equal(build.mod(at, p.base[d]), 0))
            at = build.div(at, p.base[d])
        if reach // p.base[d] >= p.extents[d]:
            conditions.append(build.less(at, p.extents[d]))
        return at, conditions

    def buffer(self, launch: LaunchFrame) -> ir.Value | None:
        """The input."""
        return flat(launch.arguments[self.parameter.result], self.parameter.type)


class _Weights(TileOperand):
    """The weights as a matrix of features by window positions and channels."""

    def __init__(self, problem: ConvProblem, order: _SumOrder):
        node = problem.node
        self.problem, self.order, self.parameter = problem, order, node.operands[1]
        self.element = self.parameter.type.element
        self.free = problem.features
        self.k = problem.taps * problem.channels
        self.array = array = _Array(
            self.parameter,
            node.integer("kernel_output_feature_dimension"),
            node.integer("kernel_input_feature_dimension"),
            node.dims("kernel_spatial_dimensions"),
        )
        self.along: Axis = "k"
        self.width = 1
        if array.outer == 1:
            self.along = "free"
            self.width = array.width(problem.features, [array.inner, *array.spatial])
        elif order.channels_first and not any(problem.reversal):
            self.width = array.width(self.k, [array.outer])
        elif array.inner == 1 and not order.channels_first:
            self.width = array.width(problem.channels, [array.outer, *array.spatial])

    def place(self, batch: Index, free: Index, k: Index) -> tuple[Index, list[ir.Value]]:
        """Where a weight lies."""
        problem, group = self.problem, batch
        channel, window = self.order.split(k)
        feature = build.add(build.mul(group, problem.features), free)
        offset = build.add(
            build.mul(feature, self.array.outer), build.mul(channel, self.array.inner)
        )
        for d, stride in enumerate(self.array.spatial):
            at = window[d]
            if problem.reversal[d]:
                at = build.sub(problem.kernel[d] - 1, at)
            offset = build.add(offset, build.mul(at, stride))
        return offset, []

    def buffer(self, launch: LaunchFrame) -> ir.Value | None:
        """The weights."""
        return flat(launch.arguments[self.parameter.result], self.parameter.type)
