# SPDX-License-Identifier: Apache-2.0
"""The ``--custom-calls`` option: modules that register the functions a model calls."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from gristmill.errors import GristmillError, InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--custom-calls",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first: a .py file, or a module's dotted name, that calls "
        "gristmill.register_custom_call",
    )


def register(modules: Sequence[str]) -> None:
    """Import the modules; raises ``InputError`` for one that cannot be imported."""
    for module in modules:
        try:
            if module.endswith(".py"):
                _run_file(Path(module))
            else:
                importlib.import_module(module)
        except GristmillError:
            raise
        except Exception as error:  # whatever the user's module does
            raise InputError(
                f"--custom-calls {module}: cannot import it: {type(error).__name__}: {error}"
            ) from error


def _run_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"--custom-calls: no such file: {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # pickling and dataclasses look it up
    spec.loader.exec_module(module)
