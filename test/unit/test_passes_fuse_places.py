# SPDX-License-Identifier: Apache-2.0
"""Values read at several places of a kernel are emitted for each, so places must not double with every step."""

from __future__ import annotations

import numpy as np

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source

LEVELS = 12


def halving(levels: int) -> str:
    """Pairs of neighbours are added until one number is left, as ``jax.lax.associative_scan`` does."""
    lines: list[str] = []
    size = 1 << levels
    value, kind = "%x", f"tensor<{size}xi32>"
    for level in range(levels):
        half = f"tensor<{size // 2}xi32>"
        lines += [
            f"%e{level} = stablehlo.slice {value} [0:{size - 1}:2] : ({kind}) -> {half}",
            f"%o{level} = stablehlo.slice {value} [1:{size}:2] : ({kind}) -> {half}",
            f"%s{level} = stablehlo.add %e{level}, %o{level} : {half}",
        ]
        value, kind, size = f"%s{level}", half, size // 2
    body = "\n  ".join(lines)
    return f"""func.func @main(%x: tensor<{1 << levels}xi32>) -> {kind} {{
  {body}
  return {value} : {kind}
}}"""


def test_halving_is_cut_before_its_code_doubles_too_often() -> None:
    compilation = compile_stages(import_source(halving(LEVELS)), host_target(), keep_stages=True)
    kernels = compilation.emit("kernels")
    assert isinstance(kernels, str)
    # Emitted for every place, the first sums alone would be 4,096 additions.
    assert 1 << 5 < kernels.count("arith.addi") < 400
    x = np.random.default_rng(0).integers(-99, 99, 1 << LEVELS).astype(np.int32)
    with compilation.executable() as executable:
        np.testing.assert_array_equal(executable(x), [x.sum()])


def test_nine_places_are_one_kernel() -> None:
    """A stencil reads what it computes from at each of its points."""
    moved = "\n  ".join(
        f"%{r}{c} = stablehlo.slice %y [{r}:{r + 30}, {c}:{c + 30}] : (tensor<32x32xf32>) -> tensor<30x30xf32>"
        for r in range(3)
        for c in range(3)
    )
    names = [f"%{r}{c}" for r in range(3) for c in range(3)]
    sums = [
        f"%s{n} = stablehlo.add {left}, {right} : tensor<30x30xf32>"
        for n, (left, right) in enumerate(
            zip([names[0], *(f"%s{n}" for n in range(7))], names[1:], strict=True)
        )
    ]
    added = "\n  ".join(sums)
    text = f"""func.func @main(%x: tensor<32x32xf32>) -> tensor<30x30xf32> {{
  %y = stablehlo.negate %x : tensor<32x32xf32>
  {moved}
  {added}
  return %s7 : tensor<30x30xf32>
}}"""
    compilation = compile_stages(import_source(text), host_target(), keep_stages=True)
    fused = compilation.emit("fused")
    assert isinstance(fused, str)
    assert fused.count("hlov.fusion") == 1
    x = np.random.default_rng(1).integers(-9, 9, (32, 32)).astype(np.float32)
    expected = -sum(x[r : r + 30, c : c + 30] for r in range(3) for c in range(3))
    with compilation.executable() as executable:
        np.testing.assert_array_equal(executable(x), expected)


def stencil(source: str, name: str, shape: tuple[int, int], dimension: int) -> list[str]:
    """Five neighbours along a dimension, each times its distance from the first plus one, added up."""
    made = tuple(size - 4 * (d == dimension) for d, size in enumerate(shape))
    old, new = (f"tensor<{a}x{b}xf32>" for a, b in (shape, made))
    lines: list[str] = []
    for tap in range(5):
        cut = ", ".join(
            f"{tap * (d == dimension)}:{tap * (d == dimension) + size}"
            for d, size in enumerate(made)
        )
        lines += [
            f"%{name}s{tap} = stablehlo.slice {source} [{cut}] : ({old}) -> {new}",
            f"%{name}w{tap} = stablehlo.constant dense<{tap + 1}.0> : {new}",
            f"%{name}p{tap} = stablehlo.multiply %{name}w{tap}, %{name}s{tap} : {new}",
        ]
        if tap:
            total = f"%{name}t{tap - 1}" if tap > 1 else f"%{name}p0"
            lines.append(f"%{name}t{tap} = stablehlo.add {total}, %{name}p{tap} : {new}")
    return lines


def test_a_stencil_of_a_stencil_is_two_kernels() -> None:
    """A sum of five products is not computed again at each of the points that read it."""
    body = "\n  ".join(stencil("%x", "a", (36, 36), 0) + stencil("%at4", "b", (32, 36), 1))
    text = f"""func.func @main(%x: tensor<36x36xf32>) -> tensor<32x32xf32> {{
  {body}
  return %bt4 : tensor<32x32xf32>
}}"""
    compilation = compile_stages(import_source(text), host_target(), keep_stages=True)
    fused = compilation.emit("fused")
    assert isinstance(fused, str)
    assert fused.count("hlov.fusion") == 2
    x = np.random.default_rng(2).integers(-9, 9, (36, 36)).astype(np.float32)
    rows = sum((tap + 1) * x[tap : tap + 32] for tap in range(5))
    expected = sum((tap + 1) * np.asarray(rows)[:, tap : tap + 32] for tap in range(5))
    with compilation.executable() as executable:
        np.testing.assert_array_equal(executable(x), expected)
