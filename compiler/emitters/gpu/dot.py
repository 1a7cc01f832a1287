# SPDX-License-Identifier: Apache-2.0
"""The dot emitter: a ``dot_general`` and the elementwise computation of its result, for a GPU.

A product in normal form (:class:`~.dot_tiles.Product`) gets one of five forms: a thread for each sum, warps along
rows, threads along columns, or tiles, with tensor cores where the types and the requested precision allow it and
without. Long sums of small results are split over blocks; a second launch adds up the shares. See ``dot_plan`` for
the choice.
"""

from __future__ import annotations

from collections.abc import Callable

from mlir import ir

from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.dot_build import narrow
from gristmill.compiler.emitters.cpu.dot_fusion import matching_index
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem
from gristmill.compiler.emitters.cpu.frame import FusionSource, reachable
from gristmill.compiler.emitters.elemental import scalar_source
from gristmill.compiler.emitters.gpu import dot_vector
from gristmill.compiler.emitters.gpu.dot_elements import emit_element
from gristmill.compiler.emitters.gpu.dot_mma import MmaTile, emit_mma
from gristmill.compiler.emitters.gpu.dot_operand import DotOperand
from gristmill.compiler.emitters.gpu.dot_plan import Form, choose_form, choose_tiling
from gristmill.compiler.emitters.gpu.dot_simt import emit_simt
from gristmill.compiler.emitters.gpu.dot_tiles import Cut, Product, combine_shares
from gristmill.compiler.emitters.gpu.elements import launch_items
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.compiler.target import GpuTarget


class DotEmitter:
    """Compiles a fusion around one ``dot_general``."""

    def __init__(self, source: FusionSource):
        self.source = source
        dots = [n for n in reachable(source.graph.results) if n.kind == "dot_general"]
        assert len(dots) == 1, "a dot fusion has one dot_general"
        self.node = dots[0]

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        node = self.node
        lhs, rhs = node.operands
        self.problem = problem = DotProblem.of(
            lhs.type,
            rhs.type,
            node.type.element,
            lhs_batch=node.dims("lhs_batching_dimensions"),
            rhs_batch=node.dims("rhs_batching_dimensions"),
            lhs_contract=node.dims("lhs_contracting_dimensions"),
            rhs_contract=node.dims("rhs_contracting_dimensions"),
        )
        product = Product(
            problem.batch,
            problem.m,
            problem.n,
            problem.k,
            problem.accumulate,
            DotOperand(problem.lhs, lhs),
            DotOperand(problem.rhs, rhs),
            self._finish,
            access_width(self.source),
        )
        return emit_product(self.source, product, "dot", allows_tf32(node))

    def _finish(
        self, launch: LaunchFrame, total: ir.Value, batch: Index, m: Index, n: Index
    ) -> None:
        problem, roots = self.problem, self.source.graph.results
        value = narrow(total, problem.accumulate, problem.result)
        index = problem.output_index(batch, m, n)
        places = [matching_index(root, self.node, index) for root in roots]
        e = launch.elemental
        with e.scope():
            e.bind(self.node, scalar_source(value))
            values = [e.value(root, at) for root, at in zip(roots, places, strict=True)]
        for number, (root, at) in enumerate(zip(roots, places, strict=True)):
            launch.store(number, values[number], at, root.type)


def access_width(source: FusionSource) -> int:
    """Elements in one access of the narrowest result."""
    return max(BUFFER_ALIGNMENT // max(1, result.element.nbytes) for result in source.results)


def allows_tf32(node: Node) -> bool:
    """Whether the operation asks for ``f32`` operands to be rounded to ``tf32``: its ``algorithm`` says so.

    One that splits operands into several ``tf32`` components asks for more precision than that.
    """
    algorithm = node.string("algorithm")
    wanted = (
        "lhs_precision_type = tf32",
        "rhs_precision_type = tf32",
        "num_primitive_operations = 1,",
    )
    return all(part in algorithm for part in wanted)


def is_tensor_product(product: Product, target: GpuTarget, allows_tf32: bool) -> bool:
    """Whether tensor cores compute the product as precisely as it must be."""
    kinds = {product.lhs.element.name, product.rhs.element.name}
    if len(kinds) > 1 or not target.async_copies:
        return False
    sums = product.accumulate.name
    (kind,) = kinds
    if kind in ("f16", "bf16"):
        return sums == "f32"
    return (kind == "i8" and sums == "i32") or (kind == "f32" and sums == "f32" and allows_tf32)


def emit_product(
    source: FusionSource, product: Product, kind: str, allows_tf32: bool = False
) -> KernelDefinition:
    """Emit ``product`` as the kernel of a fusion of ``kind``."""
    target = source.target
    assert isinstance(target, GpuTarget)
    is_tensor = is_tensor_product(product, target, allows_tf32)
    form, swapped = choose_form(product, is_tensor)
    flops = 2 * product.size * product.k
    if swapped:
        product = product.swap()
    if form is Form.ELEMENTS:
        frame = GpuFrame(source)
        launch_items(frame, product.size, lambda launch, n: emit_element(launch, product, n))
        return frame.finish(kind, flops)
    cut, threads, body = _code(form, product, target)
    frame = GpuFrame(source, cut.workspace(product).nbytes)
    frame.launch(body, (cut.blocks(product),), (threads,))
    if cut.splits > 1:
        launch_items(frame, product.size, lambda launch, n: combine_shares(launch, product, cut, n))
    return frame.finish(kind, flops)


def _code(
    form: Form, product: Product, target: GpuTarget
) -> tuple[Cut, int, Callable[[LaunchFrame], None]]:
    """The cut, the threads of a block, and what emits its code."""
    if form is Form.ROWS:
        cut = dot_vector.plan_rows(product, target)
        return cut, dot_vector.BLOCK, lambda launch: dot_vector.emit_rows(launch, product, cut)
    if form is Form.COLUMNS:
        cut = dot_vector.plan_columns(product, target)
        return cut, dot_vector.BLOCK, lambda launch: dot_vector.emit_columns(launch, product, cut)
    tiling = choose_tiling(product, target, form is Form.MMA)
    cut, tile = tiling.cut, tiling.tile
    if isinstance(tile, MmaTile):
        return cut, tile.threads, lambda launch: emit_mma(launch, product, cut, tile)
    return cut, tile.threads, lambda launch: emit_simt(launch, product, cut, tile)
