# SPDX-License-Identifier: Apache-2.0
"""Random programs, and two ways to run what was built from them.

A program is made of the kernels of ``program_kernels``. :class:`Case` holds its text and a function that
computes it directly with numpy; :func:`interpret` runs an rt program in Python on a memory full of garbage, and
:class:`Native` runs its compiled entry function.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from mlir import ir
from program_kernels import (
    INDEX,
    KERNELS,
    MIXES,
    PRED,
    SPECS,
    VECTOR,
    Array,
    Compute,
    Kernel,
    N,
)

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.native import to_object
from gristmill.compiler.module import HloModule, make_context
from gristmill.compiler.program import RtProgram, build_program, lower_entry
from gristmill.compiler.program.sync import place_barriers
from gristmill.compiler.program.tree import Branch, Buffer, Copy, Launch, Loop, Node, read_module
from gristmill.runtime.code import link
from gristmill.runtime.types import ArrayType


@dataclass
class Case:
    """A program: its text, and the function that computes it."""

    text: str
    compute: Compute
    inputs: int


@dataclass
class _Generator:
    """Writes random programs; every computation is text and a closure at once."""

    random: random.Random
    functions: list[str] = field(default_factory=list)
    count: int = 0

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def block(
        self, parameters: list[tuple[str, ArrayType]], steps: int, depth: int
    ) -> tuple[list[str], Callable[[dict[str, Array]], None], list[str]]:
        """Random steps; returns lines, what they compute, and the vectors in scope."""
        vectors = [name for name, kind in parameters if kind == VECTOR]
        lines: list[str] = []
        actions: list[Callable[[dict[str, Array]], None]] = []
        for _ in range(steps):
            choice = self.random.random()
            if choice < 0.12 and depth:
                made, action = self.loop(vectors, depth, lines)
            elif choice < 0.24 and depth:
                made, action = self.branch(vectors, depth, lines)
            elif choice < 0.3:
                made, action = self.constant(lines)
            elif choice < 0.38:
                made, action = self.reshape(vectors, lines)
            elif choice < 0.5:
                made, action = self.update(vectors, lines)
            else:
                made, action = self.mix(vectors, lines)
            vectors += made
            actions.append(action)

        def run(env: dict[str, Array]) -> None:
            for action in actions:
                action(env)

        return lines, run, vectors

    def pick(self, vectors: list[str]) -> str:
        """A value, recent ones more often."""
        return vectors[-1 - min(int(self.random.expovariate(0.35)), len(vectors) - 1)]

    def apply(self, kernel: Kernel, operands: list[str], lines: list[str]):
        name = self.fresh("%v")
        count = len(kernel.spec.results)
        arguments = ", ".join(f"tensor<{k}>" for k in kernel.spec.arguments)
        results = ", ".join(f"tensor<{k}>" for k in kernel.spec.results)
        head = f"{name}:{count}" if count > 1 else name
        lines.append(
            f'{head} = "hlov.fusion"({", ".join(operands)}) {{calls = @{kernel.spec.name}, '
            f'kind = "loop"}} : ({arguments}) -> ({results})'
        )
        names = [f"{name}#{i}" for i in range(count)] if count > 1 else [name]

        def action(env: dict[str, Array]) -> None:
            env.update(zip(names, kernel.compute([env[o] for o in operands]), strict=True))

        return names, action

    def mix(self, vectors: list[str], lines: list[str]):
        kernel = self.random.choice(MIXES)
        return self.apply(kernel, [self.pick(vectors) for _ in kernel.spec.arguments], lines)

    def update(self, vectors: list[str], lines: list[str]):
        index, first = self.apply(KERNELS["pick"], [self.pick(vectors)], lines)
        operands = [self.pick(vectors), self.pick(vectors), index[0]]
        names, second = self.apply(KERNELS["update"], operands, lines)

        def action(env: dict[str, Array]) -> None:
            first(env)
            second(env)

        return names, action

    def constant(self, lines: list[str], kind: ArrayType = VECTOR, number: int | None = None):
        name = self.fresh("%c")
        if number is None:
            number = self.random.randrange(4)
        lines.append(
            f'{name} = "hlo.constant"() {{value = dense<{number}> : tensor<{kind}>}} : () -> tensor<{kind}>'
        )
        value = np.full(kind.shape, number, np.int32)
        return [name], lambda env: env.update({name: value})

    def reshape(self, vectors: list[str], lines: list[str]):
        source, middle, name = self.pick(vectors), self.fresh("%r"), self.fresh("%r")
        square = f"tensor<8x{N // 8}xi32>"
        lines.append(f'{middle} = "hlo.reshape"({source}) : (tensor<{VECTOR}>) -> {square}')
        lines.append(f'{name} = "hlo.reshape"({middle}) : ({square}) -> tensor<{VECTOR}>')
        return [name], lambda env: env.update({name: env[source]})

    def function(
        self,
        name: str,
        parameters: list[tuple[str, ArrayType]],
        lines: list[str],
        results: list[str],
        kinds: list[ArrayType],
    ) -> None:
        heads = ", ".join(f"{p}: tensor<{k}>" for p, k in parameters)
        types = ", ".join(f"tensor<{k}>" for k in kinds)
        body = "\n  ".join(lines)
        self.functions.append(
            f"func.func private @{name}({heads}) -> ({types}) {{\n  {body}\n"
            f"  return {', '.join(results)} : {types}\n}}"
        )

    def loop(self, vectors: list[str], depth: int, lines: list[str]):
        """A counted loop whose other variables change, stay, swap or become constants."""
        start, set_start = self.constant(lines, INDEX, 0)
        limit, set_limit = self.constant(lines, INDEX, self.random.randrange(4))
        carried = [self.pick(vectors) for _ in range(self.random.randrange(1, 5))]
        kinds = [INDEX, INDEX, *([VECTOR] * len(carried))]
        cond, body, name = self.fresh("cond"), self.fresh("body"), self.fresh("%w")
        parameters = [(self.fresh("%p"), kind) for kind in kinds]
        names = [p for p, _ in parameters]
        cond_lines: list[str] = []
        if self.random.random() < 0.3:
            self.mix(names[2:], cond_lines)
        decided, decide = self.apply(KERNELS["less"], names[:2], cond_lines)
        self.function(cond, parameters, cond_lines, decided, [PRED])
        steps = self.random.randrange(1, 6)
        body_lines, run, scope = self.block(parameters, steps, depth - 1)
        stepped, advance = self.apply(KERNELS["step"], names[:1], body_lines)
        results = [stepped[0], names[1]]
        for own in names[2:]:
            choice = self.random.random()
            results.append(
                own
                if choice < 0.2
                else self.random.choice(names[2:])
                if choice < 0.4
                else self.pick(scope)
            )
        self.function(body, parameters, body_lines, results, kinds)
        types = ", ".join(f"tensor<{k}>" for k in kinds)
        operands = [start[0], limit[0], *carried]
        lines.append(
            f'{name}:{len(kinds)} = "hlov.while"({", ".join(operands)}) '
            f"{{cond = @{cond}, body = @{body}}} : ({types}) -> ({types})"
        )

        def action(env: dict[str, Array]) -> None:
            set_start(env)
            set_limit(env)
            values = [env[o] for o in operands]
            while True:
                inner = dict(zip(names, values, strict=True))
                decide(inner)
                if not inner[decided[0]]:
                    break
                run(inner)
                advance(inner)
                values = [inner[r] for r in results]
            env.update({f"{name}#{i}": v for i, v in enumerate(values)})

        return [f"{name}#{i}" for i in range(2, len(kinds))], action

    def branch(self, vectors: list[str], depth: int, lines: list[str]):
        """An if or a case, whose branches may return their parameters."""
        boolean = self.random.random() < 0.5
        kernel = KERNELS["odd" if boolean else "pick"]
        chosen, choose = self.apply(kernel, [self.pick(vectors)], lines)
        operands = [self.pick(vectors) for _ in range(self.random.randrange(1, 4))]
        count = self.random.randrange(1, 3)
        parts: list[tuple[list[str], Callable[[dict[str, Array]], None], list[str]]] = []
        names: list[str] = []
        for _ in range(2 if boolean else self.random.randrange(1, 4)):
            parameters = [(self.fresh("%p"), VECTOR) for _ in operands]
            body_lines, run, scope = self.block(parameters, self.random.randrange(4), depth - 1)
            results = [self.pick(scope) for _ in range(count)]
            names.append(self.fresh("branch"))
            self.function(names[-1], parameters, body_lines, results, [VECTOR] * count)
            parts.append(([p for p, _ in parameters], run, results))
        name = self.fresh("%b")
        types = ", ".join(
            [f"tensor<{kernel.spec.results[0]}>", *[f"tensor<{VECTOR}>"] * len(operands)]
        )
        kinds = ", ".join([f"tensor<{VECTOR}>"] * count)
        symbols = ", ".join(f"@{n}" for n in names)
        lines.append(
            f'{name}:{count} = "hlov.{"if" if boolean else "case"}"({", ".join([chosen[0], *operands])}) '
            f"{{branches = [{symbols}]}} : ({types}) -> ({kinds})"
        )

        def action(env: dict[str, Array]) -> None:
            choose(env)
            number = int(env[chosen[0]])
            number = 1 - number if boolean else number if number < len(parts) else len(parts) - 1
            parameters, run, results = parts[number]
            inner = dict(zip(parameters, [env[o] for o in operands], strict=True))
            run(inner)
            env.update({f"{name}#{i}": inner[r] for i, r in enumerate(results)})

        return [f"{name}#{i}" for i in range(count)], action


def random_case(seed: int, steps: int = 10, depth: int = 2) -> Case:
    """A random program of up to three inputs, some donated, and up to four outputs."""
    generator = _Generator(random.Random(seed))
    chance = generator.random
    inputs = chance.randrange(1, 4)
    parameters = [(f"%in{i}", VECTOR) for i in range(inputs)]
    lines, run, scope = generator.block(parameters, steps, depth)
    results = [generator.pick(scope) for _ in range(chance.randrange(1, 5))]
    targets = chance.sample(range(len(results)), min(inputs, len(results)))
    heads: list[str] = []
    for number, (name, kind) in enumerate(parameters):
        donated = ""
        if number < len(targets) and chance.random() < 0.5:
            donated = f" {{gristmill.donated, gristmill.alias = {targets[number]} : i64}}"
        heads.append(f"{name}: tensor<{kind}>{donated}")
    types = ", ".join([f"tensor<{VECTOR}>"] * len(results))
    body = "\n  ".join(lines)
    text = f"func.func @main({', '.join(heads)}) -> ({types}) {{\n  {body}\n"
    text += f"  return {', '.join(results)} : {types}\n}}\n" + "\n".join(generator.functions)

    def compute(arguments: Sequence[Array]) -> list[Array]:
        env = {name: value for (name, _), value in zip(parameters, arguments, strict=True)}
        run(env)
        return [env[r] for r in results]

    return Case(text, compute, inputs)


def build(text: str) -> RtProgram:
    """The program of a module's text."""
    context = make_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        return build_program(HloModule(module), SPECS, host_target())


