# SPDX-License-Identifier: Apache-2.0
"""``gristmill cache`` and the cache of ``gristmill run``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gristmill.compiler.driver.console import file_size
from gristmill.compiler.driver.main import main
from gristmill.runtime import knobs

MODEL = """module @twice {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cli(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run the command line with a cache of its own; (exit code, stdout, stderr)."""
    (tmp_path / "model.mlir").write_text(MODEL)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([a.replace("MODEL", str(tmp_path / "model.mlir")) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    with knobs.CACHE_DIR.scope(str(folder)), knobs.CACHE.scope("1"):
        yield run


def test_run_fills_the_cache_and_the_command_shows_it(cli: Cli, folder: Path) -> None:
    assert cli("cache", "list") == (0, "the cache is empty\n", "")
    first = cli("run", "MODEL", "--random")
    assert first == cli("run", "MODEL", "--random")
    (path,) = folder.iterdir()
    code, out, _ = cli("cache")
    assert code == 0
    assert f"directory  {folder}\n" in out
    assert f"entries    1, {file_size(path.stat().st_size)} of 1.0 GiB\ncaching    on\n" in out
    code, out, _ = cli("cache", "list")
    assert out.splitlines()[1].startswith(path.name[:12])
    assert "twice (" in out


def test_no_cache_leaves_it_alone(cli: Cli, folder: Path) -> None:
    assert cli("run", "MODEL", "--random", "--no-cache")[0] == 0
    assert not folder.exists()


def test_autotuning_a_program_without_products_changes_nothing(cli: Cli, folder: Path) -> None:
    plain = cli("run", "MODEL", "--random")
    assert cli("run", "MODEL", "--random", "--autotune") == plain
    assert len(list(folder.iterdir())) == 2, "an entry of its own"


def test_verify_removes_what_is_damaged(cli: Cli, folder: Path) -> None:
    cli("run", "MODEL", "--random")
    (path,) = folder.iterdir()
    bad = folder / ("0" * 64 + ".gmill")
    bad.write_bytes(path.read_bytes()[:-50])
    bad.chmod(0o600)
    assert "damaged: " in cli("cache", "list")[1]
    code, out, _ = cli("cache", "verify")
    assert code == 0
    assert out.startswith("removed 000000000000: ")
    assert out.endswith("1 entries are good, 1 were damaged\n")
    assert list(folder.iterdir()) == [path]


def test_prune_and_clear(cli: Cli, folder: Path) -> None:
    cli("run", "MODEL", "--random")
    assert cli("cache", "prune") == (0, "removed 0 entries, 0 B\n", "")
    assert cli("cache", "prune", "--size", "1K")[1].startswith("removed 1 entries, ")
    cli("run", "MODEL", "--random")
    assert cli("cache", "clear")[1].startswith("removed 1 entries, ")
    assert list(folder.iterdir()) == []


def test_another_directory(cli: Cli, folder: Path) -> None:
    cli("run", "MODEL", "--random")
    assert "entries    0, 0 B of" in cli("cache", "--dir", f"{folder}2")[1]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("list", "--size", "3"), "--size goes with prune"),
        (("prune", "--size", "3Q"), "--size 3Q: write a number, with a suffix K, M, G or T"),
        (("clear", "--dir", "MODEL"), "model.mlir: File exists"),
    ],
)
def test_misuse_is_explained(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    code, out, err = cli("cache", *arguments)
    assert (code, out) == (1, "")
    assert text in err


def test_a_cache_that_is_off_is_shown(cli: Cli) -> None:
    with knobs.CACHE.scope("0"):
        assert "caching    off (GRISTMILL_CACHE=0)" in cli("cache")[1]


def test_an_unusable_cache_is_one_line(cli: Cli, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    code, out, err = cli("run", "MODEL", "--random")
    assert code == 0
    assert "4xf32" in out
    assert err.startswith("gristmill: warning: compiling without the cache on disk")
    assert err.count("\n") == 1


def test_sizes_are_readable() -> None:
    sizes = (0, 1023, 1536, 200 << 10, 5 << 20, 3 << 30)
    assert [file_size(n) for n in sizes] == [
        *("0 B", "1023 B", "1.5 KiB", "200 KiB", "5.0 MiB", "3.0 GiB")
    ]
