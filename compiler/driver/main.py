# SPDX-License-Identifier: Apache-2.0
"""The ``gristmill`` command: runs one subcommand and turns errors into one line.

Each subcommand is a module of this package with ``HELP``, ``configure(parser)`` and
``execute(args)``. Modules import what is heavy inside ``execute``, so that ``--help`` and mistyped
options answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from gristmill import __version__
from gristmill.errors import GristmillError, UnsupportedError

_COMMANDS = ("run", "compile", "bench", "check", "cache", "doctor")

_DESCRIPTION = """\
Gristmill compiles StableHLO modules (what JAX, PyTorch/XLA and TensorFlow export) to native code
and runs them.

A MODEL is a file in any of these formats, recognised by its content: StableHLO text (.mlir), MLIR
bytecode or a portable artifact (what jax.export serialises), HLO text ("HloModule ..."), or an
artifact that `gristmill compile` saved."""

_EPILOG = """\
examples:
  gristmill run model.mlir --random              compile, run on random inputs, print the results
  gristmill run model.mlir --inputs x.npz --output y.npz --repeat 100
  gristmill compile model.mlir --emit=fused      show which operations became one kernel
  gristmill compile model.mlir -o model.gmill    save an artifact that runs without the compiler
  gristmill bench model.mlir                     time each kernel beside what the machine can do
  gristmill check tests/                         run modules that check themselves
  gristmill cache                                show the cache of compiled programs
  gristmill doctor                               show what is installed and what the machine can do

`gristmill COMMAND --help` explains each command; `gristmill-opt --help` the pass driver."""


def command(name: str) -> ModuleType:
    """The module of subcommand ``name``."""
    return import_module(f"gristmill.compiler.driver.{name}_command")


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show the Python traceback of an error",
    )
    top = argparse.ArgumentParser(
        prog="gristmill",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    top.add_argument("--version", action="version", version=f"gristmill {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        module = command(name)
        description, _, epilog = (module.__doc__ or "").partition("\n\nexamples:")
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=description,
            epilog="examples:" + epilog if epilog else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[common],
        )
        module.configure(sub)
        sub.set_defaults(execute=module.execute)
    return top


def describe(error: BaseException) -> str:
    """What the user is told of ``error``: one line, or one line for each unsupported item."""
    if isinstance(error, UnsupportedError) and len(error.items) > 1:
        return "\n".join([f"{len(error.items)} things are not supported:", *error.items])
    if isinstance(error, GristmillError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    text = " ".join(str(error).split())[:300]
    return f"internal error: {type(error).__name__}: {text} (rerun with --debug for the traceback)"


def _show_warning(message: Warning | str, *_where: object) -> None:
    print(f"gristmill: warning: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own); returns the exit code."""
    args = parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = args.execute(args)
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        print("gristmill: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has left: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the boundary: nothing but one line reaches the user
        if getattr(args, "debug", False):
            traceback.print_exc()
        print(f"gristmill: {describe(error)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
