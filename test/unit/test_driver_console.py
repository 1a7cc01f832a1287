# SPDX-License-Identifier: Apache-2.0
"""Safe writing, tables, durations and the progress line."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from gristmill.compiler.driver import console
from gristmill.compiler.driver.console import Progress, replacing, seconds, table, write
from gristmill.errors import InputError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write(path, "old")
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_new_file_has_ordinary_permissions(tmp_path: Path) -> None:
    write(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def fail_while_replacing(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("power cut")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write(path, "old")
    with pytest.raises(RuntimeError, match="power cut"):
        fail_while_replacing(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.txt"
    with pytest.raises(InputError, match=r"cannot write .*missing/a\.txt: No such file"):
        write(path, "x")


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.2e-5, "42 us"), (3e-8, "30 ns"), (123.4, "123 s")],
)
def test_durations(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_table_aligns_words_left_and_quantities_right() -> None:
    text = table(("stage", "time"), [("a", "12 ms"), ("longer", "1.5 s")])
    assert text.splitlines() == ["stage    time", "a       12 ms", "longer  1.5 s"]
    text = table(("k", "v"), [("a", "3.11.7 (x)"), ("bb", "4")])
    assert text.splitlines() == ["k   v", "a   3.11.7 (x)", "bb  4"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_waits_a_second_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    stream = Terminal()
    progress = Progress(4, stream)
    progress.update(1, "parsing")
    assert stream.getvalue() == ""
    now[0] = 1.5
    progress.update(2, "lowering")
    assert "[############------------] 2/4 lowering (2 s)" in stream.getvalue()
    progress.close()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_is_silent_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress(4, stream)
    now[0] = 10.0
    progress.update(2, "lowering")
    progress.close()
    assert stream.getvalue() == ""


def test_progress_shows_a_long_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(console, "REDRAW_SECONDS", 0.01)
    stream = Terminal()
    progress = Progress(2, stream)
    progress.update(1, "generating code")
    assert stream.getvalue() == ""
    deadline = time.monotonic() + 10
    while "1/2 generating code" not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    progress.close()
    assert "1/2 generating code" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
