# SPDX-License-Identifier: Apache-2.0
"""``gristmill-opt``: run passes of ours and of upstream MLIR over one module and print the result.

examples:
  gristmill-opt model.mlir                    import StableHLO, print it in the hlo dialect
  gristmill-opt model.mlir --pass-pipeline='canonicalize-hlo,fold-constants{limit-bytes=64},dce-hlo'
  gristmill-opt - --pass-pipeline='builtin.module(func.func(canonicalize),cse)' < kernel.mlir
  gristmill-opt model.mlir --pass-pipeline=... --print-after-all --timing -o out.mlir
  gristmill-opt --list-passes
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from gristmill.compiler.diagnostics import named_source
from gristmill.compiler.module import HloModule
from gristmill.compiler.passes import registry
from gristmill.compiler.passes.base import options_of
from gristmill.compiler.passes.pipeline import Pipeline, RunOptions
from gristmill.compiler.text import parse_module, print_module
from gristmill.errors import GristmillError, ParseError

_STABLEHLO = re.compile(r"^HloModule |\b(?:stablehlo|chlo|vhlo|sdy)\.[a-z_]", re.MULTILINE)
_SPLIT = re.compile(r"^// -----[^\n]*$", re.MULTILINE)
_EXPECTED = re.compile(r"//\s*expected-error\s*\{\{(.*?)\}\}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    summary, _, examples = (__doc__ or "").partition("\n\nexamples:")
    top = argparse.ArgumentParser(
        prog="gristmill-opt",
        description=summary.replace("``", "").partition(": ")[2],
        epilog="examples:" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("input", nargs="?", default="-", help="a module of any dialect; - or nothing reads stdin")
    add("-o", dest="output", default="-", metavar="FILE", help="where to print (default: stdout)")
    add("--pass-pipeline", default="", metavar="TEXT", help="e.g. canonicalize-hlo,dce-hlo")
    add("--list-passes", action="store_true", help="show our passes with their options and leave")
    add(
        "--verify-each",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="verify the module after every pass (default: yes)",
    )
    add("--print-after", action="append", default=[], metavar="NAME", help="print IR after a pass")
    add("--print-after-all", action="store_true", help="print IR after every pass")
    add("--dump-dir", type=Path, metavar="DIR", help="write IR after every pass to files here")
    add("--timing", action="store_true", help="report the time of every pass")
    add("--split-input-file", action="store_true", help="treat parts between // ----- lines alone")
    add(
        "--verify-diagnostics",
        action="store_true",
        help="succeed when each part fails with the texts of its // expected-error {{text}} lines",
    )
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--mlir-print-op-generic", action="store_true", help="print generic forms")
    add("--elide-resources", action="store_true", help="print no data of large constants")
    add("--debug", action="store_true", help="show the Python traceback of an error")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status (0, or 1 after an error, printed as one line)."""
    args = parser().parse_args(argv)
    try:
        if args.list_passes:
            print(_pass_list())
            return 0
        status = _execute(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, head for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except GristmillError as error:
        if args.debug:
            traceback.print_exc()
        print(f"gristmill-opt: error: {_one_line(error, args.input)}", file=sys.stderr)
        return 1


def load(source: str | bytes, name: str) -> HloModule:
    """Read any MLIR; StableHLO and HLO text go through the frontends. Raises ``ParseError``."""
    if isinstance(source, str) and not _STABLEHLO.search(_without_comments(source)):
        return parse_module(source, name=name)
    from gristmill.compiler import frontends  # imports jaxlib, which plain MLIR input need not pay

    if isinstance(source, bytes):
        return frontends.load_bytes(source, name=name)
    return frontends.load_text(source, name=name)


def _execute(args: argparse.Namespace) -> int:
    pipeline = Pipeline(args.pass_pipeline)
    options = RunOptions(
        verify=args.verify_each,
        print_after=tuple(args.print_after),
        print_after_all=args.print_after_all,
        emit=lambda text: print(text, file=sys.stderr),
        dump_dir=args.dump_dir,
        keep_repro=not args.verify_diagnostics,
    )
    source = _read(args.input)
    parts = _split(source) if args.split_input_file and isinstance(source, str) else [source]
    printed: list[str] = []
    status = 0
    for part in parts:
        if args.verify_diagnostics and isinstance(part, str):
            status |= _expect_errors(part, args.input, pipeline, options)
            continue
        module = load(part, args.input)
        report = pipeline.run(module, options=options)
        if args.timing:
            print(report, file=sys.stderr)
        printed.append(
            print_module(
                module,
                resources=not args.elide_resources,
                debug_info=args.mlir_print_debuginfo,
                generic=args.mlir_print_op_generic,
            )
        )
    if printed:
        _write(args.output, "\n// -----\n\n".join(printed))
    return status


def _expect_errors(part: str, name: str, pipeline: Pipeline, options: RunOptions) -> int:
    """0 when the part fails with every expected text (or passes, if it expects none), else 1."""
    expected = [match.group(1) for match in _EXPECTED.finditer(part)]
    try:
        pipeline.run(load(part, name), options=options)
        got = ""
    except GristmillError as error:
        got = _one_line(error, name)
    line = len(part) - len(part.lstrip("\n")) + 1
    missing = [text for text in expected if text not in got]
    for text in missing:
        print(f"{name}:{line}: expected error {text!r}, got {got or 'none'!r}", file=sys.stderr)
    if got and not expected:
        print(f"{name}:{line}: unexpected error: {got}", file=sys.stderr)
    return 1 if missing or (got and not expected) else 0


def _read(path: str) -> str | bytes:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ParseError(f"cannot read {path}: {error.strerror}") from error
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise GristmillError(f"cannot write {path}: {error.strerror}") from error


def _split(text: str) -> list[str]:
    """The parts, each behind as many newlines as keep its line numbers those of the file."""
    parts: list[str] = []
    start = 0
    for match in [*_SPLIT.finditer(text), None]:
        end = len(text) if match is None else match.start()
        parts.append("\n" * text.count("\n", 0, start) + text[start:end])
        start = end if match is None else match.end()
    return [part for part in parts if _without_comments(part).strip()]


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def _one_line(error: GristmillError, name: str) -> str:
    return " ".join(named_source(str(error), name).split())


def _pass_list() -> str:
    lines: list[str] = []
    for name in sorted(registry.PASSES):
        cls = registry.resolve(name)
        doc = inspect.getdoc(cls) or ""
        lines += [name, *(f"    {line}".rstrip() for line in doc.splitlines())]
        rows = [f"      {o} : {kind} = {default}" for o, kind, default in options_of(cls)]
        lines += (["    Options:", *rows] if rows else []) + [""]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    sys.exit(main())
