# SPDX-License-Identifier: Apache-2.0
"""Compiles, runs and judges one self-checking module; the outcome is plain data."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.errors import GristmillError, UnsupportedError


@dataclass(frozen=True)
class Outcome:
    """What became of one module.

    Attributes:
        path: the module's file.
        causes: why it failed, in words that are the same for all modules with this fault; empty
            when it passed.
        detail: the full message of a failure.
        seconds: time taken to compile, run and judge.
    """

    path: str
    causes: tuple[str, ...] = ()
    detail: str = ""
    seconds: float = 0.0
    checks: int = field(default=0, compare=False)

    @property
    def passed(self) -> bool:
        """Whether every check of the module passed."""
        return not self.causes


def check_file(path: Path, device: str | None = None) -> Outcome:
    """Run one module in this process, on the CPU or ``device``; every error becomes part of the outcome."""
    start = time.perf_counter()
    count = 0
    try:
        count, problems = _run(path, device)
        causes = tuple(f"wrong value: {name}" for name in dict.fromkeys(p[0] for p in problems))
        detail = "; ".join(f"{where}: {text}" for _, where, text in problems)
        if count == 0:
            causes, detail = ("no checks in the module",), "it has no @check.expect_* call in @main"
    except UnsupportedError as error:
        causes, detail = tuple(f"unsupported: {c}" for c in unsupported_causes(error)), str(error)
    except GristmillError as error:
        causes, detail = (f"{type(error).__name__}: {generalise(error.message)}",), str(error)
    except Exception as error:  # one module's fault must not end the run over all the others
        text = generalise(str(error))
        causes, detail = (f"internal error: {type(error).__name__}: {text}",), str(error)
    return Outcome(str(path), causes, detail, time.perf_counter() - start, count)


def _run(path: Path, device: str | None) -> tuple[int, list[tuple[str, str, str]]]:
    """The number of checks, and (kind, location, message) of each one that failed."""
    from gristmill.compiler.compile import compile_stages, import_source
    from gristmill.compiler.compile_device import compile_for_device
    from gristmill.compiler.driver.arrays import listed
    from gristmill.compiler.driver.check_extraction import extract_checks
    from gristmill.compiler.options import CompileOptions
    from gristmill.compiler.passes import registry

    module = import_source(path)
    registry.create("inline-calls").run(module)
    checks = extract_checks(module)
    # With folding off the kernels compute what the check is about, not the compiler's evaluator.
    options = CompileOptions(fold_constants=False)
    if device is None:
        results = listed(compile_stages(module, options=options).executable()())
    else:
        with compile_for_device(module, device, options=options) as executable:
            results = listed(executable())
    judged = [(check, check.judge(results)) for check in checks]
    return len(checks), [(c.kind, c.location, text) for c, text in judged if text is not None]


def unsupported_causes(error: UnsupportedError) -> list[str]:
    """The unsupported things, each once: an element type, or an op and what is wrong with it."""
    return list(dict.fromkeys(_cause(item) for item in error.items))


def _cause(item: str) -> str:
    kind = re.search(r"element type \S+", item)
    return kind.group() if kind else generalise(re.sub(r"^\S+:\d+:\d+: ", "", item))


def generalise(text: str) -> str:
    """The message with shapes, numbers and value names blanked, so that equal faults group."""
    text = re.sub(r"\S+?:\d+:\d+(?=[:\s]|$)", "FILE", " ".join(text.split()))
    text = re.sub(r"\b(?:\d+x)+(?=[a-z])", "", text)
    text = re.sub(r"%\w+|(?<![\w.])\d+(?:\.\d+)?\b", "N", text)
    return text[:140]
