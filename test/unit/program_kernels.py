# SPDX-License-Identifier: Apache-2.0
"""Hand-made kernels over vectors of ``N`` i32 and over scalars, for tests of whole programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mlir import ir

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.native import to_object
from gristmill.compiler.emitters.kernel import KernelSpec, Phase
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.module import make_context
from gristmill.runtime.types import ArrayType

N = 64
VECTOR = ArrayType.parse(f"{N}xi32")
INDEX = ArrayType.parse("i32")
PRED = ArrayType.parse("i1")

Array = np.ndarray
Compute = Callable[[Sequence[Array]], list[Array]]


@dataclass(frozen=True)
class Kernel:
    """A kernel in three forms: its interface, MLIR text, and numpy function."""

    spec: KernelSpec
    text: str
    compute: Compute


def _loop(body: str, tasks: int) -> str:
    """``body`` for each element ``%i`` of this call's tasks, of ``N / tasks`` elements each."""
    return f"""
  %c1 = arith.constant 1 : index
  %per = arith.constant {N // tasks} : index
  %n = arith.constant {N} : index
  %lo = arith.muli %begin, %per : index
  %hi = arith.muli %end, %per : index
  scf.for %i = %lo to %hi step %c1 {{
{body}
  }}
  return"""


def _function(name: str, buffers: Sequence[str], body: str, workspace: int = 64) -> str:
    arguments = ", ".join(f"%b{i}: memref<{kind}>" for i, kind in enumerate(buffers))
    return f"""
func.func @{name}({arguments}, %ws: memref<{workspace}xi8>, %scratch: memref<64xi8>,
                  %begin: index, %end: index) {{
{body}
}}"""


def _mixed(shifts: Sequence[int], result: int) -> str:
    """Code for: result[i] = sum over arguments of (argument[(i + shift) % N] * (2 position + 3)) + result."""
    lines = [f"    %a{result}_0 = arith.constant {result + 1} : i32"]
    for position, shift in enumerate(shifts):
        tag = f"{result}_{position}"
        lines += [
            f"    %s{tag} = arith.constant {shift} : index",
            f"    %t{tag} = arith.addi %i, %s{tag} : index",
            f"    %j{tag} = arith.remui %t{tag}, %n : index",
            f"    %v{tag} = memref.load %b{position}[%j{tag}] : memref<{N}xi32>",
            f"    %f{tag} = arith.constant {2 * position + 3 + result} : i32",
            f"    %p{tag} = arith.muli %v{tag}, %f{tag} : i32",
            f"    %a{result}_{position + 1} = arith.addi %a{tag}, %p{tag} : i32",
        ]
    return "\n".join(lines)


def mix(shifts: Sequence[int], results: int = 1, tasks: int = 8, parallel: bool = True) -> Kernel:
    """A kernel of ``len(shifts)`` vectors to ``results`` vectors; in place where nothing is shifted."""
    count = len(shifts)
    name = f"mix_{'_'.join(map(str, shifts))}_r{results}_t{tasks}{'p' if parallel else 's'}"
    body = "\n".join(_mixed(shifts, result) for result in range(results))
    for result in range(results):
        body += f"\n    memref.store %a{result}_{count}, %b{count + result}[%i] : memref<{N}xi32>"
    in_place = tuple((a, r) for a in range(count) if not any(shifts) for r in range(results))
    spec = KernelSpec(
        name,
        (Phase(name, tasks, parallel),),
        (VECTOR,) * count,
        (VECTOR,) * results,
        inplace=in_place,
    )

    def compute(arguments: Sequence[Array]) -> list[Array]:
        return [
            sum(
                (
                    np.roll(a, -s) * np.int32(2 * p + 3 + r)
                    for p, (a, s) in _numbered(arguments, shifts)
                ),
                start=np.full(N, r + 1, np.int32),
            )
            for r in range(results)
        ]

    return Kernel(
        spec, _function(name, [f"{N}xi32"] * (count + results), _loop(body, tasks)), compute
    )


def _numbered(arguments: Sequence[Array], shifts: Sequence[int]):
    return enumerate(zip(arguments, shifts, strict=True))


def two_phases(first_parallel: bool, second_parallel: bool) -> Kernel:
    """workspace = 5 argument + 1; result[i] = workspace[(i + 9) % N] ^ argument[i]."""
    name = f"two_{'p' if first_parallel else 's'}{'p' if second_parallel else 's'}"
    view = f"""    %z = arith.constant 0 : index
    %w = memref.view %ws[%z][] : memref<{4 * N}xi8> to memref<{N}xi32>"""
    first = f"""{view}
    %v = memref.load %b0[%i] : memref<{N}xi32>
    %five = arith.constant 5 : i32
    %one = arith.constant 1 : i32
    %p = arith.muli %v, %five : i32
    %r = arith.addi %p, %one : i32
    memref.store %r, %w[%i] : memref<{N}xi32>"""
    second = f"""{view}
    %nine = arith.constant 9 : index
    %s = arith.addi %i, %nine : index
    %j = arith.remui %s, %n : index
    %v = memref.load %w[%j] : memref<{N}xi32>
    %a = memref.load %b0[%i] : memref<{N}xi32>
    %r = arith.xori %v, %a : i32
    memref.store %r, %b1[%i] : memref<{N}xi32>"""
    buffers = [f"{N}xi32"] * 2
    text = _function(f"{name}_a", buffers, _loop(first, 8), 4 * N)
    text += _function(f"{name}_b", buffers, _loop(second, 4), 4 * N)
    phases = (Phase(f"{name}_a", 8, first_parallel), Phase(f"{name}_b", 4, second_parallel))
    spec = KernelSpec(name, phases, (VECTOR,), (VECTOR,), workspace_bytes=4 * N, scratch_bytes=64)
    return Kernel(spec, text, lambda a: [np.roll(a[0] * np.int32(5) + np.int32(1), -9) ^ a[0]])


