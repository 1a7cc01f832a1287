# SPDX-License-Identifier: Apache-2.0
"""Mends the type stub of ``mlir.ir`` in this environment; ``make`` runs it after installing.

The stub that the wheel carries uses ``Generic`` without importing it, so that a type checker knows nothing
of ``ir.Value``'s base class and takes every attribute of that type for unknown; and its type variable has
no default, so that a plain ``ir.Value`` is partly unknown.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

MENDS = {
    "from typing import ClassVar, Final, TypeVar, overload\n": (
        "from typing import ClassVar, Final, Generic, overload\n"
    ),
    "from typing_extensions import Buffer, CapsuleType\n": (
        "from typing_extensions import Buffer, CapsuleType, TypeVar\n"
    ),
    '_T = TypeVar("_T", bound=Type)\n': (
        '_T = TypeVar("_T", bound=Type, default=Type, covariant=True)\n'
    ),
}


def main() -> None:
    """Apply the mends that are not there yet."""
    package = metadata.distribution("xtc-mlir-python-bindings")
    stub = Path(str(package.locate_file("mlir/_mlir_libs/_mlir/ir.pyi")))
    text = stub.read_text()
    for broken, mended in MENDS.items():
        text = text.replace(broken, mended)
    stub.write_text(text)


if __name__ == "__main__":
    main()
