# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own arithmetic: work, ratios, verdicts, charts; and one short run of the whole."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import report  # noqa: E402
from cases import CASES  # noqa: E402
from chart import chart  # noqa: E402
from jax import lax  # noqa: E402
from peers import read_arrays, write_arrays  # noqa: E402
from work import least_work  # noqa: E402
from worker import difference  # noqa: E402

F32 = np.float32


def test_a_product_and_its_loop() -> None:
    a, b = np.ones((8, 16), F32), np.ones((16, 4), F32)
    work = least_work(lambda a, b: a @ b, [a, b])
    assert (work.read, work.written, work.flops) == (4 * (128 + 64), 4 * 32, 2 * 8 * 16 * 4)
    square = np.ones((8, 8), F32)

    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (c @ w, None), x, None, length=5)[0]

    assert least_work(loop, [square, square]).flops == 5 * 2 * 8**3


def test_of_a_table_the_rows_taken_are_read() -> None:
    table, rows = np.ones((1000, 16), F32), np.arange(3, dtype=np.int32)
    work = least_work(lambda t, i: t[i], [table, rows])
    assert work.read == 3 * 16 * 4 + 3 * 4
    assert least_work(lambda t, i: t[i].sum() + t.sum(), [table, rows]).read == 64_000 + 12


