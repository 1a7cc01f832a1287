# SPDX-License-Identifier: Apache-2.0
"""Attention as one kernel: what becomes one, and that results are what numpy computes in f64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import Compilation, compile_stages, import_source
from gristmill.runtime.executable import Executable

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def build(function: Callable[..., Any], *inputs: Array, **options: Any) -> tuple[Compilation, bool]:
    """A compilation and whether it has an attention fusion."""
    source = import_source(jax.jit(function).lower(*inputs))
    compilation = compile_stages(source, keep_stages=True, **options)
    return compilation, 'kind = "attention"' in str(compilation.emit("fused"))


def run(compilation: Compilation, *inputs: Array, threads: int = 2) -> Array:
    with Executable(compilation.program()) as executable:
        result = executable(*inputs, threads=threads)
    return np.asarray(result)


def weights(scores: Array) -> Array:
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def reference(q: Array, k: Array, v: Array, bias: Array | float = 0.0) -> Array:
    """Scaled attention over ``[batch, heads, rows, d]`` in f64."""
    wide = [x.astype(np.float64) for x in (q, k, v)]
    scores = np.einsum("bhqd,bhkd->bhqk", wide[0], wide[1]) / np.sqrt(q.shape[-1])
    return np.einsum("bhqk,bhkn->bhqn", weights(scores + bias), wide[2])


def causal(rows: int, keys: int) -> Array:
    return np.tril(np.ones((rows, keys), bool))


def attention(q: Any, k: Any, v: Any, *, hidden: float | None = None, bias: Any = None) -> Any:
    """As models write it; ``hidden`` is the score of the keys after a row's own."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if bias is not None:
        scores += bias
    if hidden is not None:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, hidden)
    return jnp.einsum("bhqk,bhkn->bhqn", jax.nn.softmax(scores, axis=-1), v)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attention(q, k, v, bias=bias)


