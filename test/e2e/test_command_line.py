# SPDX-License-Identifier: Apache-2.0
"""The command line on real files: results, stages, artifacts, and what a user sees when things go wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gristmill.compiler.driver.main import main
from gristmill.compiler.passes.fold_constants import FoldConstantsPass
from gristmill.errors import PassError
from gristmill.runtime.custom_calls import register_custom_call

MODEL = """\
func.func @main(%x: tensor<4x3xf32>, %y: tensor<3xf32>) -> (tensor<4x3xf32>, tensor<4xf32>) {
  %0 = stablehlo.broadcast_in_dim %y, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>
  %1 = stablehlo.add %x, %0 : tensor<4x3xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
  return %1, %2 : tensor<4x3xf32>, tensor<4xf32>
}
"""
X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0.5, -1, 2], np.float32)

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in a folder with a model and its inputs; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("model.mlir").write_text(MODEL)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    np.savez("in.npz", arg0=X, arg1=Y)
    np.savez("out.npz", out0=X + Y, out1=(X + Y).sum(1))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def fails_with(cli: Cli, text: str, *arguments: str) -> None:
    """The command fails with one line that holds ``text``, and prints nothing else."""
    code, out, err = cli(*arguments)
    assert code == 1
    assert out == ""
    assert text in err
    assert err.count("\n") == 1
    assert "internal error" not in err


def saved(path: str) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def assert_right(results: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(results[0], X + Y)
    np.testing.assert_allclose(results[1], (X + Y).sum(1), rtol=1e-6)


def test_run_from_npz(cli: Cli) -> None:
    assert cli("run", "model.mlir", "--inputs", "in.npz", "--output", "o.npz") == (0, "", "")
    assert_right(saved("o.npz"))


def test_run_from_npy_files_prints(cli: Cli) -> None:
    code, out, _ = cli("run", "model.mlir", "--input", "x.npy", "--input", "y.npy")
    assert code == 0
    assert "4x3xf32" in out
    assert "[ 9.5  9.  13. ]" in out


def test_random_inputs_repeat_with_the_seed(cli: Cli) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert (
            cli("run", "model.mlir", "--random", "--seed", seed, "--output", f"{name}.npz")[0] == 0
        )
    np.testing.assert_array_equal(saved("a.npz")[0], saved("b.npz")[0])
    assert (saved("a.npz")[0] != saved("c.npz")[0]).any()


def test_repeat_shows_the_timing(cli: Cli) -> None:
    code, out, _ = cli("run", "model.mlir", "--random", "--repeat", "5", "--threads", "1")
    assert code == 0
    assert "5 runs: min" in out


def test_expect(cli: Cli) -> None:
    code, out, _ = cli("run", "model.mlir", "--inputs", "in.npz", "--expect", "out.npz")
    assert (code, out) == (0, "2 results agree with out.npz within 0.0001\n")
    np.savez("out.npz", out0=X + Y, out1=(X + Y).sum(1) + 1)
    fails_with(
        cli,
        "results differ from out.npz",
        "run",
        "model.mlir",
        "--inputs",
        "in.npz",
        "--expect",
        "out.npz",
    )


def test_bfloat16_goes_through_files(cli: Cli) -> None:
    Path("half.mlir").write_text(
        "func.func @main(%x: tensor<3xbf16>) -> tensor<3xbf16> {\n"
        "  %0 = stablehlo.negate %x : tensor<3xbf16>\n  return %0 : tensor<3xbf16>\n}\n"
    )
    values = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    np.save("h.npy", values)
    assert cli("run", "half.mlir", "--input", "h.npy", "--output", "o.npy")[0] == 0
    np.testing.assert_array_equal(np.load("o.npy").view(ml_dtypes.bfloat16), -values)


def test_every_type_goes_through_files(cli: Cli) -> None:
    for name in ("i1", "i4", "ui2", "i64", "f8E5M2", "f4E2M1FN", "f16", "complex<f32>"):
        Path("t.mlir").write_text(
            f"func.func @main(%x: tensor<5x{name}>) -> tensor<5x{name}> {{\n"
            f"  %0 = stablehlo.reverse %x, dims = [0] : tensor<5x{name}>\n"
            f"  return %0 : tensor<5x{name}>\n}}\n"
        )
        run = ("run", "t.mlir", "--random")
        assert cli(*run, "--output", "o.npz") == (0, "", "")
        assert cli(*run, "--expect", "o.npz", "--tolerance", "0")[0] == 0
        back = ("run", "t.mlir", "--inputs", "o2.npz", "--output", "o.npz")
        np.savez("o2.npz", arg0=saved("o.npz")[0])
        assert cli(*back) == (0, "", "")
        np.testing.assert_array_equal(saved("o.npz")[0], np.load("o2.npz")["arg0"][::-1])


def test_dynamic_shapes_are_those_of_the_inputs(cli: Cli) -> None:
    Path("dynamic.mlir").write_text(
        "func.func @main(%x: tensor<?x3xf32>) -> tensor<?x3xf32> {\n"
        "  %0 = stablehlo.add %x, %x : tensor<?x3xf32>\n  return %0 : tensor<?x3xf32>\n}\n"
    )
    assert cli("run", "dynamic.mlir", "--input", "x.npy", "--output", "o.npy") == (0, "", "")
    np.testing.assert_array_equal(np.load("o.npy"), X + X)
    for command in (("run", "dynamic.mlir", "--random"), ("compile", "dynamic.mlir")):
        fails_with(cli, "dynamic shapes; give --shape arg0=", *command)
        fails_with(cli, "'y=4' names no argument", *command, "--shape", "y=4")
        fails_with(cli, "'axb' is not a list of integers", *command, "--shape", "arg0=axb")
    shape = ("--shape", "arg0=4x3")
    code, out, _ = cli("run", "dynamic.mlir", "--random", *shape)
    assert code == 0
    assert "4x3xf32" in out
    assert cli("compile", "dynamic.mlir", *shape, "-o", "d.gmill") == (0, "", "")
    assert cli("run", "d.gmill", "--input", "x.npy", "--output", "p.npy") == (0, "", "")
    np.testing.assert_array_equal(np.load("p.npy"), X + X)


def test_an_artifact_runs_without_the_compiler(cli: Cli) -> None:
    assert cli("compile", "model.mlir", "-o", "model.gmill") == (0, "", "")
    assert cli("run", "model.gmill", "--inputs", "in.npz", "--output", "o.npz")[0] == 0
    assert_right(saved("o.npz"))
    program = (
        "import sys, numpy, gristmill\n"
        "arrays = numpy.load('in.npz')\n"
        "results = gristmill.load('model.gmill')(arrays['arg0'], arrays['arg1'])\n"
        "numpy.savez('p.npz', *results)\n"
        "assert not {'mlir', 'jaxlib', 'jax'} & {name.partition('.')[0] for name in sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert_right(saved("p.npz"))


STAGES = {
    "hlo": "hlov.reduce",
    "fused": "hlov.fusion",
    "rt": "rt.",
    "kernels": "func.func",
    "llvm": "llvm.func",
    "ll": "define ",
    "asm": ".globl",
}


@pytest.mark.parametrize("stage", STAGES)
def test_emit(stage: str, cli: Cli) -> None:
    code, out, err = cli("compile", "model.mlir", f"--emit={stage}")
    assert (code, err) == (0, "")
    assert STAGES[stage] in out
    assert cli("compile", "model.mlir", f"--emit={stage}", "-o", "emitted")[:2] == (0, "")
    assert STAGES[stage] in Path("emitted").read_text()


def test_binary_stages(cli: Cli) -> None:
    assert cli("compile", "model.mlir", "--emit=obj", "-o", "model.o") == (0, "", "")
    assert Path("model.o").read_bytes()[:4] == b"\x7fELF"
    assert cli("compile", "model.mlir", "--emit=artifact", "-o", "model.gmill") == (0, "", "")
    assert zipfile.is_zipfile("model.gmill")


def test_dump_dir_holds_every_stage(cli: Cli) -> None:
    assert cli("compile", "model.mlir", "--dump-dir", "ir") == (0, "", "")
    names = sorted(path.name for path in Path("ir").iterdir())
    assert [name.partition(".")[2] for name in names] == [
        "0.hlo.mlir", "1.fused.mlir", "2.rt.mlir", "3.kernels.mlir", "4.llvm.mlir", "5.ll", "6.s", "7.o",
        "8.gmill",
    ]  # fmt: skip
    assert all(path.stat().st_size > 0 for path in Path("ir").iterdir())


def test_verbose_times_the_stages(cli: Cli) -> None:
    code, out, err = cli("compile", "model.mlir", "-v")
    assert (code, out) == (0, "")
    for stage in ("import", "pass fuse", "generate code", "total"):
        assert f"\n{stage} " in "\n" + err


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).parent / "gristmill"
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("gristmill ")


def test_malformed_text(cli: Cli) -> None:
    Path("bad.mlir").write_text("func.func @main( {\n")
    fails_with(cli, "bad.mlir:1:", "run", "bad.mlir")


def test_an_unknown_op_is_named_with_its_place(cli: Cli) -> None:
    Path("bad.mlir").write_text("func.func @main() {\n  stablehlo.grind\n  return\n}\n")
    fails_with(cli, "stablehlo.grind", "compile", "bad.mlir")


def test_all_unsupported_things_are_reported_at_once(cli: Cli) -> None:
    Path("bad.mlir").write_text(
        "func.func @main(%x: tensor<4xf32>, %t: tensor<4xindex>) -> tensor<4xf32> {\n"
        '  %0 = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1]]>\n'
        "    : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>\n"
        "  return %0 : tensor<4xf32>\n}\n"
    )
    code, out, err = cli("compile", "bad.mlir")
    assert (code, out) == (1, "")
    assert "2 things are not supported:\n" in err
    assert "bad.mlir:1:1: func.func: element type index" in err
    assert "bad.mlir:2:8: stablehlo.collective_permute" in err


def test_wrong_inputs(cli: Cli) -> None:
    run = ("run", "model.mlir")
    fails_with(cli, "needs inputs (", *run)
    fails_with(cli, "takes 2 inputs, 1 given", *run, "--input", "x.npy")
    fails_with(cli, "3xf32", *run, "--input", "x.npy", "--input", "x.npy")
    np.save("y64.npy", Y.astype(np.float64))
    fails_with(
        cli, "dtype float64 does not fit 3xf32", *run, "--input", "x.npy", "--input", "y64.npy"
    )
    fails_with(cli, "holds out0, out1, but", *run, "--inputs", "out.npz")
    fails_with(cli, "is not an .npz file", *run, "--inputs", "model.mlir")
    fails_with(cli, "is not a .npy file", *run, "--input", "model.mlir")
    fails_with(cli, "must be at least 1", *run, "--random", "--threads", "0")


def test_a_bad_output_name_writes_nothing(cli: Cli) -> None:
    before = sorted(Path().iterdir())
    run = ("run", "model.mlir", "--random", "--output")
    fails_with(cli, "must end in .npz or .npy", *run, "o.csv")
    fails_with(cli, "can hold one result", *run, "o.npy")
    fails_with(cli, "cannot write", *run, "missing/o.npz")
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("cut", [0, 10, 0.3, 0.9])
def test_a_truncated_artifact(cut: float, cli: Cli) -> None:
    assert cli("compile", "model.mlir", "-o", "model.gmill")[0] == 0
    data = Path("model.gmill").read_bytes()
    keep = int(cut * len(data)) if 0 < cut < 1 else int(cut)
    Path("cut.gmill").write_bytes(data[:keep])
    fails_with(cli, "cut.gmill", "run", "cut.gmill", "--random")


def test_a_corrupt_artifact(cli: Cli) -> None:
    assert cli("compile", "model.mlir", "-o", "model.gmill")[0] == 0
    data = bytearray(Path("model.gmill").read_bytes())
    data[len(data) // 2] ^= 0xFF
    Path("bad.gmill").write_bytes(data)
    fails_with(cli, "bad.gmill", "run", "bad.gmill", "--random")


GOOD = """\
func.func public @main() {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.add %x, %x : tensor<2xf32>
  %want = stablehlo.constant dense<[2.0, 4.0]> : tensor<2xf32>
  stablehlo.custom_call @check.expect_eq(%y, %want) {has_side_effect = true}
    : (tensor<2xf32>, tensor<2xf32>) -> ()
  return
}
"""


CALLING = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.custom_call @cli.twice(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
REGISTERING = """
import gristmill
gristmill.register_custom_call("cli.twice", lambda x: x + x, replace=True)
"""


def test_modules_that_register_custom_calls(cli: Cli) -> None:
    Path("calling.mlir").write_text(CALLING)
    Path("registering.py").write_text(REGISTERING)
    checking = CALLING.replace("%x: tensor<2xf32>) -> tensor<2xf32>", ")")
    checking = checking.replace(
        "%0 =", "%x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>\n  %0 =", 1
    ).replace(
        "return %0 : tensor<2xf32>",
        "%w = stablehlo.constant dense<[2.0, 4.0]> : tensor<2xf32>\n"
        "  stablehlo.custom_call @check.expect_eq(%0, %w) {has_side_effect = true}"
        " : (tensor<2xf32>, tensor<2xf32>) -> ()\n  return",
    )
    Path("checking.mlir").write_text(checking)
    np.save("two.npy", np.array([1.5, -2], np.float32))
    fails_with(cli, "custom_call @cli.twice: no function is registered", "compile", "calling.mlir")
    given = ("--custom-calls", "registering.py")
    with registered_for_this_test("cli.twice"):
        assert cli("compile", "calling.mlir", "-o", "calling.gmill", *given)[0] == 0
        assert cli("check", "checking.mlir", *given)[1].endswith("1 passed, 0 failed\n")
        assert cli("check", "checking.mlir", "-j", "1", *given)[1].endswith("1 passed, 0 failed\n")
    arguments = ("run", "calling.gmill", "--input", "two.npy")
    fails_with(cli, "no function is registered for: @cli.twice", *arguments)
    with registered_for_this_test("cli.twice"):
        code, out, _ = cli(*arguments, *given)
        assert code == 0
        assert "[ 3. -4.]" in out
    fails_with(cli, "no such file: nothing.py", *arguments, "--custom-calls", "nothing.py")
    Path("broken.py").write_text("import no_such_module_anywhere")
    fails_with(cli, "broken.py: cannot import it", *arguments, "--custom-calls", "broken.py")


@contextmanager
def registered_for_this_test(name: str) -> Iterator[None]:
    """Takes back, at the end, what a module of ``--custom-calls`` registered in this process."""
    try:
        yield
    finally:
        register_custom_call(name, abs, replace=True).unregister()


@pytest.fixture
def modules(cli: Cli) -> Path:
    """A folder of modules: one passes, the others fail each in its own way."""
    folder = Path("modules")
    folder.mkdir()
    (folder / "good.mlir").write_text(GOOD)
    (folder / "wrong.mlir").write_text(GOOD.replace("dense<[2.0, 4.0]>", "dense<[2.0, 5.0]>"))
    (folder / "collective.mlir").write_text(
        GOOD.replace(
            "stablehlo.add %x, %x : tensor<2xf32>",
            '"stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1]]>'
            " : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>",
        )
    )
    (folder / "nothing.mlir").write_text("func.func @main() { return }")
    return folder


@pytest.mark.parametrize("flags", [(), ("-j", "2")])
def test_check_reports_by_cause(flags: tuple[str, ...], cli: Cli, modules: Path) -> None:
    code, out, _ = cli("check", str(modules), *flags)
    assert code == 1
    assert out.splitlines()[-1] == "1 passed, 3 failed"
    for cause in (
        "wrong value: eq",
        "unsupported: stablehlo.collective_permute: source_target_pairs names device",
        "no checks",
    ):
        assert cause in out
    assert "got 4.0, want 5.0" in out


def test_check_passes(cli: Cli, modules: Path) -> None:
    assert cli("check", str(modules / "good.mlir")) == (0, "1 passed, 0 failed\n", "")


def test_check_with_a_required_number(cli: Cli, modules: Path) -> None:
    assert cli("check", str(modules), "--require-passed", "1")[0] == 0
    code, out, err = cli("check", str(modules), "--require-passed", "2")
    assert code == 1
    assert out.splitlines()[-1] == "1 passed, 3 failed"
    assert err == "gristmill: 1 modules passed, 2 required\n"


def test_check_as_json(cli: Cli, modules: Path) -> None:
    code, out, _ = cli("check", str(modules), "--json")
    assert code == 1
    report = json.loads(out)
    assert report["summary"] == "1 passed, 3 failed"
    by_name = {Path(m["path"]).name: m for m in report["modules"]}
    assert by_name["good.mlir"]["causes"] == []
    assert by_name["wrong.mlir"]["causes"] == ["wrong value: eq"]


def test_check_tests_the_kernels_not_the_folder(
    cli: Cli, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a module's inputs are constants; its arithmetic must still be compiled."""

    def refuse(*_: object) -> None:
        raise PassError("folded")

    monkeypatch.setattr(FoldConstantsPass, "run", refuse)
    assert cli("compile", str(modules / "good.mlir"))[0] == 1  # the patch does bite
    assert cli("check", str(modules / "good.mlir"))[0] == 0