def memories(
    program: RtProgram, arguments: Sequence[Array], donate: bool
) -> tuple[list[Array], list[Array]]:
    """Input and output buffers; donated inputs share their output's memory when ``donate``."""
    inputs = [a.copy() for a in arguments]
    outputs = [np.full(s.type.shape, -77, s.type.element.dtype) for s in program.outputs]
    for number, signature in enumerate(program.inputs):
        if donate and signature.alias is not None:
            outputs[signature.alias] = inputs[number]
    return inputs, outputs


def tree(program: RtProgram) -> list[Node]:
    """The program read back, with barriers placed."""
    aliases = {i: s.alias for i, s in enumerate(program.inputs) if s.alias is not None}
    with program.module.context:
        nodes = read_module(program.module, SPECS, aliases)
    place_barriers(nodes)
    return nodes


def interpret(program: RtProgram, arguments: Sequence[Array], donate: bool) -> list[Array]:
    """Run the rt module in Python; garbage in the arena, results spoilt before they are written."""
    nodes = tree(program)
    inputs, outputs = memories(program, arguments, donate)
    constants = [np.ascontiguousarray(c.data) for c in program.constants]
    noise = np.random.default_rng(7)
    arena = noise.integers(0, 256, max(program.arena_bytes, 1), dtype=np.uint8)
    roots = {"input": inputs, "output": outputs, "constant": constants, "arena": [arena]}

    def raw(buffer: Buffer) -> Array:
        memory = roots[buffer.root][buffer.index].reshape(-1).view(np.uint8)
        return memory[buffer.offset : buffer.offset + buffer.nbytes]

    def view(buffer: Buffer, kind: ArrayType) -> Array:
        return raw(buffer).view(kind.element.dtype).reshape(kind.shape)

    def launch(node: Launch) -> None:
        spec = node.spec
        values = [view(b, k).copy() for b, k in zip(node.arguments, spec.arguments, strict=True)]
        for buffer in (*node.results, *([node.workspace] if node.workspace else [])):
            raw(buffer)[:] = noise.integers(0, 256, buffer.nbytes, dtype=np.uint8)
        for position, (buffer, kind) in enumerate(zip(node.arguments, spec.arguments, strict=True)):
            if all(
                not buffer.overlaps(result) or (position, r) not in spec.inplace
                for r, result in enumerate(node.results)
            ):
                assert np.array_equal(view(buffer, kind), values[position])
        results = KERNELS[spec.name].compute(values)
        for buffer, kind, result in zip(node.results, spec.results, results, strict=True):
            view(buffer, kind)[...] = result

    def run(sequence: Sequence[Node]) -> None:
        for node in sequence:
            if isinstance(node, Launch):
                launch(node)
            elif isinstance(node, Copy):
                raw(node.destination)[:] = raw(node.source).copy()
            elif isinstance(node, Loop):
                run(node.cond)
                while raw(node.predicate)[0]:
                    run(node.body)
                    run(node.cond)
            else:
                branch(node)

    def branch(node: Branch) -> None:
        if node.boolean:
            run(node.branches[0 if raw(node.selector)[0] else 1])
            return
        index = int(raw(node.selector).view(np.int32)[0])
        last = len(node.branches) - 1
        run(node.branches[index if 0 <= index < last else last])

    run(nodes)
    return outputs


