# SPDX-License-Identifier: Apache-2.0
"""lit configuration: ``lit test`` runs every ``.mlir`` and ``.test`` file under ``test``.

Tools come from the environment of the Python that runs lit; nothing but pip installs them.
"""

# pyright: reportUndefinedVariable=false
# ruff: noqa: F821

import os
import shlex
import sys
from pathlib import Path

import lit.formats

root = Path(__file__).resolve().parent
python = shlex.quote(sys.executable)
filecheck = Path(sys.executable).parent / "filecheck"

config.name = "gristmill"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.test_exec_root = str(root / "build" / "lit")
config.excludes = [
    *("benchmarks", "build", "compiler", "dialects", "docs", "examples", "gristmill", "runtime"),
    *("unit", "shared", "Inputs"),
]
config.substitutions += [
    (r"%gristmill-opt", f"{python} -m gristmill.compiler.driver.opt"),
    (r"%gristmill", f"{python} -m gristmill"),
    (r"%python", python),
    (r"\bfilecheck\b", f"{shlex.quote(str(filecheck))} --enable-var-scope"),
]
for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"):
    if name in os.environ:
        config.environment[name] = os.environ[name]
config.environment["PYTHONDONTWRITEBYTECODE"] = "1"
config.environment["GRISTMILL_CACHE"] = "0"  # every test sees the compiler work
config.maxIndividualTestTime = 120
