# SPDX-License-Identifier: Apache-2.0
"""The command line's contract: help that teaches, one line for an error, exit codes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from device_support import software_driver

import gristmill
from gristmill.compiler.driver import check_command, doctor_command, main
from gristmill.errors import ParseError, UnsupportedError
from gristmill.runtime.devices.cuda import CudaDevice

NEGATE = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def run_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    """Run a command that raises ``error``."""

    def execute(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(doctor_command, "execute", execute)
    return main.main(["doctor", *flags])


CASES = [
    (ParseError("expected ')'", location="a.mlir:3:4"), "gristmill: a.mlir:3:4: expected ')'"),
    (FileNotFoundError(2, "No such file or directory", "x.npz"), "x.npz: No such file"),
    (MemoryError("80 GiB wanted"), "gristmill: out of memory: 80 GiB wanted"),
    (KeyError("lhs\nrhs"), "gristmill: internal error: KeyError: 'lhs\\nrhs' (rerun with --debug"),
]


@pytest.mark.parametrize(("error", "text"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_is_one_line_and_exit_code_1(
    error: Exception,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_raising(error, monkeypatch) == 1
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_debug_adds_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_raising(ParseError("broken"), monkeypatch, "--debug") == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.endswith("gristmill: broken\n")


def test_debug_may_stand_before_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_command, "execute", lambda args: int(args.debug) + 6)
    assert main.main(["--debug", "doctor"]) == 7
    capsys.readouterr()


def test_every_unsupported_item_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    items = ("a.mlir:1:1: stablehlo.fft: not supported", "a.mlir:2:1: stablehlo.rng: not supported")
    assert run_raising(UnsupportedError("two things", items=items), monkeypatch) == 1
    assert capsys.readouterr().err.splitlines() == [
        "gristmill: 2 things are not supported:",
        *items,
    ]


def test_an_interrupt_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_raising(KeyboardInterrupt(), monkeypatch) == 130


@pytest.mark.parametrize("command", ["run", "compile", "bench", "check", "doctor"])
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main.main([command, "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert f"examples:\n  gristmill {command}" in text
    assert "--debug" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out == f"gristmill {gristmill.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["grind"], ["run"], ["compile", "m", "--emit=soup"], ["bench", "m", "--threads=0"]],
)
def test_a_wrong_command_line_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main.main(arguments)
    assert exit_info.value.code == 2
    assert "usage: gristmill" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "compile", "bench", "check"])
def test_a_missing_file_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([command, "no/such.mlir"]) == 1
    error = capsys.readouterr().err
    assert "no such file" in error
    assert "no/such.mlir" in error


def test_doctor_reports_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "Packages",
        "numpy",
        "scipy",
        "Processor",
        "features",
        "Toolchain",
        "LLVM",
        "OpenMP",
        "compiling for",
        "GRISTMILL_CPU",
        "CUDA",
        "Devices",
        "simulator",
    ):
        assert expected in text
    assert "vm.max_map_count" in text
    assert "not available" not in text


@pytest.mark.software
def test_doctor_lists_gpus() -> None:
    software_driver()
    rows = dict(doctor_command.devices())
    assert rows["simulator"] == "runs and checks programs for GPUs on the CPU"
    assert rows["cuda:0"].endswith("compute capability 8.0, compiled for as sm_80")


def test_doctor_says_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaDevice, "count", lambda: 0)
    assert dict(doctor_command.devices())["cuda"] == "none: the CUDA driver finds no device"


def test_bench_says_what_times_a_program_for_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "device.gmill"
    with gristmill.compile(NEGATE, device="simulator") as executable:
        executable.save(path)
    assert main.main(["bench", str(path)]) == 1
    error = capsys.readouterr().err
    assert "bench times programs for CPUs" in error
    assert f"gristmill run {path} --random --device=cuda --repeat=100" in error


def test_doctor_survives_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise OSError("libLLVM.so: cannot open")

    monkeypatch.setattr(doctor_command, "_SECTIONS", (("Toolchain", broken),))
    assert main.main(["doctor"]) == 0
    assert "OSError: libLLVM.so: cannot open" in capsys.readouterr().out


def test_modules_are_found_once_and_in_order(tmp_path) -> None:
    for name in ("b.mlir", "a.mlir", "sub/c.mlir", "note.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    found = check_command.find_modules([tmp_path, tmp_path / "a.mlir"])
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["a.mlir", "b.mlir", "sub/c.mlir"]
