# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from programs import parallel_program

from gristmill.errors import InputError
from gristmill.runtime import knobs, threads
from gristmill.runtime.executable import Executable

SCRIPT = """
import os
from gristmill.runtime import threads
print(threads.load_openmp().kmp_get_blocktime(), os.environ.get("KMP_BLOCKTIME"))
"""


def run(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_count_comes_from_call_then_process_then_knob_then_cores() -> None:
    assert threads.num_threads() == threads.usable_cores()
    threads.set_num_threads(5)
    assert threads.num_threads() == 5
    threads.set_num_threads(None)
    script = "from gristmill.runtime import threads; print(threads.num_threads())"
    assert run(script, GRISTMILL_NUM_THREADS="7") == "7"


def test_malformed_knobs_are_named() -> None:
    with (
        knobs.NUM_THREADS.scope("many"),
        pytest.raises(InputError, match="GRISTMILL_NUM_THREADS='many'"),
    ):
        knobs.NUM_THREADS.get()
    with (
        knobs.NUM_THREADS.scope("0"),
        pytest.raises(InputError, match="must be at least 1"),
    ):
        knobs.NUM_THREADS.get()
    assert len({k.name for k in knobs.KNOBS}) == len(knobs.KNOBS)
    assert all(k.doc for k in knobs.KNOBS)
    foreign = [k.name for k in knobs.KNOBS if not k.name.startswith("GRISTMILL_")]
    assert foreign == ["XDG_CACHE_HOME"]


def test_idle_workers_spin_briefly_unless_the_user_says_otherwise() -> None:
    assert run(SCRIPT) == "1 None"
    assert run(SCRIPT, GRISTMILL_SPIN_MS="3") == "3 None"
    assert run(SCRIPT, KMP_BLOCKTIME="200") == "200 200"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_parallel_program_runs_on_every_thread(count: int) -> None:
    with Executable(parallel_program()) as executable:
        for _ in range(20):
            counts = executable(np.zeros(1, np.float32), threads=count)
            assert isinstance(counts, np.ndarray)
            np.testing.assert_array_equal(counts[:count], np.arange(1, count + 1))


def test_a_parallel_program_from_several_python_threads() -> None:
    faults: list[int] = []
    with Executable(parallel_program()) as executable:

        def work() -> None:
            for _ in range(50):
                if list(executable(np.zeros(1, np.float32), threads=2)[:2]) != [1, 2]:
                    faults.append(1)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not faults


def test_another_packages_openmp_runtime_is_shared(tmp_path: Path) -> None:
    wheel = metadata.distribution("cmeel-libomp").locate_file("cmeel.prefix/lib/libomp.so")
    copy = tmp_path / "libiomp5.so"
    shutil.copy(str(wheel), copy)
    script = (
        "import ctypes\n"
        f"ctypes.CDLL({str(copy)!r}).omp_get_max_threads()\n"
        "from gristmill.runtime import threads\n"
        "print(threads.load_openmp()._name)\n"
    )
    assert run(script) == str(copy)
