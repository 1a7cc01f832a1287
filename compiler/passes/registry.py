# SPDX-License-Identifier: Apache-2.0
"""Every pass of ours by name. The one list that the command line, the docs and the tests read."""

from __future__ import annotations

import importlib
from typing import cast

from gristmill.compiler.passes.base import Pass, closest
from gristmill.errors import PassError


def _table(*rows: tuple[str, str]) -> dict[str, str]:
    table: dict[str, str] = {}
    for name, target in rows:
        if name in table:
            raise ValueError(f"pass {name!r} is registered twice")
        table[name] = target
    return table


#: Pass name to ``module:Class``, resolved when used; modules are those of this package.
PASSES: dict[str, str] = _table(
    ("inline-calls", "inline_calls:InlineCallsPass"),
    ("canonicalize-hlo", "canonicalize_hlo:CanonicalizeHloPass"),
    ("simplify-loops", "simplify_loops:SimplifyLoopsPass"),
    ("fold-constants", "fold_constants:FoldConstantsPass"),
    ("resolve-shape-assertions", "resolve_shape_assertions:ResolveShapeAssertionsPass"),
    ("cse-hlo", "cse_hlo:CseHloPass"),
    ("dce-hlo", "dce_hlo:DceHloPass"),
    ("hoist-products", "hoist_products:HoistProductsPass"),
    ("unroll-loops", "unroll_loops:UnrollLoopsPass"),
    ("rewrite-sigmoids", "rewrite_sigmoids:RewriteSigmoidsPass"),
    ("rewrite-error-functions", "rewrite_error_functions:RewriteErrorFunctionsPass"),
    ("check-supported", "check_supported:CheckSupportedPass"),
    ("order-effects", "order_effects:OrderEffectsPass"),
    ("limit-sorts", "limit_sorts:LimitSortsPass"),
    ("split-reductions", "split_reductions:SplitReductionsPass"),
    ("fuse", "fuse:FusePass"),
    ("fuse-attention", "fuse_attention:FuseAttentionPass"),
    ("find-histograms", "find_histograms:FindHistogramsPass"),
    ("verify-hlo", "verify_hlo:VerifyHloPass"),
)


def resolve(name: str) -> type[Pass]:
    """The pass class called ``name``; raises ``PassError`` with the closest known name."""
    target = PASSES.get(name)
    if target is None:
        raise PassError(f"there is no pass {name!r}{closest(name, PASSES)}")
    module_name, _, class_name = target.partition(":")
    module = importlib.import_module(f"gristmill.compiler.passes.{module_name}")
    return cast(type[Pass], getattr(module, class_name))


def create(name: str, options: dict[str, str] | None = None) -> Pass:
    """The pass ``name``, options given as texts; raises ``PassError`` for a bad name or option."""
    return resolve(name).from_options(options or {})
