# SPDX-License-Identifier: Apache-2.0
"""Compiled entry functions, run with one to three threads."""

from collections.abc import Sequence

import numpy as np
import program_kernels as hand
import program_support as support
import pytest

from gristmill.compiler.program.tree import Branch, Copy, Launch, Loop

_V = f"tensor<{hand.VECTOR}>"
_I = "tensor<i32>"


@pytest.fixture(scope="module")
def kernels() -> Sequence[bytes]:
    return hand.kernel_objects()


def _inputs(count: int) -> list[hand.Array]:
    rng = np.random.default_rng(count)
    return [rng.integers(-100, 100, hand.N, dtype=np.int32) for _ in range(count)]


def _fusion(kernel: str, count: int, operands: str) -> str:
    kinds = ", ".join([_V] * count)
    return f'"hlov.fusion"({operands}) {{calls = @{kernel}, kind = "loop"}} : ({kinds}) -> {_V}'


def _loop(trips: int, body: Sequence[str], result: str) -> str:
    """``trips`` runs of ``body`` on the vector ``%x``."""
    lines = "\n  ".join(body)
    return f"""
func.func @main(%x: {_V}) -> {_V} {{
  %zero = "hlo.constant"() {{value = dense<0> : {_I}}} : () -> {_I}
  %n = "hlo.constant"() {{value = dense<{trips}> : {_I}}} : () -> {_I}
  %w:3 = "hlov.while"(%zero, %n, %x) {{cond = @cond, body = @body}} : ({_I}, {_I}, {_V}) -> ({_I}, {_I}, {_V})
  return %w#2 : {_V}
}}
func.func private @cond(%i: {_I}, %n: {_I}, %x: {_V}) -> tensor<i1> {{
  %p = "hlov.fusion"(%i, %n) {{calls = @less, kind = "loop"}} : ({_I}, {_I}) -> tensor<i1>
  return %p : tensor<i1>
}}
func.func private @body(%i: {_I}, %n: {_I}, %x: {_V}) -> ({_I}, {_I}, {_V}) {{
  %j = "hlov.fusion"(%i) {{calls = @step, kind = "loop"}} : ({_I}) -> {_I}
  {lines}
  return %j, %n, {result} : {_I}, {_I}, {_V}
}}"""


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("seed", range(100, 120))
def test_random_programs(seed: int, kernels: Sequence[bytes]) -> None:
    case = support.random_case(seed, steps=4 + seed % 20)
    arguments = _inputs(case.inputs)
    wanted = case.compute(arguments)
    with support.Native(support.build(case.text), kernels) as native:
        for threads in (1, 2, 3):
            for donate in (False, True):
                for want, got in zip(wanted, native.run(arguments, threads, donate), strict=True):
                    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "chain",
    [
        ["mix_1_r1_t8p"],
        ["mix_1_r1_t8p", "mix_2_r1_t8s"],
        ["mix_2_r1_t8s", "mix_1_r1_t8p", "two_pp"],
        ["two_ps", "two_sp"],
        ["mix_2_r1_t8s"],
    ],
)
def test_barriers_under_stress(chain: list[str], kernels: Sequence[bytes]) -> None:
    """Thousands of barriers; every kernel reads what other threads wrote just before."""
    body = [f"%v{i} = {_fusion(k, 1, f'%v{i - 1}' if i else '%x')}" for i, k in enumerate(chain)]
    trips = 3400
    text = _loop(trips, body, f"%v{len(chain) - 1}")
    argument = _inputs(1)[0]
    want = argument
    for _ in range(trips):
        for kernel in chain:
            want = hand.KERNELS[kernel].compute([want])[0]
    with support.Native(support.build(text), kernels) as native:
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(native.run([argument], threads)[0], want)


def test_a_loop_that_does_not_run(kernels: Sequence[bytes]) -> None:
    text = _loop(0, [f"%v = {_fusion('mix_1_r1_t8p', 1, '%x')}"], "%v")
    argument = _inputs(1)[0]
    with support.Native(support.build(text), kernels) as native:
        for threads in (1, 2):
            np.testing.assert_array_equal(native.run([argument], threads)[0], argument)


