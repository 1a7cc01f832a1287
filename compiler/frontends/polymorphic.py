# SPDX-License-Identifier: Apache-2.0
"""Programs with dynamic shapes: parsed once, made concrete for each set of argument shapes.

In: a parsed source module, not prepared. Out: :class:`PolymorphicModule`, whose
:meth:`~PolymorphicModule.specialise` gives the ``HloModule`` for concrete shapes.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from mlir import ir as target_ir

from gristmill.compiler.frontends import refine, tokens
from gristmill.compiler.frontends.legalise import prepare
from gristmill.compiler.frontends.source import make_source_context
from gristmill.compiler.frontends.translate import (
    entry_name,
    functions_of,
    module_title,
    translate,
)
from gristmill.compiler.frontends.views import Value, arguments, blocks, first_block, regions, walk
from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.fold_constants import FoldConstantsPass
from gristmill.compiler.passes.resolve_shape_assertions import ResolveShapeAssertionsPass
from gristmill.errors import InputError, ParseError, UnsupportedError
from gristmill.runtime.types import ELEMENT_TYPES, ElementType

Array = np.ndarray[Any, Any]

#: What ``jax.export`` writes into its shape assertions: ``args[0].shape = (b, n),args[1].shape = (2*b + 1, n). ``
_SPECIFICATIONS = re.compile(r"polymorphic shapes specifications: (.*?\))\. ")
_SPECIFICATION = re.compile(r"\.shape = \((.*?)\)(?=,[^ ]|$)")


@dataclass(frozen=True)
class PolymorphicArgument:
    """One argument of a program with dynamic shapes.

    Attributes:
        name: the producer's name for it, or ``argN``.
        element: its element type.
        shape: its extents; ``None`` where unknown.
        bounds: the largest value of each extent; ``None`` where there is no limit.
        symbols: its extents as the producer spells them, ``2*b + 1`` for example; ``?`` where it does not.
        by_value: whether sizes are computed from its content, so that the program is compiled anew for
            each value.
    """

    name: str
    element: ElementType
    shape: tuple[int | None, ...]
    bounds: tuple[int | None, ...]
    symbols: tuple[str, ...]
    by_value: bool = False

    def __str__(self) -> str:
        return f"{self.element.name}[{', '.join(self.symbols)}]"

    def misfit(self, shape: Sequence[int]) -> str | None:
        """Why an array of ``shape`` cannot be given for it, or ``None`` when it can."""
        if len(shape) != len(self.shape):
            return f"rank {len(shape)} does not fit {self}, rank {len(self.shape)}"
        for axis, (size, want, bound) in enumerate(
            zip(shape, self.shape, self.bounds, strict=True)
        ):
            if want is not None and size != want:
                return f"shape {tuple(shape)} does not fit {self}: dimension {axis} is {size}, not {want}"
            if size < 0 or (bound is not None and size > bound):
                most = "" if bound is None else f"; it is at most {bound}"
                return f"shape {tuple(shape)} does not fit {self}: dimension {axis} is {size}{most}"
        return None


class PolymorphicModule:
    """A program whose shapes are known only when it is called. Safe to use from several threads.

    Attributes:
        name: the program's name.
        inputs: its arguments.
    """

    def __init__(self, module: ir.Operation, file: str):
        """Copy ``module``, parsed and not prepared, into a context of its own; ``file`` is for messages."""
        self._file = file
        self._lock = threading.Lock()
        self._module = _in_own_context(module)
        with self._module.context, ir.Location.unknown():
            self.name = module_title(self._module, file)
            functions = functions_of(self._module)
            entry = functions[entry_name(functions, file)]
            _check_blocks(functions)
            kinds = [value.type for value in arguments(first_block(entry))]
            try:
                refine.flatten(self._module, entry)
            except ir.MLIRError as error:
                raise ParseError(
                    f"the module is not valid: {refine.diagnostic(error, file)}", location=file
                ) from None
            self.inputs = _inputs(self._module, entry, kinds)

    @property
    def is_static(self) -> bool:
        """Whether there is one specialisation only: every shape is known and no value matters."""
        return not any(item.by_value or None in item.shape for item in self.inputs)

    def specialise(
        self, shapes: Sequence[Sequence[int]], values: Mapping[int, Array] | None = None
    ) -> HloModule:
        """The program for concrete shapes.

        Args:
            shapes: the shape of every argument.
            values: the content, by index, of every argument that is ``by_value``.

        Raises ``InputError`` when they do not fit the program, ``UnsupportedError`` as other imports do.
        """
        values = values or {}
        self._check(shapes, values)
        with self._lock, self._module.context, ir.Location.unknown():
            try:
                return self._refined(self._module.clone().operation, shapes, values)
            except InputError:
                self._assert(shapes, values)
                raise

    def _refined(
        self, module: ir.Operation, shapes: Sequence[Sequence[int]], values: Mapping[int, Array]
    ) -> HloModule:
        module = refine.refine(module, shapes, values, self._file)
        prepare(module)
        return translate(module, self._file)

    def _assert(self, shapes: Sequence[Sequence[int]], values: Mapping[int, Array]) -> None:
        """Raise ``InputError`` for a shape assertion that fails: it says more than an operation that does not fit."""
        module = self._module.clone().operation
        refine.keep_assertions(module)
        assertions = self._refined(module, shapes, values)
        with assertions.context, target_ir.Location.unknown():
            FoldConstantsPass().run(assertions)
            ResolveShapeAssertionsPass().run(assertions)

    def _check(self, shapes: Sequence[Sequence[int]], values: Mapping[int, Array]) -> None:
        if len(shapes) != len(self.inputs):
            raise InputError(f"{len(shapes)} shapes given, {len(self.inputs)} expected ({self})")
        for index, (item, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            where = f"argument {index} ({item.name!r})"
            problem = item.misfit(shape)
            if problem is not None:
                raise InputError(f"{where}: {problem}")
            if item.by_value and index not in values:
                raise InputError(f"{where}: shapes depend on its value, which was not given")

    def __str__(self) -> str:
        return ", ".join(f"{item.name}: {item}" for item in self.inputs)


def load(module: ir.Operation, file: str) -> HloModule | PolymorphicModule:
    """Import a parsed module, which is changed: at once when its shapes are static."""
    with module.context, ir.Location.unknown():
        tokens.drop_entry_tokens(module)
        dynamic = refine.is_dynamic(module)
        if not dynamic:
            prepare(module)
    if not dynamic:
        return translate(module, file)
    program = PolymorphicModule(module, file)
    if not program.is_static:
        return program
    return program.specialise(
        [[size for size in item.shape if size is not None] for item in program.inputs]
    )


def _in_own_context(module: ir.Operation) -> ir.Operation:
    bytecode = io.BytesIO()
    module.write_bytecode(bytecode)
    with make_source_context(), ir.Location.unknown():
        return ir.Module.parse(bytecode.getvalue()).operation


def _check_blocks(functions: Mapping[str, ir.Operation]) -> None:
    for symbol, function in functions.items():
        if len(blocks(regions(function)[0])) != 1:
            raise UnsupportedError(f"@{symbol} has not exactly one block")


def _inputs(
    module: ir.Operation, entry: ir.Operation, kinds: Sequence[ir.Type]
) -> tuple[PolymorphicArgument, ...]:
    by_value = refine.shape_arguments(entry)
    parameters = arguments(first_block(entry))
    found = [
        _argument(index, parameter, kind, index in by_value)
        for index, (parameter, kind) in enumerate(zip(parameters, kinds, strict=True))
    ]
    return _with_symbols(found, _specifications(module))


def _argument(index: int, value: Value, kind: ir.Type, by_value: bool) -> PolymorphicArgument:
    if not isinstance(kind, ir.RankedTensorType):
        raise UnsupportedError(f"argument {index}: type {kind} is not supported yet")
    element = ELEMENT_TYPES.get(str(kind.element_type))
    if element is None:
        raise UnsupportedError(
            f"argument {index}: element type {kind.element_type} is not supported yet"
        )
    location = value.location
    name = str(location.name_str) if isinstance(location, ir.NameLoc) else f"arg{index}"
    unknown = ir.ShapedType.get_dynamic_size()
    shape = tuple(None if size == unknown else size for size in kind.shape)
    symbols = tuple("?" if size is None else str(size) for size in shape)
    return PolymorphicArgument(name, element, shape, refine.bounds(kind), symbols, by_value)


def _specifications(module: ir.Operation) -> list[tuple[str, ...]]:
    """The symbolic shapes that a shape assertion's message lists, in the arguments' order."""
    for op in walk(module):
        if op.name == "stablehlo.custom_call" and "error_message" in op.attributes:
            match = _SPECIFICATIONS.search(ir.StringAttr(op.attributes["error_message"]).value)
            if match is not None:
                texts: list[str] = _SPECIFICATION.findall(match.group(1))
                return [_split(text) for text in texts]
    return []


def _split(text: str) -> tuple[str, ...]:
    """Split ``b, max(n, 2),`` at the commas outside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return tuple(part.strip() for part in parts if part.strip())


def _with_symbols(
    found: list[PolymorphicArgument], specifications: list[tuple[str, ...]]
) -> tuple[PolymorphicArgument, ...]:
    """Give the arguments their symbols; only if all fit, since the message does not number them."""
    dynamic = [item for item in found if None in item.shape]
    pairs = list(zip(dynamic, specifications, strict=False))
    if len(dynamic) != len(specifications) or not all(_fits(*pair) for pair in pairs):
        return tuple(found)
    symbols = {id(item): symbols for item, symbols in pairs}
    return tuple(
        PolymorphicArgument(
            item.name,
            item.element,
            item.shape,
            item.bounds,
            symbols.get(id(item), item.symbols),
            item.by_value,
        )
        for item in found
    )


def _fits(item: PolymorphicArgument, symbols: tuple[str, ...]) -> bool:
    return len(symbols) == len(item.shape) and all(
        size is None or symbol == str(size)
        for symbol, size in zip(symbols, item.shape, strict=True)
    )
