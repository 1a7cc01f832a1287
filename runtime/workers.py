# SPDX-License-Identifier: Apache-2.0
"""A few threads that run short functions, for streams, large copies and staging."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable


class WorkerPool:
    """Daemon threads that run functions first come, first served; started when first needed.

    Where the system gives the process no more threads, those there are do the work, or the caller does. In a
    forked child a pool starts threads anew; what was queued or running at the fork is its parent's.
    """

    def __init__(self, size: int, name: str = "gristmill-worker") -> None:
        self.name = name
        self.size = size
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: Threads that wait or start, less what is queued for them. Counted when work is given, not when it
        #: is taken: until then a waiting thread would seem free for more.
        self._free = 0
        self._closed = False
        # Re-entrant: the garbage collector may submit while this thread is in here.
        self._lock = threading.RLock()
        _pools.add(self)

    def submit(self, function: Callable[[], None]) -> None:
        """Run ``function`` on a worker soon; at once when the pool is closed or has no threads. It must not raise.

        After an interrupt it may have been given to a worker or not; the pool works on.
        """
        with self._lock:
            if not self._closed:
                if self._free < 1 and len(self._threads) < self.size:
                    self._start()
                if self._threads:
                    self._free -= 1
                    self._queue.put(function)
                    return
        function()

    def _start(self) -> None:
        name = f"{self.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        counted = False
        try:
            self._threads.append(thread)
            self._free += 1
            counted = True
            thread.start()
        except BaseException as error:
            # An interrupt may come when the thread has started: one that is not in the list ends itself.
            self._free -= counted
            if thread in self._threads:
                self._threads.remove(thread)
            # The limit on threads, or the interpreter's end.
            if not isinstance(error, RuntimeError):
                raise

    def _run(self) -> None:
        with self._lock:
            if threading.current_thread() not in self._threads:
                return
        while True:
            function = self._queue.get()
            if function is None:
                return
            function()
            del function  # its closure must not live until the next one comes
            with self._lock:
                self._free += 1

    def close(self, *, wait: bool = True) -> None:
        """End the threads after what was submitted; ``wait`` for them, except for the calling one."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()

    def forked(self) -> None:
        """In the child of a fork: its parent's threads are not there."""
        self._queue = queue.SimpleQueue()
        self._threads.clear()
        self._free = 0
        self._lock = threading.RLock()


#: For forks; a pool is not kept by it.
_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in tuple(_pools):
        pool.forked()


os.register_at_fork(after_in_child=_after_fork)