@pytest.mark.parametrize("index", [-5, 0, 1, 2, 3, 100])
def test_case_clamps_to_the_last_branch(index: int, kernels: Sequence[bytes]) -> None:
    names = ["mix_1_r1_t8p", "mix_2_r1_t8s", "two_pp"]
    branches = "\n".join(
        f"func.func private @branch{i}(%x: {_V}) -> {_V} {{\n %y = {_fusion(n, 1, '%x')}\n return %y : {_V}\n}}"
        for i, n in enumerate(names)
    )
    text = f"""
func.func @main(%i: {_I}, %x: {_V}) -> {_V} {{
  %y = "hlov.case"(%i, %x) {{branches = [@branch0, @branch1, @branch2]}} : ({_I}, {_V}) -> {_V}
  return %y : {_V}
}}
{branches}"""
    x = _inputs(1)[0]
    want = hand.KERNELS[names[index if index in (0, 1) else 2]].compute([x])[0]
    with support.Native(support.build(text), kernels) as native:
        for threads in (1, 2):
            got = native.run([np.array(index, np.int32), x], threads)[0]
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("elements", [1, 65536, 100_001])
def test_copies_of_any_size(elements: int, kernels: Sequence[bytes]) -> None:
    """Outputs that are inputs; big ones are split over the threads of a parallel program."""
    kind = f"tensor<{elements}xi32>"
    text = f"""
func.func @main(%big: {kind}, %x: {_V}) -> ({kind}, {_V}) {{
  %y = {_fusion("mix_1_r1_t8p", 1, "%x")}
  return %big, %y : {kind}, {_V}
}}"""
    big = np.arange(elements, dtype=np.int32)
    with support.Native(support.build(text), kernels) as native:
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(native.run([big, _inputs(1)[0]], threads)[0], big)


def test_large_programs_are_not_optimised_but_right(kernels: Sequence[bytes]) -> None:
    count = 200
    body = "\n".join(
        f"%v{i} = {_fusion('mix_1_r1_t8p', 1, f'%v{i - 1}' if i else '%x')}" for i in range(count)
    )
    text = f"func.func @main(%x: {_V}) -> {_V} {{\n{body}\nreturn %v{count - 1} : {_V}\n}}"
    argument = _inputs(1)[0]
    want = argument
    for _ in range(count):
        want = hand.KERNELS["mix_1_r1_t8p"].compute([want])[0]
    with support.Native(support.build(text), kernels) as native:
        assert "optnone" in str(native.entry)
        np.testing.assert_array_equal(native.run([argument], 2)[0], want)


def _barriers(text: str) -> list[str]:
    """The tree with barriers, one line a node: ``|`` marks a barrier."""
    lines: list[str] = []

    def show(nodes: Sequence[Launch | Copy | Loop | Branch], indent: str) -> None:
        for node in nodes:
            if isinstance(node, Launch):
                marks = "".join("|" if barrier else "." for barrier in node.barriers)
                lines.append(f"{indent}{marks}{node.spec.name}")
            elif isinstance(node, Copy):
                lines.append(f"{indent}{'|' if node.barrier else '.'}copy")
            elif isinstance(node, Loop):
                lines.append(f"{indent}loop")
                show(node.cond, f"{indent} ")
                lines.append(f"{indent} {'|' if node.barrier else '.'}test")
                show(node.body, f"{indent} ")

    show(support.tree(support.build(text)), "")
    return lines


def test_one_barrier_per_dependence_in_a_loop() -> None:
    """The counter's kernels are serial; only the predicate and the vector cross threads."""
    text = _loop(9, [f"%v = {_fusion('mix_1_r1_t8p', 1, '%x')}"], "%v")
    # The copy out of %v and the kernel alternate between two buffers, so each waits for the other.
    assert _barriers(text) == [
        ".copy",
        ".copy",
        "loop",
        " .less",
        " |test",
        " .step",
        " .mix_1_r1_t8p",
        " |copy",
    ]


def test_serial_loops_have_no_barrier() -> None:
    text = _loop(9, [f"%v = {_fusion('mix_2_r1_t8s', 1, '%x')}"], "%v")
    assert not any("|" in line for line in _barriers(text))


def test_copy_phases_are_left_out_in_place() -> None:
    """The update of a temporary runs one phase; that of an input, which may not be written, two."""
    update = f'"hlov.fusion"({{}}, %x, %i) {{{{calls = @update, kind = "update"}}}} : ({_V}, {_V}, {_I}) -> {_V}'
    text = f"""
func.func @main(%x: {_V}, %i: {_I}) -> ({_V}, {_V}) {{
  %0 = {update.format("%x")}
  %1 = {_fusion("mix_1_r1_t8p", 1, "%x")}
  %2 = {update.format("%1")}
  return %0, %2 : {_V}, {_V}
}}"""
    text = text.replace("%x, %x, %i", "%x, %y, %i").replace("(%x: ", f"(%y: {_V}, %x: ")
    assert _barriers(text) == [".mix_1_r1_t8p", "|update", ".|update"]
