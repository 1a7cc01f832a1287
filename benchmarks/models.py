# SPDX-License-Identifier: Apache-2.0
"""Whole models that ``benchmarks/run.py --models`` times: in JAX, with their parameters among the inputs.

Small forms of what users export: a classifier and a U-Net in both layouts of images, an encoder, a decoder with its
cache of keys and values, a state space, a recurrent language model, a radiance field, a graph network; some forward,
some a step of training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import CASES, Array, Case, layer_norm, normal
from jax import lax

Tree = Any


def model(
    name: str,
    size: int,
    parameters: Callable[[np.random.Generator], Tree],
    inputs: Callable[[np.random.Generator, int], list[Array]],
    function: Callable[..., Any],
) -> Case:
    """A case whose inputs are the leaves of ``parameters`` and then ``inputs``; ``function`` takes the tree itself.

    Its results are the leaves of what ``function`` returns.
    """
    structure = jax.tree.structure(parameters(np.random.default_rng(0)))
    count = structure.num_leaves

    def make(generator: np.random.Generator, size: int) -> list[Array]:
        leaves = jax.tree.leaves(parameters(generator))
        return [np.ascontiguousarray(x, np.float32) for x in leaves] + inputs(generator, size)

    def flat(*arrays: Any) -> Any:
        found = function(jax.tree.unflatten(structure, arrays[:count]), *arrays[count:])
        leaves = jax.tree.leaves(found)
        return tuple(leaves) if len(leaves) > 1 else found

    return Case(name, (size,), make, flat, None, 2e-3)


def weights(generator: np.random.Generator, *shape: int) -> Array:
    """Weights that keep the variance: all dimensions but the last are summed over."""
    return normal(generator, *shape) / np.float32(np.sqrt(np.prod(shape[:-1])))


def integers(generator: np.random.Generator, below: int, *shape: int) -> Array:
    return generator.integers(0, below, shape).astype(np.int32)


def train(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def step(parameters: Tree, *batch: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(parameters, *batch)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradient)

    return step


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


class Images:
    """Operations on images with channels first (as PyTorch exports them) or last."""

    def __init__(self, channels_first: bool):
        self.first = channels_first
        self.numbers = ("NCHW", "OIHW", "NCHW") if channels_first else ("NHWC", "HWIO", "NHWC")
        self.space = (2, 3) if channels_first else (1, 2)
        self.channel = 1 if channels_first else 3

    def shape(self, batch: int, size: int, channels: int) -> tuple[int, ...]:
        return (batch, channels, size, size) if self.first else (batch, size, size, channels)

    def kernel(self, generator: np.random.Generator, size: int, inputs: int, outputs: int) -> Array:
        found = weights(generator, size, size, inputs, outputs)
        return found.transpose(3, 2, 0, 1) if self.first else found

    def convolve(self, x: jax.Array, w: jax.Array, stride: int = 1, **more: Any) -> jax.Array:
        padding = more.pop("padding", "SAME")
        return lax.conv_general_dilated(
            x, w, (stride, stride), padding, dimension_numbers=self.numbers, **more
        )

    def upsample(self, x: jax.Array, w: jax.Array) -> jax.Array:
        """A transposed convolution of 2 × 2 with stride 2."""
        return self.convolve(x, w, padding=((1, 1), (1, 1)), lhs_dilation=(2, 2))

    def max_pool(self, x: jax.Array) -> jax.Array:
        window = [1, 1, 3, 3] if self.first else [1, 3, 3, 1]
        steps = [min(w, 2) for w in window]
        return lax.reduce_window(x, -jnp.inf, lax.max, window, steps, "SAME")

    def scaled(self, x: jax.Array, p: Tree) -> jax.Array:
        """Batch normalisation with known statistics: gain, bias, mean, deviation."""
        gain, bias, mean, deviation = (v[:, None, None] if self.first else v for v in p)
        return (x - mean) * (gain * lax.rsqrt(deviation * deviation + 1e-5)) + bias

    def group_norm(self, x: jax.Array, groups: int = 8) -> jax.Array:
        shape = [*x.shape[: self.channel], groups, -1, *x.shape[self.channel + 1 :]]
        y = x.reshape(shape)
        inner = (self.channel + 1, *(d + self.first for d in self.space))
        mean, variance = y.mean(inner, keepdims=True), y.var(inner, keepdims=True)
        return ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)


def statistics(g: np.random.Generator, channels: int) -> Tree:
    gain, bias, mean, deviation = (0.1 * normal(g, channels) for _ in range(4))
    return 1 + gain, bias, mean, 1 + deviation


def resnet(images: Images) -> tuple[Callable[..., Tree], Callable[..., Any]]:
    """ResNet-18."""
    widths = (64, 64, 128, 128, 256, 256, 512, 512)

    def parameters(g: np.random.Generator) -> Tree:
        blocks: list[Tree] = []
        for before, width in zip((64, *widths), widths, strict=False):
            kernels = [images.kernel(g, 3, before, width), images.kernel(g, 3, width, width)]
            kernels += [images.kernel(g, 1, before, width)] if before != width else []
            blocks.append([(k, statistics(g, width)) for k in kernels])
        return (images.kernel(g, 7, 3, 64), statistics(g, 64)), blocks, weights(g, 512, 1000)

    def forward(p: Tree, x: jax.Array) -> jax.Array:
        (stem, scale), blocks, head = p
        x = images.max_pool(jax.nn.relu(images.scaled(images.convolve(x, stem, 2), scale)))
        for (a, scale_a), (b, scale_b), *skip in blocks:
            stride = 1 + len(skip)
            y = jax.nn.relu(images.scaled(images.convolve(x, a, stride), scale_a))
            y = images.scaled(images.convolve(y, b), scale_b)
            for w, scale in skip:
                x = images.scaled(images.convolve(x, w, stride), scale)
            x = jax.nn.relu(x + y)
        return x.mean(images.space) @ head

    return parameters, forward


def unet(images: Images) -> tuple[Callable[..., Tree], Callable[..., Any]]:
    """A U-Net of three levels with group norms, as diffusion models have."""

    def parameters(g: np.random.Generator) -> Tree:
        sizes = {"in": (3, 3, 32), "down1": (3, 32, 64), "down2": (3, 64, 128)}
        sizes |= {"up2": (2, 128, 64), "up1": (2, 64, 32)}
        sizes |= {"join2": (3, 128, 64), "join1": (3, 64, 32), "out": (1, 32, 3)}
        return {name: images.kernel(g, *size) for name, size in sizes.items()}

    def forward(p: Tree, x: jax.Array) -> jax.Array:
        def block(x: jax.Array, name: str, stride: int = 1) -> jax.Array:
            return jax.nn.silu(images.group_norm(images.convolve(x, p[name], stride)))

        first = block(x, "in")
        second = block(first, "down1", 2)
        x = block(second, "down2", 2)
        for skip, up, join in ((second, "up2", "join2"), (first, "up1", "join1")):
            x = jnp.concatenate([images.upsample(x, p[up]), skip], images.channel)
            x = block(x, join)
        return images.convolve(x, p["out"])

    return parameters, forward


def unet_loss(images: Images) -> Callable[..., jax.Array]:
    forward = unet(images)[1]
    return lambda p, x, y: jnp.square(forward(p, x) - y).mean()


def encoder_parameters(g: np.random.Generator) -> Tree:
    shapes = {"qkv": (256, 768), "out": (256, 256), "up": (256, 1024), "down": (1024, 256)}
    layers = [{name: weights(g, *shape) for name, shape in shapes.items()} for _ in range(4)]
    return [layer | {"gain": 1 + 0.1 * normal(g, 256), "bias": normal(g, 256)} for layer in layers]


def encoder(p: Tree, x: jax.Array, mask: jax.Array) -> jax.Array:
    """BERT's layers, which share a mask."""
    batch, length, _ = x.shape
    bias = jnp.where(mask, 0.0, -1e9)[:, None, None]
    for layer in p:
        heads = (x @ layer["qkv"]).reshape(batch, length, 12, 64).transpose(0, 2, 1, 3)
        q, k, v = jnp.split(heads, 3, 1)
        found = jax.nn.softmax(q @ k.swapaxes(2, 3) / 8 + bias, -1) @ v
        found = found.transpose(0, 2, 1, 3).reshape(x.shape) @ layer["out"]
        x = layer_norm(x + found, layer["gain"], layer["bias"])
        x = x + jax.nn.gelu(x @ layer["up"], approximate=False) @ layer["down"]
    return x


