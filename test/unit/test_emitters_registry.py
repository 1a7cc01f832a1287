# SPDX-License-Identifier: Apache-2.0
"""The table of emitters: every entry exists, and none is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

from gristmill.compiler.emitters.registry import EMITTERS, emitter_class


def test_every_kind_has_a_class_with_emit() -> None:
    assert [kind for kind in EMITTERS if not hasattr(emitter_class(kind), "emit")] == []


def test_emitters_are_imported_when_needed() -> None:
    code = (
        "import sys\nimport gristmill.compiler.compile\n"
        "print(*[n for n in sys.modules if n.startswith('gristmill.compiler.emitters.')])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    names = {name.rpartition("emitters.")[2] for name in loaded.stdout.split()}
    assert "cpu.frame" in names
    assert (
        names & {"cpu.sort", "cpu.fft", "cpu.convolution", "cpu.dot_gemm", "gpu.registry"} == set()
    )