def update() -> Kernel:
    """(x, v, i) → x with x[i mod N] = sum of v's first two elements; in place, only the second phase runs."""
    copy = f"""    %from = memref.extract_aligned_pointer_as_index %b0 : memref<{N}xi32> -> index
    %to = memref.extract_aligned_pointer_as_index %b3 : memref<{N}xi32> -> index
    %apart = arith.cmpi ne, %from, %to : index
    scf.if %apart {{
      %e = memref.load %b0[%i] : memref<{N}xi32>
      memref.store %e, %b3[%i] : memref<{N}xi32>
    }}"""
    write = f"""
  %n = arith.constant {N} : index
  %z = arith.constant 0 : index
  %one = arith.constant 1 : index
  %v0 = memref.load %b1[%z] : memref<{N}xi32>
  %v1 = memref.load %b1[%one] : memref<{N}xi32>
  %v = arith.addi %v0, %v1 : i32
  %k = memref.load %b2[] : memref<i32>
  %k1 = arith.index_castui %k : i32 to index
  %j = arith.remui %k1, %n : index
  memref.store %v, %b3[%j] : memref<{N}xi32>
  return"""

    def compute(arguments: Sequence[Array]) -> list[Array]:
        result = arguments[0].copy()
        result[int(arguments[2].astype(np.uint32)) % N] = arguments[1][0] + arguments[1][1]
        return [result]

    spec = KernelSpec(
        "update",
        (Phase("update_copy", 8, True, ((0, 0),)), Phase("update_write")),
        (VECTOR, VECTOR, INDEX),
        (VECTOR,),
        inplace=((0, 0),),
        kind="update",
    )
    buffers = [f"{N}xi32", f"{N}xi32", "i32", f"{N}xi32"]
    text = _function("update_copy", buffers, _loop(copy, 8))
    return Kernel(spec, text + _function("update_write", buffers, write), compute)


def scalars() -> list[Kernel]:
    """less: (i32, i32) → i1; step: i32 → i32 + 1; pick: vector → low two bits of its sum's start; odd: → i1."""
    less = """
  %a = memref.load %b0[] : memref<i32>
  %b = memref.load %b1[] : memref<i32>
  %p = arith.cmpi slt, %a, %b : i32
  %r = arith.extui %p : i1 to i8
  memref.store %r, %b2[] : memref<i8>
  return"""
    step = """
  %a = memref.load %b0[] : memref<i32>
  %one = arith.constant 1 : i32
  %r = arith.addi %a, %one : i32
  memref.store %r, %b1[] : memref<i32>
  return"""
    pick = f"""
  %z = arith.constant 3 : index
  %a = memref.load %b0[%z] : memref<{N}xi32>
  %m = arith.constant 3 : i32
  %r = arith.andi %a, %m : i32
  memref.store %r, %b1[] : memref<i32>
  return"""
    odd = f"""
  %z = arith.constant 5 : index
  %a = memref.load %b0[%z] : memref<{N}xi32>
  %m = arith.constant 2 : i32
  %x = arith.andi %a, %m : i32
  %c = arith.constant 0 : i32
  %p = arith.cmpi ne, %x, %c : i32
  %r = arith.extui %p : i1 to i8
  memref.store %r, %b1[] : memref<i8>
  return"""
    rows: list[
        tuple[str, tuple[ArrayType, ...], ArrayType, tuple[tuple[int, int], ...], str, Compute]
    ] = [
        ("less", (INDEX, INDEX), PRED, (), less, lambda a: [np.array(a[0] < a[1])]),
        ("step", (INDEX,), INDEX, ((0, 0),), step, lambda a: [np.array(a[0] + np.int32(1))]),
        ("pick", (VECTOR,), INDEX, (), pick, lambda a: [np.array(a[0][3] & np.int32(3))]),
        ("odd", (VECTOR,), PRED, (), odd, lambda a: [np.array((a[0][5] & 2) != 0)]),
    ]
    kernels: list[Kernel] = []
    for name, arguments, result, in_place, body, compute in rows:
        spec = KernelSpec(name, (Phase(name),), arguments, (result,), inplace=in_place)
        kinds = [str(k).replace("i1", "i8") for k in (*arguments, result)]
        kernels.append(Kernel(spec, _function(name, kinds, body), compute))
    return kernels


MIXES = [
    *(mix(s) for s in [(0,), (1,), (0, 0), (0, 5), (7, 0, 3), (0, 0, 0)]),
    *(mix(s, parallel=False) for s in [(0,), (2,), (0, 0), (0, 3)]),
    *(mix(s, results=2) for s in [(0,), (0, 1), (0, 0)]),
    mix((11, 0), tasks=2),
    two_phases(True, True),
    two_phases(False, True),
    two_phases(True, False),
    two_phases(False, False),
]
KERNELS = {k.spec.name: k for k in [*MIXES, update(), *scalars()]}
SPECS = {name: kernel.spec for name, kernel in KERNELS.items()}


def kernel_objects() -> list[bytes]:
    """All hand-made kernels, compiled."""
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse("\n".join(k.text for k in KERNELS.values()))
        lower_to_llvm_dialect(module)
        return [to_object(module, host_target())]
