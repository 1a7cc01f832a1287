# SPDX-License-Identifier: Apache-2.0
"""The rt dialect's builders and verifier."""

from collections.abc import Iterator

import pytest
from mlir import ir

from gristmill.compiler.module import make_context
from gristmill.dialects import rt
from gristmill.errors import VerifyError


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with make_context(), ir.Location.unknown():
        yield


def _check(body: str, extra: str = "") -> None:
    rt.verify(
        ir.Module.parse(
            f"""func.func @main(%x: memref<4xf32>, %p: memref<i1>, %i: memref<i32>) {{
              %a = "rt.allocate"() {{alignment = 64 : i64, bytes = 128 : i64}} : () -> memref<128xi8>
              {body}
              return
            }}
            func.func private @f(%p: memref<i1>, %x: memref<4xf32>) {{ return }}
            {extra}"""
        )
    )


def test_builders_make_verified_operations() -> None:
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        arena = rt.allocate(256, 64)
        first = rt.slice_(arena, 0, ir.Type.parse("memref<4x4xui8>"))
        second = rt.slice_(arena, 64, ir.Type.parse("memref<4x4xui8>"))
        constant = rt.constant(3, "weights", ir.Type.parse("memref<4x4xui8>"))
        operation = rt.launch("kernel", [constant, first], [second], arena)
        rt.copy(first, second)
    rt.verify(module)
    parts = rt.launch_operands(operation)
    assert (parts.kernel, len(parts.arguments), len(parts.results)) == ("kernel", 2, 1)
    assert parts.workspace == arena
    assert ir.Module.parse(str(module)).operation.verify()


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [
        ("memref<4x8xui8>", 32),
        ("memref<i1>", 1),
        ("memref<3xi1>", 3),
        ("memref<2xbf16>", 4),
        ("memref<0xf64>", 0),
    ],
)
def test_nbytes(kind: str, nbytes: int) -> None:
    assert rt.nbytes(ir.Type.parse(kind)) == nbytes


def test_nbytes_refuses_dynamic_shapes() -> None:
    with pytest.raises(VerifyError, match="not a dense, statically shaped buffer"):
        rt.nbytes(ir.Type.parse("memref<?xf32>"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            '%s = "rt.slice"(%a) {offset = 120 : i64} : (memref<128xi8>) -> memref<4xf32>',
            r"rt\.slice: bytes 120 to 136 are outside the 128",
        ),
        (
            '%s = "rt.slice"(%a) {offset = -4 : i64} : (memref<128xi8>) -> memref<4xf32>',
            "bytes -4 to 12",
        ),
        (
            '%s = "rt.slice"(%a) {offset = 2 : i64} : (memref<128xi8>) -> memref<4xf32>',
            "offset 2 is not a multiple of the element size 4",
        ),
        (
            '%s = "rt.allocate"() {alignment = 48 : i64, bytes = 8 : i64} : () -> memref<8xi8>',
            "alignment 48 is not a power of two",
        ),
        (
            '%s = "rt.allocate"() {alignment = 64 : i64, bytes = 9 : i64} : () -> memref<8xi8>',
            "bytes = 9 does not fit",
        ),
        (
            '"rt.copy"(%x, %p) : (memref<4xf32>, memref<i1>) -> ()',
            "copies 16 bytes to a buffer of 1",
        ),
        (
            '"rtv.launch"(%x) {kernel = @k, num_arguments = 1 : i64, num_results = 1 : i64} : (memref<4xf32>) -> ()',
            "1 operands do not fit 1 arguments, 1 results",
        ),
        (
            '"rtv.launch"(%x) {kernel = @k, num_arguments = 1 : i64} : (memref<4xf32>) -> ()',
            "attribute 'num_results' is missing",
        ),
        (
            '"rtv.while"(%x) {cond = @f, body = @f} : (memref<4xf32>) -> ()',
            "first operand must be a memref of rank 0 of i1",
        ),
        (
            '"rtv.while"(%p, %p) {cond = @f, body = @f} : (memref<i1>, memref<i1>) -> ()',
            "@f does not take the types",
        ),
        (
            '"rtv.while"(%p, %x) {cond = @f, body = @g} : (memref<i1>, memref<4xf32>) -> ()',
            "function @g does not exist",
        ),
        (
            '"rtv.conditional"(%p, %x) {branches = [@f]} : (memref<i1>, memref<4xf32>) -> ()',
            "an i1 selector needs 2 branches, not 1",
        ),
        (
            '"rtv.conditional"(%i) {branches = []} : (memref<i32>) -> ()',
            "it has no branches",
        ),
        ('"rtv.spin"() : () -> ()', "there is no such operation"),
    ],
)
def test_verifier_messages(body: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        _check(body)


def test_valid_control_flow() -> None:
    _check('"rtv.while"(%p, %x) {cond = @f, body = @f} : (memref<i1>, memref<4xf32>) -> ()')
    _check(
        '"rtv.conditional"(%i, %x) {branches = [@g, @g, @g]} : (memref<i32>, memref<4xf32>) -> ()',
        "func.func private @g(%i: memref<i32>, %x: memref<4xf32>) { return }",
    )