#: batch, heads, rows, keys, d, columns of the output.
SHAPES = [
    (1, 1, 64, 64, 16, 16),
    (2, 3, 77, 77, 40, 40),
    (1, 2, 16, 33, 7, 5),
    (1, 1, 301, 259, 64, 48),
    (3, 1, 129, 1000, 32, 70),
    (1, 2, 100, 5000, 8, 8),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...], threads: int) -> None:
    b, h, m, t, d, n = shape
    inputs = normal(b, h, m, d), normal(b, h, t, d), normal(b, h, t, n)
    compilation, fused = build(attention, *inputs)
    assert fused
    result = run(compilation, *inputs, threads=threads)
    np.testing.assert_allclose(result, reference(*inputs), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_narrower_vectors(vector_bytes: int) -> None:
    inputs = normal(1, 2, 75, 20), normal(1, 2, 91, 20), normal(1, 2, 91, 20)
    target = dataclasses.replace(host_target(), vector_bytes=vector_bytes, l2_bytes=1 << 14)
    compilation, fused = build(attention, *inputs, target=target)
    assert fused
    np.testing.assert_allclose(run(compilation, *inputs), reference(*inputs), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("hidden", [-np.inf, float(np.finfo(np.float32).min)])
def test_causal_masks(hidden: float) -> None:
    inputs = normal(1, 3, 70, 32), normal(1, 3, 70, 32), normal(1, 3, 70, 32)
    compilation, fused = build(lambda *x: attention(*x, hidden=hidden), *inputs)
    assert fused
    expected = reference(*inputs, bias=np.where(causal(70, 70), 0.0, -np.inf))
    np.testing.assert_allclose(run(compilation, *inputs), expected, rtol=2e-6, atol=2e-6)


def test_rows_without_any_key_are_nan() -> None:
    inputs = normal(1, 2, 48, 16), normal(1, 2, 64, 16), normal(1, 2, 64, 16)
    bias = np.zeros((48, 64), np.float32)
    bias[[3, 40]] = -np.inf
    compilation, fused = build(biased, *inputs, bias)
    assert fused
    result = run(compilation, *inputs, bias)
    assert np.isnan(result[:, :, [3, 40]]).all()
    np.testing.assert_allclose(result, reference(*inputs, bias=bias), rtol=2e-6, atol=2e-6)


def test_a_bias_of_each_head() -> None:
    inputs = normal(2, 3, 48, 16), normal(2, 3, 64, 16), normal(2, 3, 64, 16)
    bias = 3 * normal(3, 48, 64)
    compilation, fused = build(biased, *inputs, bias)
    assert fused
    expected = reference(*inputs, bias=bias.astype(np.float64))
    np.testing.assert_allclose(run(compilation, *inputs, bias), expected, rtol=2e-6, atol=2e-6)


def test_large_scores() -> None:
    inputs = 100 * normal(1, 2, 32, 16), normal(1, 2, 64, 16), normal(1, 2, 64, 16)
    compilation, fused = build(attention, *inputs)
    assert fused
    np.testing.assert_allclose(run(compilation, *inputs), reference(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
def test_heads_inside_rows(is_causal: bool) -> None:
    """jax's own function, over ``[batch, rows, heads, d]``."""
    inputs = normal(2, 100, 4, 32), normal(2, 100, 4, 32), normal(2, 100, 4, 32)

    def function(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)

    compilation, fused = build(function, *inputs)
    assert fused
    by_head = [x.transpose(0, 2, 1, 3) for x in inputs]
    bias = np.where(causal(100, 100), 0.0, -np.inf) if is_causal else 0.0
    expected = reference(*by_head, bias=bias).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(run(compilation, *inputs), expected, rtol=2e-6, atol=2e-6)


def test_other_row_computations() -> None:
    """Rows of batched products that are no softmax: scores less their mean."""
    inputs = normal(2, 2, 48, 16), normal(2, 2, 64, 16), normal(2, 2, 64, 16)

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
        centred = scores - jnp.mean(scores, axis=-1, keepdims=True)
        return jnp.einsum("bhqk,bhkd->bhqd", centred, v)

    compilation, fused = build(function, *inputs)
    assert fused
    q, k, v = (x.astype(np.float64) for x in inputs)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k)
    scores -= scores.mean(-1, keepdims=True)
    expected = np.einsum("bhqk,bhkd->bhqd", scores, v)
    np.testing.assert_allclose(run(compilation, *inputs), expected, rtol=1e-5, atol=1e-4)


def test_divisors_along_the_keys_are_not_the_rows_own() -> None:
    """As many rows as keys, and a quotient by sums of columns: the exponentials' own rows divide nothing."""
    inputs = normal(2, 2, 64, 16), normal(2, 2, 64, 16), normal(2, 2, 64, 16)

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
        e = jnp.exp(scores - scores.max(-1, keepdims=True))
        return jnp.einsum("bhqk,bhkd->bhqd", e / e.sum(-1)[:, :, None, :], v)

    compilation, _ = build(function, *inputs)
    q, k, v = (x.astype(np.float64) for x in inputs)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhqk,bhkd->bhqd", e / e.sum(-1)[:, :, None, :], v)
    np.testing.assert_allclose(run(compilation, *inputs), expected, rtol=1e-4, atol=1e-4)


def test_an_epilogue() -> None:
    inputs = normal(1, 2, 48, 16), normal(1, 2, 64, 16), normal(1, 2, 64, 16)
    residual = normal(1, 2, 48, 16)

    def function(q: Any, k: Any, v: Any, r: Any) -> Any:
        return 2 * attention(q, k, v) + r

    compilation, fused = build(function, *inputs, residual)
    assert fused
    expected = 2 * reference(*inputs) + residual
    np.testing.assert_allclose(run(compilation, *inputs, residual), expected, rtol=4e-6, atol=4e-6)


def test_what_is_read_elsewhere_stays_in_memory() -> None:
    inputs = normal(1, 2, 48, 16), normal(1, 2, 64, 16), normal(1, 2, 64, 16)

    def function(q: Any, k: Any, v: Any) -> Any:
        p = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k), axis=-1)
        return jnp.einsum("bhqk,bhkd->bhqd", p, v), p

    compilation, fused = build(function, *inputs)
    assert not fused
    q, k, _ = (x.astype(np.float64) for x in inputs)
    with Executable(compilation.program()) as executable:
        _, p = executable(*inputs)
    np.testing.assert_allclose(
        np.asarray(p), weights(np.einsum("bhqd,bhkd->bhqk", q, k)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("rows", "keys", "d"), [(1, 512, 64), (64, 1, 1), (64, 32, 64)], ids=["row", "key", "wide"]
)
def test_small_problems_keep_three_kernels(rows: int, keys: int, d: int) -> None:
    inputs = normal(1, 2, rows, d), normal(1, 2, keys, d), normal(1, 2, keys, d)
    compilation, fused = build(attention, *inputs)
    assert not fused
    np.testing.assert_allclose(run(compilation, *inputs), reference(*inputs), rtol=2e-6, atol=2e-6)


def test_memory_does_not_hold_the_scores() -> None:
    inputs = normal(1, 4, 2048, 64), normal(1, 4, 2048, 64), normal(1, 4, 2048, 64)
    compilation, fused = build(attention, *inputs)
    assert fused
    program = compilation.program()
    assert program.arena_bytes <= 2 * sum(x.nbytes for x in inputs[1:])
    assert program.scratch_bytes <= 1 << 20
