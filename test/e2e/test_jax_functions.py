# SPDX-License-Identifier: Apache-2.0
"""JAX functions of every kind, run by Gristmill and by JAX's own CPU backend."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gristmill

RNG = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(low: int, high: int, *shape: int) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


CASES: dict[str, tuple[Any, ...]] = {
    "matmul chain": (lambda a, b, c: jnp.tanh(a @ b) @ c, f(33, 17), f(17, 65), f(65, 9)),
    "ln+softmax": (
        lambda x: jax.nn.softmax(
            (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        ),
        f(7, 3, 129),
    ),
    "logsumexp axis0": (lambda x: jax.nn.logsumexp(x, axis=0), f(50, 20)),
    "var axis (0,2)": (lambda x: x.var((0, 2)), f(5, 6, 7)),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1), f(5, 33)),
    "cumprod rev": (lambda x: lax.cumprod(x, axis=0, reverse=True), f(5, 33)),
    "argmax": (lambda x: (x.argmax(0), x.argmin(1)), f(50, 77)),
    "where/clip": (lambda x: jnp.where(x > 0, jnp.clip(x, -0.5, 0.5), x**2), f(50, 77)),
    "gather": (lambda x, i: x[i], f(50, 7), ints(0, 50, 3, 4)),
    "gather2": (lambda x, i: x[:, i, :][..., ::-1], f(5, 50, 7), ints(0, 50, 6)),
    "take_along": (lambda x, i: jnp.take_along_axis(x, i, axis=1), f(5, 50), ints(0, 50, 5, 6)),
    "scatter add": (lambda x, i, u: x.at[i].add(u), f(50, 7), ints(0, 50, 13), f(13, 7)),
    "scatter of long rows": (
        lambda x, i, u: x.at[i].add(u),
        f(300, 700),
        ints(-5, 320, 400),
        f(400, 700),
    ),
    "scatter of windows": (
        lambda x, i, u: x.at[:, i].add(u),
        f(9, 50, 40),
        ints(0, 60, 13),
        f(9, 13, 40),
    ),
    "scatter max": (lambda x, i, u: x.at[:, i].max(u), f(9, 50), ints(0, 50, 13), f(9, 13)),
    "dus": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)) * 2 + x,
        f(50, 7),
        f(3, 7),
        np.int32(4),
    ),
    "conv": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        f(2, 9, 9, 3),
        f(3, 3, 3, 5),
    ),
    "pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        f(2, 9, 9, 3),
    ),
    "einsum": (lambda a, b: jnp.einsum("bhid,bhjd->bijh", a, b), f(2, 3, 17, 8), f(2, 3, 19, 8)),
    "mha": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        f(2, 17, 3, 8),
        f(2, 17, 3, 8),
        f(2, 17, 3, 8),
    ),
    "grad": (jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)), f(17, 8), f(5, 17)),
    "scan": (lambda x: lax.scan(lambda c, a: (c * 0.5 + a, c.sum()), jnp.zeros(7), x), f(13, 7)),
    "recurrent network": (
        lambda xs, h, wx, wh: lax.scan(
            lambda c, x: (lambda n: (n, n))(jnp.tanh(x @ wx + c @ wh)), h, xs
        ),
        f(13, 8, 16),
        f(8, 16),
        f(16, 16),
        f(16, 16),
    ),
    "fori": (lambda x: lax.fori_loop(0, 10, lambda i, c: c @ c * 0.1 + i, x), f(9, 9)),
    "cond": (
        lambda p, x: lax.cond(p > 0, lambda y: jnp.sin(y), lambda y: y.T @ y, x),
        np.float32(1),
        f(9, 9),
    ),
    "switch": (
        lambda i, x: lax.switch(
            i, [lambda y: y + 1, lambda y: jnp.exp(y) * 2, lambda y: y[::-1]], x
        ),
        np.int32(2),
        f(200, 9),
    ),
    "while": (
        lambda x: lax.while_loop(
            lambda c: jnp.sum(c[0]) < 100,
            lambda c: (c[0] + jnp.abs(c[1]), c[1] * 1.01),
            (jnp.zeros(300), x),
        ),
        f(300),
    ),
    "vmap solve": (lambda x: jax.vmap(lambda a: jnp.outer(a, a) + jnp.eye(5))(x), f(4, 5)),
    "bf16 (f16)": (
        lambda x, y: (x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16)).astype(jnp.float32),
        f(33, 64),
        f(64, 9),
    ),
    "f16 softmax": (lambda x: jax.nn.softmax(x.astype(jnp.float16)).astype(jnp.float32), f(33, 64)),
    "int ops": (lambda x, y: (x // y, x % y, x << 2, x ^ y), ints(-100, 100, 50), ints(1, 9, 50)),
    "concat/stack": (
        lambda x, y: jnp.concatenate([x, y * 2, jnp.flip(x)], axis=1),
        f(5, 6),
        f(5, 3),
    ),
    "roll/tile": (lambda x: jnp.tile(jnp.roll(x, 3, axis=1), (2, 3)), f(5, 6)),
    "tril/triu": (lambda x: jnp.tril(x) - jnp.triu(x, 1), f(9, 9)),
    "onehot": (lambda i: jax.nn.one_hot(i, 17).sum(0), ints(0, 17, 50)),
    "random": (lambda k: jax.random.normal(k, (1000,)), np.array([0, 42], np.uint32)),
    "randint": (lambda k: jax.random.randint(k, (100,), 0, 77), np.array([0, 42], np.uint32)),
    "gelu exact": (lambda x: jax.nn.gelu(x, approximate=False), f(50, 33)),
    "softplus,silu,elu": (
        lambda x: (jax.nn.softplus(x), jax.nn.silu(x), jax.nn.elu(x), jax.nn.log_sigmoid(x)),
        f(50, 33),
    ),
    "sort": (lambda x: jnp.sort(x, axis=0), f(50, 33)),
    "topk": (lambda x: lax.top_k(x, 5), f(50, 33)),
    "linalg": (lambda x: jnp.linalg.norm(x, axis=1) + jnp.trace(x), f(33, 33)),
    "scalar": (lambda x: x * 2, np.float32(3)),
    "empty": (lambda x: x.sum(0), np.zeros((0, 5), np.float32)),
    "rope": (
        lambda x, p: (
            lambda s, c: jnp.concatenate(
                [x[..., :4] * c - x[..., 4:] * s, x[..., :4] * s + x[..., 4:] * c], -1
            )
        )(jnp.sin(p[:, None, None] * jnp.arange(4)), jnp.cos(p[:, None, None] * jnp.arange(4))),
        f(11, 3, 8),
        np.arange(11, dtype=np.float32),
    ),
    "kv cache": (
        lambda k, n, i: (lambda c: (c, jnp.einsum("td,d->t", c, n[0])))(
            lax.dynamic_update_slice(k, n, (i, 0))
        ),
        f(64, 8),
        f(1, 8),
        np.int32(5),
    ),
    "multi out reduce": (lambda x: (x.sum(-1), x.max(-1), (x * x).sum(-1), x.mean()), f(64, 88)),
    "transpose combos": (
        lambda x: (x.transpose(2, 0, 1) + 1, x.transpose(1, 0, 2) * x.sum()),
        f(17, 33, 40),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_function(name: str) -> None:
    function, *arguments = CASES[name]
    wanted = jax.tree_util.tree_leaves(jax.jit(function)(*arguments))
    got = jax.tree_util.tree_leaves(gristmill.jit(function)(*arguments))
    tolerance = 2e-2 if "f16" in name else 2e-4
    for ours, want in zip(got, map(np.asarray, wanted), strict=True):
        assert (ours.shape, ours.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(
            ours.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=1e-4
        )
