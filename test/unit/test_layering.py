# SPDX-License-Identifier: Apache-2.0
"""The one-way arrows between packages, what an import may load, and the size budget of files."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gristmill", "compiler", "dialects", "runtime")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

#: What each layer may import of ours (prefixes of dotted names), and what it may never import.
ALLOWED = {
    "gristmill": ("gristmill",),
    "driver": ("gristmill",),
    "compiler": (
        "gristmill.errors",
        "gristmill.__version__",
        "gristmill.compiler",
        "gristmill.dialects",
        "gristmill.runtime.types",
        "gristmill.runtime.layout",
        "gristmill.runtime.custom_calls",
        "gristmill.runtime.program",
        "gristmill.runtime.artifact",
        "gristmill.runtime.llvm",
        "gristmill.runtime.knobs",
        "gristmill.runtime.caches",
        "gristmill.runtime.lapack",
        "gristmill.runtime.threads",
        "gristmill.runtime.packages",
        "gristmill.runtime.simulator_report",
        "gristmill.runtime.device_program",
    ),
    "dialects": ("gristmill.errors", "gristmill.dialects", "gristmill.runtime.types"),
    "runtime": ("gristmill.errors", "gristmill.__version__", "gristmill.runtime"),
}
#: The modules that join the compiler to the running of what it compiled.
JOINTS = {
    "compiler/cache.py": (
        "gristmill.runtime.disk_cache",
        "gristmill.runtime.executable",
        "gristmill.runtime.device_executable",
        "gristmill.runtime.devices",
    ),
    "compiler/tuning.py": (
        "gristmill.runtime.atomic",
        "gristmill.runtime.disk_cache",
        "gristmill.runtime.executable",
    ),
    "compiler/compile_device.py": (
        "gristmill.runtime.device_executable",
        "gristmill.runtime.devices",
    ),
    "compiler/compile_gpu.py": (
        "gristmill.runtime.device_executable",
        "gristmill.runtime.devices.launching",
    ),
    "compiler/target_device.py": ("gristmill.runtime.devices",),
    "compiler/compile.py": ("gristmill.runtime.executable",),
    "compiler/jit.py": ("gristmill.runtime.executable",),
    "compiler/polymorphic.py": (
        "gristmill.runtime.arguments",
        "gristmill.runtime.device_executable",
        "gristmill.runtime.executable",
    ),
    "compiler/codegen/testing.py": ("gristmill.runtime.code",),
}
FORBIDDEN = {
    "gristmill": ("jax",),
    "driver": (),
    "compiler": ("gristmill.compiler.driver",),
    "dialects": ("jax", "jaxlib"),
    "runtime": ("mlir", "jax", "jaxlib"),
}


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layer(name: str) -> str:
    return "driver" if name.startswith("compiler/driver/") else name.partition("/")[0]


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every imported dotted name with its line, imports inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def breaches(name: str, text: str) -> list[str]:
    """The imports in file ``name`` (path from the root) that break an arrow."""
    rank = layer(name)
    allowed = ALLOWED[rank] + JOINTS.get(name, ())
    found: list[str] = []
    for line, target in imports(ast.parse(text)):
        ours = under(target, ("gristmill",))
        bare = under(target, PACKAGES[1:])
        if bare or under(target, FORBIDDEN[rank]) or (ours and not under(target, allowed)):
            found.append(f"{name}:{line}: {rank} must not import {target}")
    return found


def test_imports_follow_the_arrows() -> None:
    found = [b for path in sources() for b in breaches(relative(path), path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runtime/a.py", "from gristmill.compiler import module"),
        ("runtime/a.py", "def f():\n    from mlir import ir"),
        ("runtime/a.py", "import jaxlib.mlir"),
        ("compiler/a.py", "from gristmill.compiler.driver import main"),
        ("compiler/a.py", "from gristmill.runtime.executable import Executable"),
        ("compiler/a.py", "from runtime import types"),
        ("dialects/a.py", "import gristmill.compiler.module"),
        ("gristmill/a.py", "import jax"),
    ],
)
def test_a_breach_is_found(name: str, text: str) -> None:
    assert len(breaches(name, text)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compiler/driver/a.py", "from gristmill.runtime.executable import Executable"),
        ("compiler/a.py", "from gristmill.runtime.llvm import orc\nfrom mlir import ir"),
        ("compiler/compile.py", "from gristmill.runtime.executable import Executable"),
        ("runtime/a.py", "from gristmill.errors import ArtifactError\nimport numpy"),
    ],
)
def test_an_allowed_import_is_accepted(name: str, text: str) -> None:
    assert breaches(name, text) == []


def loaded_by(code: str) -> set[str]:
    """Top-level names in ``sys.modules`` after a fresh interpreter ran ``code``."""
    report = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_gristmill_loads_nothing_heavy() -> None:
    assert (
        loaded_by("import gristmill") & {"mlir", "jaxlib", "jax", "cuda", "numpy", "scipy"} == set()
    )


def test_programs_of_numpys_types_load_no_others() -> None:
    code = "from gristmill.runtime.types import ArrayType, primitive_type_of\n"
    plain = "kind = ArrayType.parse('4x8xf32').element.dtype; primitive_type_of(kind)\n"
    narrow = "ArrayType.parse('4x8xbf16').element.dtype"
    assert "ml_dtypes" not in loaded_by(code + plain)
    assert "ml_dtypes" in loaded_by(code + narrow)


def test_importing_all_of_the_runtime_loads_no_compiler() -> None:
    names = [
        "gristmill."
        + relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for path in sources()
        if relative(path).startswith("runtime/")
    ]
    loaded = loaded_by("import sys\n" + "\n".join(f"import {name}" for name in names))
    assert loaded & {"mlir", "jaxlib", "jax", "cuda", "scipy"} == set()
    assert "numpy" in loaded  # the probe does see what was imported


def test_the_command_line_answers_help_without_the_compiler() -> None:
    code = "from gristmill.compiler.driver import main\nmain.parser()"
    assert loaded_by(code) & {"mlir", "jaxlib", "jax", "cuda", "numpy"} == set()


def long_functions(name: str, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines"


def test_files_and_functions_stay_readable() -> None:
    found: list[str] = []
    for path in sources():
        text, name = path.read_text(), relative(path)
        lines = text.count("\n")
        if lines > MAX_FILE_LINES:
            found.append(f"{name} has {lines} lines; split it")
        found.extend(long_functions(name, text))
    assert found == []


def test_every_source_names_its_licence() -> None:
    first = "# SPDX-License-Identifier: Apache-2.0"
    missing = [relative(p) for p in sources() if not p.read_text().startswith(first)]
    assert missing == []


def test_every_folder_of_sources_is_packaged() -> None:
    import tomllib

    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packaged = set(config["tool"]["setuptools"]["packages"])
    folders = {p.parent for p in sources()}
    names = {
        relative(f).replace("/", ".")
        if f.name == "gristmill"
        else "gristmill." + relative(f).replace("/", ".")
        for f in folders
    }
    assert names == packaged


def test_the_typing_alias_shows_the_whole_package() -> None:
    alias = ROOT / "typings" / "gristmill"
    missing = [p.name for p in (ROOT / "gristmill").glob("*.py") if not (alias / p.name).exists()]
    assert missing == []
    assert all((alias / package).is_dir() for package in PACKAGES[1:])
