# SPDX-License-Identifier: Apache-2.0
"""``gristmill.jit``: run a JAX function with Gristmill, compiled once for each set of argument shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from gristmill.compiler.cache import compile
from gristmill.compiler.options import CompileOptions
from gristmill.runtime.executable import Executable

if TYPE_CHECKING:
    from gristmill.compiler.polymorphic import PolymorphicExecutable


def jit(
    function: Callable[..., Any], *, options: CompileOptions | None = None
) -> Callable[..., Any]:
    """A function that computes what ``function`` computes, through Gristmill.

    Arguments and results are pytrees of arrays; results come back as numpy arrays in ``function``'s own
    structure. Needs ``jax``, which traces ``function`` on the first call with each set of shapes and dtypes, and again
    when its settings that change what it traces (64-bit types, the default precision of products, …) have changed.
    """
    import jax
    from jax._src import config

    # What jax.jit's own cache goes by; it has no public name.
    settings = cast("Callable[[], Any]", config.trace_context)
    traced = jax.jit(function, keep_unused=True)
    cache: dict[Any, tuple[Executable | PolymorphicExecutable, Any]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = cast(tuple[list[Any], Any], jax.tree_util.tree_flatten((args, kwargs)))
        # Types in JAX's sense: those of Python's numbers are weak, and give way to arrays'.
        key: tuple[Any, ...] = (structure, settings(), *map(jax.typeof, leaves))
        if key not in cache:
            lowered = traced.lower(*args, **kwargs)
            cache[key] = compile(lowered, options=options), lowered.out_tree
        executable, out_tree = cache[key]
        results: Any = executable(*(jax.numpy.asarray(leaf) for leaf in leaves))
        flat = cast("tuple[Any, ...]", results if isinstance(results, tuple) else (results,))
        return jax.tree_util.tree_unflatten(out_tree, flat)

    return call
