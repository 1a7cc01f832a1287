# SPDX-License-Identifier: Apache-2.0
"""Trial runs in a child process, for readers that damaged input can crash.

MLIR's bytecode readers trust their input in places: a flipped bit can end the process, which no ``except`` catches. So
a binary module is first read in a forked child; only when that survives is it read here. Costs one more reading and
a few milliseconds; ``GRISTMILL_TRUST_INPUT=1`` skips it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import warnings
from collections.abc import Callable

from gristmill.errors import ParseError
from gristmill.runtime import knobs

#: Seconds after which a reader is taken to hang; then seconds per byte read.
_PATIENCE = 20.0
_SECONDS_PER_BYTE = 1e-7


def require_survival(read: Callable[[], object], nbytes: int, name: str) -> None:
    """Raise ``ParseError`` when reading the binary module ``name`` crashes or hangs a child process."""
    if knobs.TRUST_INPUT.get() or survives(read, nbytes):
        return
    raise ParseError(
        "the binary module is damaged: reading it crashes or hangs MLIR; export it again",
        location=name,
    )


def survives(read: Callable[[], object], nbytes: int) -> bool:
    """Whether ``read`` comes back in a child process, with a result or an exception, in a time fit for ``nbytes``."""
    with warnings.catch_warnings():
        # JAX warns about any fork; this child runs nothing but the reader and ends without cleaning up.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        _run(read)
    deadline = time.monotonic() + _PATIENCE + nbytes * _SECONDS_PER_BYTE
    pause = 0.0005
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run(read: Callable[[], object]) -> None:
    """The child: silent, and gone without running anyone's exit handlers."""
    try:
        faulthandler.disable()  # a crash here is an answer, not a report
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        read()
    except BaseException:  # an error is an answer: the parent will meet it too and report it
        pass
    finally:
        os._exit(0)
