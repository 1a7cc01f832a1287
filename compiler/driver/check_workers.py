# SPDX-License-Identifier: Apache-2.0
"""Runs modules in worker processes, so that a crash or a hang costs one module and not the run."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from gristmill.compiler.driver import custom_calls
from gristmill.compiler.driver.check_runner import Outcome, check_file

CheckFunction = Callable[[Path], Outcome]


def check_in_process(paths: Sequence[Path], check: CheckFunction = check_file) -> Iterator[Outcome]:
    """Run the modules one after another in this process."""
    for path in paths:
        yield check(path)


def check_parallel(
    paths: Sequence[Path],
    jobs: int,
    timeout: float,
    check: CheckFunction = check_file,
    modules: Sequence[str] = (),
) -> Iterator[Outcome]:
    """Run the modules in ``jobs`` processes; outcomes arrive in the order they finish.

    A worker that dies, or works on one module for more than ``timeout`` seconds, is replaced.
    ``check`` does the work; it must be importable by name. Every worker imports ``modules`` first, for the custom
    calls that they register.
    """
    pending = list(reversed(paths))
    workers: list[_Worker] = []
    try:
        while pending or workers:
            while pending and len(workers) < jobs:
                workers.append(_Worker.start(pending.pop(), check, modules))
            ready = wait([worker.connection for worker in workers], timeout=1.0)
            for worker in list(workers):
                outcome = worker.outcome(worker.connection in ready, timeout)
                if outcome is None:
                    continue
                yield outcome
                if not worker.process.is_alive() or not pending:
                    worker.stop()
                    workers.remove(worker)
                else:
                    worker.give(pending.pop())
    finally:
        for worker in workers:
            worker.stop()


def serve(connection: Connection, check: CheckFunction, modules: Sequence[str]) -> None:
    """The worker's loop: a path in, an outcome out, until ``None``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    custom_calls.register(modules)
    while (path := connection.recv()) is not None:
        connection.send(check(path))


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    path: Path
    since: float

    @staticmethod
    def start(path: Path, check: CheckFunction, modules: Sequence[str]) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, check, modules), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours, path, 0.0)
        worker.give(path)
        return worker

    def give(self, path: Path) -> None:
        self.path = path
        self.since = time.monotonic()
        self.connection.send(path)

    def outcome(self, ready: bool, timeout: float) -> Outcome | None:
        """The finished module's outcome, a failure if the worker died or hangs, else ``None``."""
        elapsed = time.monotonic() - self.since
        if ready:
            try:
                return self.connection.recv()
            except (EOFError, OSError):
                self.process.join()
                how = _death(self.process.exitcode)
                return Outcome(str(self.path), (f"crash: {how}",), f"the process {how}", elapsed)
        if elapsed > timeout:
            self.process.kill()
            self.process.join()
            text = f"no result after {timeout:.0f} s"
            return Outcome(str(self.path), ("timeout",), text, elapsed)
        return None

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"died of {signal.Signals(-exitcode).name}"
    return f"exited with code {exitcode}"
