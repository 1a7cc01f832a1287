# SPDX-License-Identifier: Apache-2.0
"""Building rt programs: random programs run in Python on garbage memory, errors, signatures, schedules."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import program_kernels as hand
import program_support as support
import pytest
from mlir import ir

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.module import HloModule, make_context
from gristmill.compiler.program import build_program, lower_entry
from gristmill.compiler.program.assign import assign
from gristmill.compiler.program.check import check_plan
from gristmill.compiler.program.importer import import_module
from gristmill.compiler.program.plan import LaunchStep, Plan
from gristmill.compiler.program.schedule import schedule
from gristmill.errors import LoweringError, VerifyError

_V = f"tensor<{hand.VECTOR}>"


def _inputs(count: int) -> list[hand.Array]:
    rng = np.random.default_rng(count)
    return [rng.integers(-100, 100, hand.N, dtype=np.int32) for _ in range(count)]


def _plan(text: str) -> Plan:
    with make_context(), ir.Location.unknown():
        plan, _ = import_module(HloModule(ir.Module.parse(text)), hand.SPECS)
        schedule(plan)
        assign(plan)
        return plan


def _fusion(kernel: str, count: int, operands: str) -> str:
    kinds = ", ".join([_V] * count)
    return f'"hlov.fusion"({operands}) {{calls = @{kernel}, kind = "loop"}} : ({kinds}) -> {_V}'


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    case = support.random_case(seed, steps=4 + seed % 20)
    arguments = _inputs(case.inputs)
    program = support.build(case.text)
    wanted = case.compute(arguments)
    for donate in (False, True):
        for want, got in zip(wanted, support.interpret(program, arguments, donate), strict=True):
            np.testing.assert_array_equal(got, want)


def test_output_is_deterministic() -> None:
    text = support.random_case(5, steps=20).text
    assert str(support.build(text).module) == str(support.build(text).module)


def test_the_checker_notices_a_clobbered_value() -> None:
    plan = _plan(
        f"""func.func @main(%x: {_V}) -> {_V} {{
          %0 = {_fusion("mix_1_r1_t8p", 1, "%x")}
          %1 = {_fusion("mix_1_r1_t8p", 1, "%0")}
          %2 = {_fusion("mix_0_5_r1_t8p", 2, "%0, %1")}
          return %2 : {_V}
        }}"""
    )
    check_plan(plan)
    first, second, _ = (step for step in plan.main.steps if isinstance(step, LaunchStep))
    second.results[0].place = first.results[0].place
    with pytest.raises(AssertionError):
        check_plan(plan)


def test_an_update_waits_for_the_other_readers() -> None:
    plan = _plan(
        f"""func.func @main(%x: {_V}) -> ({_V}, {_V}) {{
          %0 = {_fusion("mix_1_r1_t8p", 1, "%x")}
          %i = "hlov.fusion"(%x) {{calls = @pick, kind = "loop"}} : ({_V}) -> tensor<i32>
          %1 = "hlov.fusion"(%0, %x, %i) {{calls = @update, kind = "update"}}
            : ({_V}, {_V}, tensor<i32>) -> {_V}
          %2 = {_fusion("mix_1_r1_t8p", 1, "%0")}
          return %1, %2 : {_V}, {_V}
        }}"""
    )
    names = [step.kernel.name for step in plan.main.steps if isinstance(step, LaunchStep)]
    assert names == ["mix_1_r1_t8p", "pick", "mix_1_r1_t8p", "update"]
    update = plan.main.steps[-1]
    assert isinstance(update, LaunchStep)
    assert update.operands[0].at() == update.results[0].at()


def test_the_schedule_saves_memory() -> None:
    # Eight big values that are each reduced to an index: in program order all would be alive at once.
    lines = [f"%v{i} = {_fusion('mix_1_r1_t8p', 1, '%x')}" for i in range(8)]
    lines += [
        f'%p{i} = "hlov.fusion"(%v{i}) {{calls = @pick, kind = "loop"}} : ({_V}) -> tensor<i32>'
        for i in range(8)
    ]
    results = ", ".join(f"%p{i}" for i in range(8))
    kinds = ", ".join(["tensor<i32>"] * 8)
    body = "\n".join(lines)
    plan = _plan(
        f"func.func @main(%x: {_V}) -> ({kinds}) {{\n{body}\nreturn {results} : {kinds}\n}}"
    )
    assert plan.arena_bytes == hand.VECTOR.nbytes


def test_signature_and_constants() -> None:
    program = support.build(
        f"""func.func @main(%x: {_V} {{gristmill.name = "weights"}},
                            %y: {_V} {{gristmill.donated, gristmill.alias = 1 : i64}})
            -> ({_V} {{gristmill.name = "loss"}}, {_V}) {{
          %c = "hlo.constant"() {{value = dense<3> : {_V}}} : () -> {_V}
          %d = "hlo.constant"() {{value = dense<3> : {_V}}} : () -> {_V}
          %0 = {_fusion("mix_0_5_r1_t8p", 2, "%c, %d")}
          %1 = {_fusion("mix_0_5_r1_t8p", 2, "%x, %y")}
          return %0, %1 : {_V}, {_V}
        }}"""
    )
    assert [s.name for s in program.inputs] == ["weights", "input1"]
    assert [(s.donated, s.alias) for s in program.inputs] == [(False, None), (True, 1)]
    assert [(s.name, s.alias) for s in program.outputs] == [("loss", None), ("output1", 1)]
    assert len(program.constants) == 1
    np.testing.assert_array_equal(program.constants[0].data, np.full(hand.N, 3, np.int32))
    assert program.parallel
    assert program.scratch_bytes == 0


def test_parallel_needs_threads_and_a_parallel_phase() -> None:
    text = f"func.func @main(%x: {_V}) -> {_V} {{\n%0 = {_fusion('mix_1_r1_t8p', 1, '%x')}\nreturn %0 : {_V}\n}}"
    with make_context(), ir.Location.unknown():
        module = HloModule(ir.Module.parse(text))
        one = dataclasses.replace(host_target(), max_threads=1)
        assert not build_program(module, hand.SPECS, one).parallel
        assert build_program(module, hand.SPECS, dataclasses.replace(one, max_threads=2)).parallel


def test_other_operations_are_refused() -> None:
    text = f'func.func @main(%x: {_V}) -> {_V} {{\n%0 = "hlo.negate"(%x) : ({_V}) -> {_V}\nreturn %0 : {_V}\n}}'
    with pytest.raises(LoweringError, match=r"hlo\.negate: only constants, fusions"):
        support.build(text)


def test_a_missing_kernel_is_named() -> None:
    text = f"func.func @main(%x: {_V}) -> {_V} {{\n%0 = {_fusion('absent', 1, '%x')}\nreturn %0 : {_V}\n}}"
    with pytest.raises(LoweringError, match="no kernel was emitted for @absent"):
        support.build(text)


def test_a_kernel_of_another_size_is_refused() -> None:
    text = f"func.func @main(%x: {_V}) -> {_V} {{\n%0 = {_fusion('less', 1, '%x')}\nreturn %0 : {_V}\n}}"
    with pytest.raises(LoweringError, match="kernel less does not fit"):
        support.build(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(%arg0, %arg1)", "(%arg0, %arg0)", "writes to input 0"),
        ("(%arg0, %arg1)", "(%arg1, %arg1)", "result 0 overlaps argument 0"),
        ("@mix_1_r1_t8p", "@absent", "kernel @absent does not exist"),
        ("num_arguments = 1", "num_arguments = 3", "operands do not fit"),
    ],
)
def test_lowering_checks_the_rt_module(old: str, new: str, message: str) -> None:
    program = support.build(
        f"func.func @main(%x: {_V}) -> {_V} {{\n%0 = {_fusion('mix_1_r1_t8p', 1, '%x')}\nreturn %0 : {_V}\n}}"
    )
    text = str(program.module)
    assert old in text
    with program.module.context:
        program.module = ir.Module.parse(text.replace(old, new))
    with pytest.raises(VerifyError, match=message):
        lower_entry(program, hand.SPECS)


def test_an_alias_that_cannot_be_is_dropped() -> None:
    program = support.build(
        f"""func.func @main(%x: {_V} {{gristmill.donated, gristmill.alias = 0 : i64}}) -> tensor<i32> {{
          %0 = "hlov.fusion"(%x) {{calls = @pick, kind = "loop"}} : ({_V}) -> tensor<i32>
          return %0 : tensor<i32>
        }}"""
    )
    assert SimpleNamespace(**vars(program.inputs[0])).alias is None
    assert program.inputs[0].donated


def test_lowering_checks_alignment() -> None:
    program = support.build(
        f"""func.func @main(%x: {_V}) -> {_V} {{
          %0 = {_fusion("mix_1_r1_t8p", 1, "%x")}
          %1 = {_fusion("mix_1_r1_t8p", 1, "%0")}
          %2 = {_fusion("mix_0_5_r1_t8p", 2, "%0, %1")}
          return %2 : {_V}
        }}"""
    )
    text = str(program.module)
    assert "offset = 256 : i64" in text
    text = text.replace("offset = 256 : i64", "offset = 260 : i64").replace("512", "1024")
    with program.module.context:
        program.module = ir.Module.parse(text)
    with pytest.raises(VerifyError, match="does not start at a multiple of 64"):
        lower_entry(program, hand.SPECS)