@pytest.mark.parametrize("name", ["conv", "conv_first", "conv_dilated", "conv_grouped"])
def test_convolutions_have_the_flops_that_xla_counts(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    inputs = case.make(np.random.default_rng(0), case.sizes[0])
    analysis = jax.jit(case.function).lower(*inputs).cost_analysis()
    assert least_work(case.function, inputs).flops == pytest.approx(analysis["flops"], rel=1e-6)


def test_scans_are_linear() -> None:
    x = np.ones((4, 1000), F32)
    assert least_work(lambda x: jnp.cumsum(x, axis=1), [x]).flops == 4000


def test_arrays_of_any_type_survive(tmp_path: Path) -> None:
    arrays = [
        np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
        np.array(True),
        np.array([1 + 2j], np.complex64),
        np.zeros((0, 4), np.int32),
    ]
    write_arrays(tmp_path / "a.npz", arrays)
    back = read_arrays(tmp_path / "a.npz")
    for array, again in zip(arrays, back, strict=True):
        assert array.dtype == again.dtype
        np.testing.assert_array_equal(array, again)


def test_differences() -> None:
    a = np.array([1, 2, 4], F32)
    assert difference([a], [a.copy()], 1e-4) == ""
    assert "wrong result" in difference([np.array([1, 2, np.nan], F32)], [a], 1e-4)
    assert "want float32[2]" in difference([a], [a[:2]], 1e-4)
    assert "0 results" in difference([], [a], 1e-4)
    assert "wrong result" in difference([np.array([1])], [np.array([2])], 10)


def block(median: float) -> dict[str, float]:
    return {"median": median, "min": median * 0.9, "cores": 1.0, "faults": 0.0}


def row(program: str, ours: list[float], theirs: list[float], bound: float) -> report.Row:
    blocks = {"gristmill": [*map(block, ours)], "xla": [*map(block, theirs)]}
    return report.Row(
        program, {"gristmill": 0.1, "xla": 0.2}, blocks, {"memory": bound, "flops": bound / 2}
    )


def run(rows: list[report.Row], revisions: dict[str, str] | None = None) -> report.Run:
    columns = report.Columns(["gristmill", "xla"], revisions or {})
    return report.Run(rows, columns, {"fork/join": 2e-6}, 2, 0.5)


def test_ratios_are_taken_round_by_round() -> None:
    # Both get slower in the second and third round: the ratio stays.
    found = row("p", [1e-6, 2e-6, 4e-6], [2e-6, 4e-6, 8e-6], 0.5e-6)
    assert found.ratio("xla") == pytest.approx(2)
    assert found.over_bound("gristmill") == pytest.approx(4)
    assert found.noise("gristmill") == pytest.approx(4)
    assert found.ratio("numpy") is None
    assert row("tiny", [1e-6], [1e-6], 1e-9).over_bound("gristmill") is None


def test_the_summary_names_what_is_slower() -> None:
    rows = [row("won", [1e-6], [4e-6], 1e-6), row("lost", [2e-6], [1e-6], 1e-6)]
    text = report.summary(run(rows))
    assert "xla takes 1.41 times our time (geometric mean of 2)" in text
    assert "faster 1 times, slower 1 times: lost 0.50" in text
    assert "gristmill 1.41 (2), xla 2.00 (2)" in text
    assert "fork/join: 2.00 (bar 3)" in text
    assert "Other programs used 50%" in text
    table = report.markdown(run(rows)).splitlines()
    assert table[2].count("|") == table[3].count("|") == table[4].count("|")


def test_revisions_differ_only_beyond_the_noise() -> None:
    clear = row("clear", [1e-6] * 5, [1.2e-6, 1.21e-6, 1.19e-6, 1.2e-6, 1.2e-6], 1e-6)
    noisy = row("noisy", [1e-6] * 5, [0.8e-6, 1.5e-6, 1.3e-6, 0.9e-6, 1.4e-6], 1e-6)
    text = report.summary(run([clear, noisy], {"xla": "abc123"}))
    assert "clear: 1.20 times faster" in text
    assert "noisy:" not in text
    assert "abc123 takes" in text
    assert "beyond the noise" in report.summary(run([noisy], {"xla": "abc123"}))


def test_the_chart_has_a_point_for_each_figure() -> None:
    rows = [row("a<b", [1e-6], [4e-6], 1e-6), row("c", [2e-6], [1e-6], 1e-9)]
    root = ElementTree.fromstring(chart(run(rows)))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    titles = [c[0].text for c in circles if len(c)]
    assert titles == ["a<b: xla 4.00", "c: xla 0.50", "a<b: gristmill 1.00", "a<b: xla 4.00"]
    xs = [float(c.get("cx", 0)) for c in circles if len(c)]
    assert xs[0] > xs[1]


def test_a_short_run(tmp_path: Path) -> None:
    options = (
        "--only column_sum --peers numpy --rounds 2 --seconds 0.005 --json r.json --chart r.svg"
    )
    command = [sys.executable, str(FOLDER / "run.py"), *options.split()]
    out = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert out.returncode == 0, out.stderr
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["peers"] == ["gristmill", "numpy"]
    rows = {row["program"]: row for row in data["rows"]}
    assert set(rows) == {"column_sum 512", "column_sum 2048"}
    assert all(not row["errors"] and row["ratios"]["numpy"] > 0 for row in rows.values())
    assert data["fixed"]["threads that a small program starts"] == 0
    ElementTree.parse(tmp_path / "r.svg")


def test_kernels_grow_over_the_caches(tmp_path: Path) -> None:
    options = "--only column,matmul --most 1 --rounds 1 --seconds 0.001 --threads 2 --json s.json --markdown s.md"
    command = [sys.executable, str(FOLDER / "scaling.py"), *options.split()]
    out = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert out.returncode == 0, out.stderr
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert [row["level"] for row in rows] == ["L1", "L2", "L3", "memory"] * 2
    assert all(set(row["seconds"]) == {"1", "2"} for row in rows)
    assert all(0 < row["footprint"] <= 2 << 20 for row in rows)
    product = rows[4]
    n = round((product["work"] / 2) ** (1 / 3))
    assert product["footprint"] == 3 * 4 * n * n
    assert (tmp_path / "s.md").read_text().count("\n|") == len(rows) + 1


def test_another_revision_is_imported_from_its_own_checkout() -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--compare", "HEAD", "--only", "nothing"]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    assert "HEAD compile" in out.stdout
    listing = ["git", "-C", str(FOLDER), "worktree", "list"]
    trees = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert "/tree " not in trees


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--peers", "abacus"], "there is no peer 'abacus'; peers: gristmill, xla"),
        (["--compare", "no-such-revision", "--only", "nothing"], "--compare no-such-revision: "),
        (["--rounds", "0"], "must be at least 1"),
    ],
)
def test_mistakes_are_named(arguments: list[str], text: str) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode != 0
    assert text in out.stderr
    assert "Traceback" not in out.stderr
