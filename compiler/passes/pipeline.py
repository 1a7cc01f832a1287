# SPDX-License-Identifier: Apache-2.0
"""``Pipeline``: an ordered list of named stages, readable and printable as an MLIR pipeline string.

    canonicalize-hlo,fold-constants{limit-bytes=64},builtin.module(func.func(canonicalize),symbol-dce)

Names in our registry are our passes; anything else is one element of an upstream pipeline. An outer
``builtin.module(...)`` is transparent, so MLIR's own pipeline strings work unchanged.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mlir import ir

from gristmill.compiler.diagnostics import MLIRError, diagnostics_text
from gristmill.compiler.module import HloModule
from gristmill.compiler.passes import registry
from gristmill.compiler.passes.base import (
    FunctionPass,
    Pass,
    UpstreamPass,
    closest,
    upstream_error,
)
from gristmill.compiler.text import print_module
from gristmill.dialects.verify import verify_module
from gristmill.errors import GristmillError, PassError

#: What can be inserted into a pipeline: a pass, a Python function, or pipeline text.
PassLike = Pass | Callable[[HloModule], None] | str


@dataclass(frozen=True)
class Stage:
    """One step of a pipeline. ``name`` is unique in it (a second ``dce-hlo`` is ``dce-hlo#2``)."""

    name: str
    action: Pass


@dataclass
class RunOptions:
    """What happens between passes.

    Attributes:
        verify: check the module with MLIR's verifier and the ``hlo`` rules after every pass.
        print_after: stage or pass names whose result is printed.
        print_after_all: print the result of every stage.
        emit: receives printed IR (default: ``print``).
        dump_dir: write the module after every stage to ``NN-stage.mlir`` here.
        keep_repro: on failure write the failing pass's input to a file that the error names.
    """

    verify: bool = True
    print_after: tuple[str, ...] = ()
    print_after_all: bool = False
    emit: Callable[[str], None] = print
    dump_dir: Path | None = None
    keep_repro: bool = True


@dataclass
class Report:
    """What a run did: (stage name, seconds) in order, verification excluded."""

    timings: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def __str__(self) -> str:
        total = sum(seconds for _, seconds in self.timings) or 1.0
        rows = [f"{s * 1e3:10.3f} ms {s / total:6.1%}  {name}" for name, s in self.timings]
        return "\n".join([*rows, f"{total * 1e3:10.3f} ms 100.0%  total"])


AfterEach = Callable[[Stage, HloModule], None]


class Pipeline:
    """An editable sequence of stages; ``str`` gives its text and ``Pipeline(text)`` reads it."""

    def __init__(self, passes: PassLike | list[PassLike] | tuple[PassLike, ...] = ()):
        items: list[PassLike] = [*passes] if isinstance(passes, list | tuple) else [passes]
        self._stages: list[Stage] = []
        for item in items:
            self._insert(len(self._stages), item, None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""
        return tuple(self._stages)

    @property
    def names(self) -> list[str]:
        """The stage names, in order."""
        return [stage.name for stage in self._stages]

    def __str__(self) -> str:
        return ",".join(stage.action.spelling() for stage in self._stages)

    @property
    def is_textual(self) -> bool:
        """Whether the text says all of it: every stage is a registered pass or upstream's."""
        return all(_is_registered(stage.action) for stage in self._stages)

    def append(self, item: PassLike, *, name: str | None = None) -> None:
        """Add ``item`` at the end; ``name`` overrides the stage name of a single pass."""
        self._insert(len(self._stages), item, name)

    def insert_before(self, stage: str, item: PassLike, *, name: str | None = None) -> None:
        """Add ``item`` in front of ``stage``; raises ``PassError`` for an unknown stage."""
        self._insert(self._index(stage), item, name)

    def insert_after(self, stage: str, item: PassLike, *, name: str | None = None) -> None:
        """Add ``item`` behind ``stage``; raises ``PassError`` for an unknown stage."""
        self._insert(self._index(stage) + 1, item, name)

    def replace(self, stage: str, item: PassLike, *, name: str | None = None) -> None:
        """Put ``item`` in the place of ``stage``; raises ``PassError`` for an unknown stage."""
        index = self._index(stage)
        old = self._stages.pop(index)
        try:
            self._insert(index, item, name)
        except PassError:
            self._stages.insert(index, old)
            raise

    def remove(self, stage: str) -> None:
        """Drop ``stage``; raises ``PassError`` for an unknown one."""
        del self._stages[self._index(stage)]

    def run(
        self,
        module: HloModule,
        *,
        options: RunOptions | None = None,
        after_each: AfterEach | None = None,
    ) -> Report:
        """Run every stage over ``module`` in place.

        Args:
            module: what to transform; half-transformed when a stage fails.
            options: verification, printing and dumping between the stages.
            after_each: called with every finished, verified stage and the module.

        Raises:
            PassError: names the stage, what went wrong, and the file that reproduces it. Errors of
                other kinds (``UnsupportedError``…) that a pass raises are kept as they are.
        """
        options = options or RunOptions()
        self._check_names(options.print_after)
        report = Report()
        for number, stage in enumerate(self._stages):
            before = module.module.operation.clone() if options.keep_repro else None
            start = time.perf_counter()
            try:
                with module.context:
                    stage.action.run(module)
                seconds = time.perf_counter() - start
                if options.verify:
                    _verify(module)
            except (PassError, _BrokenModule, MLIRError) as error:
                message = diagnostics_text(error) if isinstance(error, MLIRError) else str(error)
                repro = _write_repro(stage, module, before, number, options)
                raise PassError(f"pass {stage.name!r} failed: {message}{repro}") from error
            report.timings.append((stage.name, seconds))
            _show(stage, module, number, options)
            if after_each is not None:
                after_each(stage, module)
        return report

    def _index(self, name: str) -> int:
        for index, stage in enumerate(self._stages):
            if stage.name == name:
                return index
        known = ", ".join(self.names) or "none"
        raise PassError(f"the pipeline has no stage {name!r}; it has: {known}")

    def _insert(self, index: int, item: PassLike, name: str | None) -> None:
        named = _named_passes(item)
        if name is not None:
            if len(named) != 1:
                raise PassError(f"stage name {name!r} fits one pass, but {len(named)} were given")
            if name in self.names:
                raise PassError(f"the pipeline already has a stage {name!r}")
            named = [(name, named[0][1])]
        for offset, (base, action) in enumerate(named):
            self._stages.insert(index + offset, Stage(self._unique(base), action))

    def _unique(self, base: str) -> str:
        taken = set(self.names)
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}#{count}"
        return name

    def _check_names(self, wanted: tuple[str, ...]) -> None:
        known = {*self.names, *(stage.action.name for stage in self._stages)}
        for name in wanted:
            if name not in known:
                raise PassError(f"the pipeline has no stage {name!r}{closest(name, known)}")


class _BrokenModule(GristmillError):
    """The module does not verify after a pass."""


def _verify(module: HloModule) -> None:
    try:
        module.module.operation.verify()
        verify_module(module.module)
    except MLIRError as error:
        raise _BrokenModule(f"it left invalid IR: {diagnostics_text(error)}") from error
    except GristmillError as error:
        raise _BrokenModule(f"it left invalid IR: {error}") from error


def _show(stage: Stage, module: HloModule, number: int, options: RunOptions) -> None:
    wanted = {stage.name, stage.action.name} & set(options.print_after)
    if options.print_after_all or wanted:
        text = print_module(module, resources=False, elide_elements=64)
        options.emit(f"// -----// IR after {stage.name} //----- //\n{text}")
    if options.dump_dir is not None:
        options.dump_dir.mkdir(parents=True, exist_ok=True)
        path = options.dump_dir / f"{number:02d}-{_file_name(stage.name)}.mlir"
        path.write_text(print_module(module, resources=False))


def _write_repro(
    stage: Stage,
    module: HloModule,
    before: ir.OpView | ir.Operation | None,
    number: int,
    options: RunOptions,
) -> str:
    """Write the failing stage's input; the text to append to the error."""
    if before is None:
        return ""
    text = str(before.operation.get_asm(assume_verified=True))
    directory = options.dump_dir or Path(tempfile.mkdtemp(prefix="gristmill-repro-"))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{number:02d}-before-{_file_name(stage.name)}.mlir"
    path.write_text(text)
    if module.constants:
        path.write_text(_with_constants(text, module))
    return f"; reproduce with: gristmill-opt --pass-pipeline='{stage.action.spelling()}' {path}"


def _with_constants(text: str, module: HloModule) -> str:
    with module.context:
        return print_module(HloModule(ir.Module.parse(text), module.constants))


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.#" else "_" for c in name)[:80]


def _is_registered(action: Pass) -> bool:
    if action.name in registry.PASSES:
        return type(action) is registry.resolve(action.name)
    return type(action) is UpstreamPass


def _named_passes(item: PassLike) -> list[tuple[str, Pass]]:
    if isinstance(item, str):
        return [(_stage_name(action), action) for action in parse_passes(item)]
    if isinstance(item, Pass):
        return [(_stage_name(item), item)]
    return [(getattr(item, "__name__", "function"), FunctionPass(item))]


def _stage_name(action: Pass) -> str:
    if not isinstance(action, UpstreamPass):
        return action.name
    element = action.element
    return element if "(" in element else element.partition("{")[0]


def parse_passes(text: str) -> list[Pass]:
    """The passes of a pipeline string, an outer ``builtin.module(...)`` flattened.

    Raises:
        PassError: for a syntax error, or a name that is neither ours nor upstream's.
    """
    passes: list[Pass] = []
    for element in split_top_level(text, ","):
        if element.startswith("builtin.module(") and element.endswith(")"):
            passes.extend(parse_passes(element[len("builtin.module(") : -1]))
        else:
            passes.append(_parse_element(element))
    return passes


def _parse_element(element: str) -> Pass:
    name, brace, rest = element.partition("{")
    name = name.strip()
    if name in registry.PASSES:
        if brace and not rest.endswith("}"):
            raise PassError(f"options of pass {name!r} must end with '}}': {element!r}")
        return registry.create(name, _parse_options(rest[:-1]) if brace else {})
    for inner in _nested_names(element):
        if inner in registry.PASSES:
            raise PassError(
                f"pass {inner!r} runs on whole modules; "
                f"take it out of {element.partition('(')[0]!r}"
            )
    problem = upstream_error(element)
    if problem is not None:
        hint = closest(name, registry.PASSES) if "(" not in element else ""
        raise PassError(f"{element!r} is no pass of ours, and upstream says: {problem}{hint}")
    return UpstreamPass(element)


def _nested_names(element: str) -> Iterator[str]:
    _, paren, rest = element.partition("(")
    if paren and "{" not in element.partition("(")[0]:
        for inner in split_top_level(rest.rpartition(")")[0], ","):
            yield inner.partition("{")[0].strip()
            yield from _nested_names(inner)


def _parse_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in split_top_level(text, " "):
        key, _, value = part.partition("=")
        if key in options:
            raise PassError(f"option {key!r} is given twice in {{{text}}}")
        options[key] = value
    return options


def split_top_level(text: str, separator: str) -> list[str]:
    """Split outside brackets and quotes, dropping blanks; ``PassError`` if unbalanced."""
    parts: list[str] = []
    stack: list[str] = []
    quote, start = "", 0
    pairs = {"(": ")", "[": "]", "{": "}"}
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in pairs:
            stack.append(pairs[char])
        elif char in pairs.values():
            if not stack or stack.pop() != char:
                raise PassError(f"unbalanced {char!r} at column {position + 1} of {text!r}")
        elif char == separator and not stack:
            parts.append(text[start:position].strip())
            start = position + 1
    if stack or quote:
        raise PassError(f"missing {quote or stack[-1]!r} at the end of {text!r}")
    parts.append(text[start:].strip())
    if separator == "," and len(parts) > 1 and not all(parts):
        raise PassError(f"empty element in the pipeline {text!r}")
    return [part for part in parts if part]
