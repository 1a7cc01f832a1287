# SPDX-License-Identifier: Apache-2.0
"""A few threads that run short functions, for streams, large copies and staging."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class WorkerPool:
    """Daemon threads that run functions first come, first served; started when first needed."""

    def __init__(self, size: int, name: str = "gristmill-worker") -> None:
        self.name = name
        self.size = size
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], None]) -> None:
        """Run ``function`` on a worker soon; it must not raise."""
        with self._lock:
            if self._idle < self._queue.qsize() + 1 and len(self._threads) < self.size:
                name = f"{self.name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put(function)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            function = self._queue.get()
            with self._lock:
                self._idle -= 1
            if function is None:
                return
            function()
            del function  # its closure must not live until the next one comes

    def close(self) -> None:
        """End the threads after what was submitted; waits for them unless called on one of them."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()