def encoder_inputs(g: np.random.Generator, length: int) -> list[Array]:
    return [normal(g, 4, length, 256), np.arange(length) < integers(g, length, 4, 1)]


def decoder_parameters(g: np.random.Generator) -> Tree:
    shapes = {"q": (512, 512), "k": (512, 128), "v": (512, 128), "o": (512, 512)}
    shapes |= {"gate": (512, 1408), "up": (512, 1408), "down": (1408, 512)}
    layers = [{name: weights(g, *shape) for name, shape in shapes.items()} for _ in range(4)]
    return weights(g, 8000, 512), layers


def decoder(p: Tree, keys: jax.Array, values: jax.Array, token: jax.Array, place: jax.Array) -> Any:
    """One token of a Llama: eight heads of queries, two of keys and values, which are kept of all tokens so far."""
    table, layers = p
    x, seen, kept = table[token], jnp.arange(keys.shape[1]) <= place, []

    def normed(x: jax.Array) -> jax.Array:
        return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)

    for layer, old_k, old_v in zip(layers, keys, values, strict=True):
        h = normed(x)
        k = lax.dynamic_update_slice(old_k, (h @ layer["k"]).reshape(1, 2, 64), (place, 0, 0))
        v = lax.dynamic_update_slice(old_v, (h @ layer["v"]).reshape(1, 2, 64), (place, 0, 0))
        kept.append((k, v))
        scores = jnp.einsum("kgd,tkd->kgt", (h @ layer["q"]).reshape(2, 4, 64), k) / 8
        scores = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)
        x = x + jnp.einsum("kgt,tkd->kgd", scores, v).reshape(1, 512) @ layer["o"]
        h = normed(x)
        x = x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]
    return normed(x) @ table.T, kept


