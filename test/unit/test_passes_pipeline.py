# SPDX-License-Identifier: Apache-2.0
"""Pipelines: their text, editing, and what happens between passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes import registry
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.pipeline import Pipeline, RunOptions, Stage, split_top_level
from gristmill.compiler.text import parse_module
from gristmill.errors import PassError, UnsupportedError

PROGRAM = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "hlo.negate"(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = "hlo.negate"(%0) : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
"""


@pytest.fixture
def module() -> HloModule:
    return parse_module(PROGRAM, name="program")


@dataclass(frozen=True)
class _BreakPass(Pass):
    """Requires nothing. Guarantees a broken module."""

    name: ClassVar[str] = "break"

    def run(self, module: HloModule) -> None:
        function = module.function("main")
        op = function.regions[0].blocks[0].operations[0]
        kind = ir.Type.parse("tensor<3xf32>")
        with ir.InsertionPoint(op), op.location:
            ir.Operation.create("hlo.negate", results=[kind], operands=[op.operands[0]])


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("dce-hlo", "dce-hlo"),
        (" dce-hlo , cse-hlo ", "dce-hlo,cse-hlo"),
        ("fold-constants{limit-bytes=64}", "fold-constants{limit-bytes=64}"),
        ("fold-constants{limit-bytes=4096}", "fold-constants"),
        ("canonicalize-hlo{remove-barriers}", "canonicalize-hlo{remove-barriers=true}"),
        (
            "builtin.module(dce-hlo,func.func(canonicalize,cse))",
            "dce-hlo,func.func(canonicalize,cse)",
        ),
        ("canonicalize{max-iterations=3},dce-hlo", "canonicalize{max-iterations=3},dce-hlo"),
        ("builtin.module()", ""),
        ("", ""),
    ],
)
def test_text_round_trips(text: str, printed: str) -> None:
    assert str(Pipeline(text)) == printed
    assert str(Pipeline(printed)) == printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dce-hol", r"'dce-hol' is no pass of ours, and upstream says: .*did you mean 'dce-hlo'\?"),
        ("func.func(dce-hlo)", "pass 'dce-hlo' runs on whole modules; take it out of 'func.func'"),
        ("dce-hlo,,cse-hlo", "empty element"),
        ("builtin.module(dce-hlo", r"missing '\)' at the end"),
        ("dce-hlo)", r"unbalanced '\)' at column 8"),
        ("fold-constants{limit-bytes=1 limit-bytes=2}", "option 'limit-bytes' is given twice"),
        ("dce-hlo{a=1}", "pass 'dce-hlo' has no option 'a'"),
        ("dce-hlo{a=1}x", "options of pass 'dce-hlo' must end with '}'"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        Pipeline(text)


def test_splitting_respects_brackets_and_quotes() -> None:
    assert split_top_level("a{b=[1,2] c='x,y'},d(e,f)", ",") == ["a{b=[1,2] c='x,y'}", "d(e,f)"]


def test_editing() -> None:
    pipeline = Pipeline("dce-hlo,cse-hlo")

    def mine(module: HloModule) -> None:
        del module

    pipeline.insert_before("dce-hlo", "inline-calls")
    pipeline.insert_after("dce-hlo", mine)
    pipeline.replace(
        "cse-hlo", registry.create("fold-constants", {"limit-bytes": "8"}), name="small folds"
    )
    pipeline.append("dce-hlo")
    assert pipeline.names == ["inline-calls", "dce-hlo", "mine", "small folds", "dce-hlo#2"]
    pipeline.remove("dce-hlo#2")
    pipeline.remove("mine")
    assert str(pipeline) == "inline-calls,dce-hlo,fold-constants{limit-bytes=8}"


def test_editing_at_an_unknown_stage() -> None:
    pipeline = Pipeline("dce-hlo")
    with pytest.raises(PassError, match="no stage 'x'; it has: dce-hlo"):
        pipeline.insert_after("x", "cse-hlo")
    with pytest.raises(PassError, match="no pass of ours"):
        pipeline.replace("dce-hlo", "nonsense")
    assert pipeline.names == ["dce-hlo"]
    with pytest.raises(PassError, match="already has a stage 'dce-hlo'"):
        pipeline.append("cse-hlo", name="dce-hlo")


def test_run_mixes_ours_upstream_and_python(module: HloModule) -> None:
    seen: list[str] = []

    def look(current: HloModule) -> None:
        seen.append(str(current.module).count("negate").__str__())

    def after(stage: Stage, current: HloModule) -> None:
        assert current is module
        seen.append(stage.name)

    pipeline = Pipeline([look, "canonicalize-hlo", "func.func(canonicalize)", look])
    report = pipeline.run(module, after_each=after)
    names = ["look", "canonicalize-hlo", "func.func(canonicalize)", "look#2"]
    assert seen == ["2", *names[:3], "0", names[3]]
    assert [name for name, _ in report.timings] == names
    assert "canonicalize-hlo" in str(report)


def test_printing_and_dumping(module: HloModule, tmp_path: Path) -> None:
    printed: list[str] = []
    options = RunOptions(
        print_after=("canonicalize-hlo",), emit=printed.append, dump_dir=tmp_path / "ir"
    )
    Pipeline("canonicalize-hlo,dce-hlo").run(module, options=options)
    assert len(printed) == 1
    assert printed[0].startswith("// -----// IR after canonicalize-hlo //----- //\n")
    assert "hlo.negate" not in printed[0]
    assert sorted(p.name for p in (tmp_path / "ir").iterdir()) == [
        "00-canonicalize-hlo.mlir",
        "01-dce-hlo.mlir",
    ]
    with pytest.raises(PassError, match=r"no stage 'dce'; did you mean 'dce-hlo'\?"):
        Pipeline("dce-hlo").run(module, options=RunOptions(print_after=("dce",)))


def test_broken_ir_is_caught_and_reproducible(module: HloModule, tmp_path: Path) -> None:
    pipeline = Pipeline(["dce-hlo", _BreakPass()])
    with pytest.raises(PassError) as caught:
        pipeline.run(module, options=RunOptions(dump_dir=tmp_path))
    text = str(caught.value)
    assert "pass 'break' failed: it left invalid IR" in text
    assert "hlo.negate: operand 0 must have the result's type tensor<3xf32>" in text
    repro = tmp_path / "01-before-break.mlir"
    assert f"gristmill-opt --pass-pipeline='break' {repro}" in text
    assert len(parse_module(repro.read_text()).functions()) == 1


def test_verification_can_be_left_out(module: HloModule) -> None:
    Pipeline([_BreakPass()]).run(module, options=RunOptions(verify=False))


def test_failing_upstream_pass_keeps_the_diagnostics(module: HloModule) -> None:
    message = r"pass 'one-shot-bufferize' failed: -:3:8: op was not bufferized.*; reproduce with"
    with pytest.raises(PassError, match=message):
        Pipeline("one-shot-bufferize").run(module)


def test_errors_of_other_kinds_pass_through(module: HloModule) -> None:
    def refuse(current: HloModule) -> None:
        raise UnsupportedError(f"cannot compile {current.name}")

    with pytest.raises(UnsupportedError, match="cannot compile program"):
        Pipeline([refuse]).run(module)