def aligned(nbytes: int) -> Array:
    """Fresh bytes at a 64-byte boundary, filled with garbage."""
    memory = np.full(nbytes + 64, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]


def aligned_copy(array: Array) -> Array:
    """A copy of ``array`` at a 64-byte boundary."""
    result = aligned(max(array.nbytes, 1))[: array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


class Native:
    """A program's linked entry function; a context manager that unloads it."""

    def __init__(self, program: RtProgram, objects: Sequence[bytes]):
        self.program = program
        self.entry = lower_entry(program, SPECS)
        self.code = link([to_object(self.entry, host_target()), *objects])
        pointer = ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer, ctypes.c_int64)
        self.function = kind(self.code.address("gristmill_main"))
        self.constants = [aligned_copy(np.ascontiguousarray(c.data)) for c in program.constants]

    def __enter__(self) -> Native:
        return self

    def __exit__(self, *exception: object) -> None:
        self.code.close()

    def run(self, arguments: Sequence[Array], threads: int, donate: bool = False) -> list[Array]:
        """Fresh outputs of one execution with ``threads`` threads."""
        program = self.program
        inputs, outputs = memories(program, [aligned_copy(a) for a in arguments], donate)
        arena = aligned(program.arena_bytes + threads * program.scratch_bytes + 64)
        arrays = [
            (ctypes.c_void_p * max(len(g), 1))(*[a.ctypes.data for a in g])
            for g in (inputs, outputs, self.constants)
        ]
        self.function(*[ctypes.addressof(a) for a in arrays], arena.ctypes.data, threads)
        return outputs