def decoder_inputs(g: np.random.Generator, length: int) -> list[Array]:
    cache = (4, length, 2, 64)
    place = np.int32(length // 2)
    return [normal(g, *cache), normal(g, *cache), integers(g, 8000, 1), np.asarray(place)]


def state_space_parameters(g: np.random.Generator) -> Tree:
    shapes = {"in": (64, 256), "window": (4, 128), "step": (128, 128)}
    shapes |= {"b": (128, 16), "c": (128, 16), "a": (128, 16), "out": (128, 64)}
    return {name: weights(g, *shape) for name, shape in shapes.items()}


def state_space(p: Tree, x: jax.Array) -> jax.Array:
    """A Mamba block: the loss of what it computes."""
    u, gate = jnp.split(x @ p["in"], 2, -1)
    padded = jnp.pad(u, ((3, 0), (0, 0)))
    u = jax.nn.silu(sum(padded[i : i + len(x)] * p["window"][i] for i in range(4)))
    step = jax.nn.softplus(u @ p["step"])
    decay = jnp.exp(-step[:, :, None] * jnp.exp(p["a"]))
    added = (step * u)[:, :, None] * (u @ p["b"])[:, None, :]

    def advance(state: jax.Array, item: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        state = item[0] * state + item[1]
        return state, (state * item[2]).sum(-1)

    y = lax.scan(advance, jnp.zeros_like(decay[0]), (decay, added, u @ p["c"]))[1]
    return jnp.square((y * jax.nn.silu(gate)) @ p["out"]).mean()


def recurrent_parameters(g: np.random.Generator) -> Tree:
    return weights(g, 2000, 128), weights(g, 128, 512), weights(g, 128, 512), weights(g, 128, 2000)


def recurrent(p: Tree, text: jax.Array) -> jax.Array:
    """The loss of a language model of one LSTM layer."""
    table, ahead, back, out = p

    def step(carried: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
        h, cell = carried
        keep, take, show, new = jnp.split(x @ ahead + h @ back, 4, -1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
        h = jax.nn.sigmoid(show) * jnp.tanh(cell)
        return (h, cell), h

    zero = jnp.zeros((text.shape[0], 128), jnp.float32)
    states = lax.scan(step, (zero, zero), table[text[:, :-1].T])[1]
    return cross_entropy(states @ out, text[:, 1:].T)


def radiance_parameters(g: np.random.Generator) -> Tree:
    return [weights(g, *s) for s in ((39, 128), (128, 128), (128, 128), (128, 4))]


def radiance(p: Tree, origin: jax.Array, direction: jax.Array, colour: jax.Array) -> jax.Array:
    """The loss of a radiance field along rays of 32 points."""
    points = origin[:, None] + direction[:, None] * jnp.linspace(0.0, 1.0, 32)[:, None]
    waves = (points[..., None] * 2.0 ** jnp.arange(6)).reshape(*points.shape[:2], 18)
    x = jnp.concatenate([points, jnp.sin(waves), jnp.cos(waves)], -1)
    for w in p[:-1]:
        x = jax.nn.relu(x @ w)
    x = x @ p[-1]
    alpha = 1 - jnp.exp(-0.05 * jax.nn.softplus(x[..., 3]))
    light = jnp.cumprod(1 - alpha, -1) / (1 - alpha)
    seen = ((alpha * light)[..., None] * jax.nn.sigmoid(x[..., :3])).sum(1)
    return jnp.square(seen - colour).mean()


def graph(p: Tree, x: jax.Array, source: jax.Array, target: jax.Array, y: jax.Array) -> jax.Array:
    """The loss of a graph convolution network of two layers."""
    first, second = p
    x = jax.ops.segment_sum((x @ first)[source], target, num_segments=len(x))
    x = jax.ops.segment_sum((jax.nn.relu(x) @ second)[source], target, num_segments=len(x))
    return cross_entropy(x, y)


def graph_inputs(g: np.random.Generator, nodes: int) -> list[Array]:
    edges = [integers(g, nodes, 5 * nodes) for _ in range(2)]
    return [normal(g, nodes, 64), *edges, integers(g, 16, nodes)]


def _image_models(layout: str, images: Images) -> tuple[Case, ...]:
    def one(channels: int = 3, batch: int = 1) -> Callable[..., list[Array]]:
        return lambda g, n: [normal(g, *images.shape(batch, n, channels))]

    def two(g: np.random.Generator, n: int) -> list[Array]:
        return [normal(g, *images.shape(2, n, 3)) for _ in range(2)]

    parameters = unet(images)[0]
    return (
        model(f"resnet18_{layout}", 224, resnet(images)[0], one(), resnet(images)[1]),
        model(f"unet_{layout}", 128, parameters, one(), unet(images)[1]),
        model(f"unet_train_{layout}", 64, parameters, two, train(unet_loss(images))),
    )


MODELS: tuple[Case, ...] = (
    *_image_models("nchw", Images(True)),
    *_image_models("nhwc", Images(False)),
    model("encoder", 128, encoder_parameters, encoder_inputs, encoder),
    model("decode", 512, decoder_parameters, decoder_inputs, decoder),
    model(
        "state_space_train",
        128,
        state_space_parameters,
        lambda g, n: [normal(g, n, 64)],
        train(state_space),
    ),
    model(
        "recurrent_train",
        33,
        recurrent_parameters,
        lambda g, n: [integers(g, 2000, 16, n)],
        train(recurrent),
    ),
    model(
        "radiance_train",
        128,
        radiance_parameters,
        lambda g, n: [normal(g, n, 3) for _ in range(3)],
        train(radiance),
    ),
    model(
        "graph_train",
        2000,
        lambda g: (weights(g, 64, 64), weights(g, 64, 16)),
        graph_inputs,
        train(graph),
    ),
)


def program(name: str) -> Case:
    """The case or model of this name."""
    return next(case for case in (*CASES, *MODELS) if case.name == name)
