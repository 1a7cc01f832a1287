# SPDX-License-Identifier: Apache-2.0
"""Which loops LLVM may unroll."""

import pytest
from mlir import ir

from gristmill.compiler.codegen.native import to_llvm_ir
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.lowering.unrolling import (
    MOST_OPERATIONS,
    MOST_WRITTEN_OUT,
    limit_unrolling,
)
from gristmill.compiler.target import Target

#: The scheduling model of this CPU has LLVM unroll up to thousands of operations.
EAGER = Target("x86_64-unknown-linux-gnu", "znver3", "+avx2,+fma")

DISABLED = "unroll = <disable = true>"


def kernel(operations: int, high: str, hints: str = "", inner: str = "") -> str:
    """A loop whose turn has ``operations`` dependent multiply-adds, a load and a store."""
    chain = "\n".join(f"%x{i + 1} = math.fma %x{i}, %x{i}, %x0 : f32" for i in range(operations))
    return f"""
    func.func @f(%a: memref<4096xf32>, %n: index) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c3 = arith.constant 3 : index
      %c4096 = arith.constant 4096 : index
      scf.for %i = %c0 to {high} step %c1 {{
        {inner}
        %x0 = memref.load %a[%i] : memref<4096xf32>
        {chain}
        memref.store %x{operations}, %a[%i] : memref<4096xf32>
      }} {hints}
      return
    }}"""


def annotations(text: str) -> list[str]:
    """What is said of each loop after :func:`limit_unrolling`, outer loops first; empty for nothing."""
    found: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "scf.for":
            said = "llvm.loop_annotation"
            found.append(str(op.attributes[said]) if said in op.attributes else "")
        return ir.WalkResult.ADVANCE

    with ir.Context():
        module = ir.Module.parse(text)
        limit_unrolling(module)
        module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


#: The load, the store and the terminator.
REST = 3


def test_loops_of_few_operations_are_left_to_llvm() -> None:
    assert annotations(kernel(MOST_OPERATIONS - REST, "%n")) == [""]


@pytest.mark.parametrize("high", ["%n", "%c4096"])
def test_loops_of_many_operations_are_not_unrolled(high: str) -> None:
    assert annotations(kernel(MOST_OPERATIONS - REST + 1, high)) == [
        f"#llvm.loop_annotation<{DISABLED}>"
    ]


def test_few_known_turns_may_become_straight_code() -> None:
    most = MOST_WRITTEN_OUT // 3 - REST
    assert annotations(kernel(most, "%c3")) == [""]
    assert annotations(kernel(most + 1, "%c3")) == [f"#llvm.loop_annotation<{DISABLED}>"]


INNER = """scf.for %j = %c0 to {} step %c1 {{
          %y = memref.load %a[%j] : memref<4096xf32>
          memref.store %y, %a[%j] : memref<4096xf32>
        }}"""


def test_an_inner_loop_counts_as_often_as_it_is_written_out() -> None:
    operations = MOST_OPERATIONS - REST - 1 - 2 * REST  # the inner loop itself and two turns of it
    inner = INNER.format("%c2")
    assert annotations(kernel(operations, "%n", inner=inner)) == ["", ""]
    assert annotations(kernel(operations + 1, "%n", inner=inner)) == [
        f"#llvm.loop_annotation<{DISABLED}>",
        "",
    ]


@pytest.mark.parametrize("high", ["%n", "%c3"])
def test_a_loop_around_one_that_stays_stays(high: str) -> None:
    assert annotations(kernel(1, high, inner=INNER.format("%c4096"))) == [
        f"#llvm.loop_annotation<{DISABLED}>",
        "",
    ]


def test_a_loop_around_one_without_bounds_stays() -> None:
    inner = """%w = scf.while (%v = %n) : (index) -> index {
          %more = arith.cmpi slt, %v, %c3 : index
          scf.condition(%more) %v : index
        } do {
        ^bb0(%v: index):
          scf.yield %v : index
        }"""
    assert annotations(kernel(1, "%c3", inner=inner)) == [f"#llvm.loop_annotation<{DISABLED}>"]


def test_what_an_emitter_says_stands() -> None:
    hints = "{llvm.loop_annotation = #llvm.loop_annotation<unroll = <count = 2 : i32>>}"
    (found,) = annotations(kernel(100, "%n", hints))
    assert "count = 2" in found
    assert "disable" not in found


def test_other_annotations_are_kept() -> None:
    hints = "{llvm.loop_annotation = #llvm.loop_annotation<interleave = <count = 4 : i32>>}"
    (found,) = annotations(kernel(100, "%n", hints))
    assert DISABLED in found
    assert "interleave = <count = 4 : i32>" in found


@pytest.mark.parametrize(("hints", "turns"), [("", 1), ("<unroll = <count = 2 : i32>>", 2)])
def test_llvm_obeys(hints: str, turns: int) -> None:
    """Of a loop that may read what it has stored, so that it stays a loop over single elements."""
    operations = 40
    said = f"{{llvm.loop_annotation = #llvm.loop_annotation{hints}}}" if hints else ""
    text = kernel(operations, "%c4096", said).replace(
        "%a[%i] : memref<4096xf32>\n      }", "%a[%n] : memref<4096xf32>\n      }"
    )
    with ir.Context():
        module = ir.Module.parse(text)
        lower_to_llvm_dialect(module, EAGER)
        code = to_llvm_ir(module, EAGER)
    assert "x float>" not in code
    assert code.count("call float @llvm.fma") == turns * operations
