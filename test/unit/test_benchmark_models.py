# SPDX-License-Identifier: Apache-2.0
"""The whole models of the benchmarks: their results beside XLA's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import gristmill

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import jax  # noqa: E402
from models import CASES, MODELS, program  # noqa: E402
from worker import difference  # noqa: E402

#: Those that compile in a second or two.
QUICK = ("encoder", "decode", "radiance_train", "graph_train")


def check(name: str) -> None:
    """Compile a model with both and compare all results."""
    case = program(name)
    inputs = case.make(np.random.default_rng(0), case.sizes[0])
    lowered = jax.jit(case.function, keep_unused=True).lower(*inputs)
    wanted = [np.asarray(x) for x in jax.tree.leaves(lowered.compile()(*inputs))]
    options = gristmill.CompileOptions(cache=False)
    with gristmill.compile(lowered.as_text(), options=options) as executable:
        found = executable(*inputs)
    found = list(found) if isinstance(found, tuple) else [found]
    assert difference(found, wanted, case.tolerance) == ""


@pytest.mark.parametrize("name", QUICK)
def test_quick_models(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [m.name for m in MODELS if m.name not in QUICK])
def test_models(name: str) -> None:
    check(name)


def test_names_are_unique() -> None:
    names = [case.name for case in (*CASES, *MODELS)]
    assert len(names) == len(set(names))
