# SPDX-License-Identifier: Apache-2.0
"""What happens before what: the order that streams, events and the host give to operations.

Every event, operation and wait is a *node* with the nodes before it. A node gets its clock once all of these
have theirs, so work that waits for an event of which nothing is known yet (a buffer that is still to be
filled) is looked at when that event completes, whenever it was given.
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from gristmill.runtime import observer
from gristmill.runtime.debug.clocks import Clock, Timelines, join
from gristmill.runtime.debug.shadow import Use
from gristmill.runtime.debug.sites import Site, caller, is_user_file, is_user_function
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event, EventState
from gristmill.runtime.foreign import ForeignMemory
from gristmill.runtime.observer import Access, Operation

#: So many things are noted at most before they are worked out. Each takes about 300 bytes.
MOST_NOTED = 100_000


class _Node:
    """A point in the order; ``clock`` is None until everything before it is known.

    Most nodes are of operations that follow nothing pending: they take the values here.
    """

    clock: Clock | None = None
    start: Clock = {}  # noqa: RUF012 - replaced, never changed
    before: Sequence[_Node] = ()
    #: How many of ``before`` it is not run without, if they fail; they come first.
    depends = 0
    failed = False
    followers: Sequence[_Node] = ()
    missing = 0
    #: Others will say when it completes, and after what.
    promised = False
    #: What the host had seen when it was promised: the work to fulfil it was asked for then.
    origin: Clock | None = None
    use: Use | None = None
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    stream: int | None = None
    carrier: int | None = None
    site: Site | None = None


class Order(observer.Observer):
    """Follows the order of all operations while it is installed."""

    #: Of all instances, since they share the notes of events. Re-entrant: the garbage collector may close things.
    _lock = threading.RLock()

    def __init__(self) -> None:
        self._timelines = Timelines()
        self._tails: dict[int, _Node] = {}
        #: What a stream has carried outside its order: over when the stream is idle.
        self._carried: dict[int, Clock] = {}
        #: What was noted and is to be worked out before anything else: small copies, waits and ends of memory.
        self._log: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    @abstractmethod
    def _check(
        self, use: Use, reads: Sequence[Access], writes: Sequence[Access], clock: Clock
    ) -> None:
        """Hook: ``use`` takes its place in the order; it comes after what ``clock`` knows."""

    @abstractmethod
    def _check_move(self, use: Use, target: int, source: int, nbytes: int, clock: Clock) -> None:
        """Hook: the same for a copy of ``nbytes > 0``."""

    @abstractmethod
    def _watch(self, lent: ForeignMemory) -> bool:
        """Hook: call :meth:`ended` when this memory ends, which must not wait; False: nobody can tell."""

    @abstractmethod
    def _end(self, start: int, stop: int, serial: int) -> None:
        """Hook: this memory has ended."""

    # Operations

    def submitted(self, operation: Operation) -> None:
        """See ``Observer.submitted``."""
        site = caller()
        done = [event.state is not EventState.PENDING for event in operation.waits]
        poisoned = any(event.error is not None for event in operation.waits)
        with self._lock:
            self._catch_up()
            self._submit(operation, site, done, poisoned)

    def _submit(
        self, operation: Operation, site: Site | None, done: list[bool], poisoned: bool
    ) -> None:
        node = self._node(operation.completion)
        if node is not None and node.use is not None:
            self._extend(node, operation)
            return
        if node is None or (node.followers and not node.promised):
            node = self._note(operation.completion, _Node())
        node.clock = None
        node.promised = False
        stream = operation.stream
        place = "events alone" if stream is None else str(stream.name)
        node.use = Use(operation.name, place, site)
        node.reads += operation.reads
        node.writes += operation.writes
        node.start = self._timelines.host
        waits = zip(operation.waits, done, strict=True)
        found = [self._awaited(event, is_done) for event, is_done in waits]
        before: list[_Node | None] = [other for other in found if other is not None]
        node.depends = len(before)
        node.failed = poisoned
        before += self._causes(node)
        if stream is not None:
            node.stream = id(stream)
            before.append(self._tails.get(id(stream)))
            self._tails[id(stream)] = node
        elif operation.carrier is not None:
            node.carrier = id(operation.carrier)
        self._place(node, before)

    def moved(
        self,
        event: Event,
        target: int,
        source: int,
        nbytes: int,
        stream: Stream | None,
        carrier: Stream | None,
        waits: Sequence[Event],
        lent: ForeignMemory | None,
    ) -> None:
        """See ``Observer.moved``: only noted for now, as that takes less than the copy."""
        watched = lent is None or self._watch(lent)
        if observer.causes():
            super().moved(event, target, source, nbytes, stream, carrier, waits, lent)
        else:
            move = (event, target, source, nbytes, stream, carrier, waits, caller(3))
            self._log.append((self._move, move))
        if lent is not None and not watched:
            self.ended(lent.address, lent.address + lent.nbytes, 0)
        if len(self._log) > MOST_NOTED:
            self.catch_up()

    def ended(self, start: int, stop: int, serial: int) -> None:
        """Memory was given back. May be called by the garbage collector, at any time."""
        self._log.append((self._end, (start, stop, serial)))

    def catch_up(self) -> None:
        """Work out what was only noted so far."""
        with self._lock:
            self._catch_up()

    def _catch_up(self) -> None:
        log = self._log
        while log:
            action, arguments = log.popleft()
            action(*arguments)

    def _move(
        self,
        event: Event,
        target: int,
        source: int,
        nbytes: int,
        stream: Stream | None,
        carrier: Stream | None,
        waits: Sequence[Event],
        site: Site | None,
    ) -> None:
        """What :meth:`submitted` does, in the case that nothing pending is before it."""
        before = self._before(waits, stream)
        if before is None:
            reads, writes = (Access(source, nbytes),), (Access(target, nbytes),)
            operation = Operation(event.name, stream, event, tuple(waits), reads, writes, carrier)
            self._submit(operation, site, [True] * len(waits), False)
            return
        use = Use(event.name, "events alone" if stream is None else stream.name, site)
        timelines = self._timelines
        clock = timelines.host.copy()
        for other in before:
            join(clock, other)
        if stream is not None:
            use.timeline, use.tick = timelines.tick_stream(id(stream), clock)
        elif before:
            use.timeline, use.tick = timelines.tick_unordered(clock, None)
        else:
            use.timeline, use.tick = timelines.tick_after_host(clock)
        self._check_move(use, target, source, nbytes, clock)
        node = self._note(event, _Node())
        node.clock, node.use = clock, use
        if stream is not None:
            self._tails[id(stream)] = node
        elif carrier is not None:
            carried = self._carried.setdefault(id(carrier), {})
            join(carried, clock)

    def _before(self, waits: Sequence[Event], stream: Stream | None) -> list[Clock] | None:
        """The clocks that a move comes after, beside the host's; None: that takes a closer look."""
        nodes = [self._node(event) for event in waits]
        if stream is not None:
            nodes.append(self._tails.get(id(stream)))
        clocks: list[Clock] = []
        for node in nodes:
            if node is not None:
                if node.clock is None or node.failed:
                    return None
                clocks.append(node.clock)
        return clocks

    def _causes(self, node: _Node) -> list[_Node]:
        """What the thread's code comes after, for an operation that it gives."""
        found: list[_Node] = []
        for event in observer.causes():
            cause = self._node(event)
            if cause is None:
                continue
            if cause.promised and cause.origin is not None:
                node.start = cause.origin
                assert node.use is not None
                node.use.site = cause.site
            else:
                found.append(cause)
        return found

    def _extend(self, node: _Node, operation: Operation) -> None:
        """More is known of an operation."""
        if node.clock is None:
            node.reads += operation.reads
            node.writes += operation.writes
        else:
            assert node.use is not None
            self._check(node.use, operation.reads, operation.writes, node.clock)

    def _host_operation(self, reads: Sequence[Access], writes: Sequence[Access]) -> None:
        """The calling thread touches memory now."""
        use = Use("host access", f"thread {threading.current_thread().name}", caller())
        with self._lock:
            self._catch_up()
            use.timeline, use.tick = self._timelines.tick_host()
            clock = dict(self._timelines.host)
            for event in observer.causes():
                self._join(clock, self._node(event))
            self._check(use, reads, writes, clock)

    # Streams

    def stream_waits(self, stream: Stream, event: Event) -> None:
        """See ``Observer.stream_waits``."""
        done = event.state is not EventState.PENDING
        with self._lock:
            self._catch_up()
            node = _Node()
            before = [self._tails.get(id(stream)), self._awaited(event, done)]
            self._tails[id(stream)] = node
            self._place(node, before)

    def recorded(self, stream: Stream, event: Event) -> None:
        """See ``Observer.recorded``."""
        with self._lock:
            self._catch_up()
            node = self._note(event, _Node())
            node.start = dict(self._carried.get(id(stream), {}))
            self._place(node, [self._tails.get(id(stream))])

    def closed(self, resource: object) -> None:
        """See ``Observer.closed``; a stream that closes has ended all its work."""
        if not isinstance(resource, Stream):
            return
        with self._lock:
            self._catch_up()
            tail = self._tails.pop(id(resource), None)
            clock = self._carried.pop(id(resource), {})
            self._join(clock, tail)
            self._timelines.host_sees(clock)
            self._timelines.end_stream(id(resource))

    # Events

    def joined(self, event: Event, sources: Sequence[Event]) -> None:
        """See ``Observer.joined``."""
        done = [source.state is not EventState.PENDING for source in sources]
        with self._lock:
            self._catch_up()
            node = self._promise(event)
            if node.origin is None:
                node.origin, node.site = self._timelines.host, caller()
            for source, is_done in zip(sources, done, strict=True):
                before = self._awaited(source, is_done)
                if before is None:
                    continue
                if before.clock is None:
                    node.before = (*node.before, before)
                else:
                    node.start = dict(node.start)
                    join(node.start, before.clock)

    def completed(self, event: Event, error: BaseException | None) -> None:
        """See ``Observer.completed``."""
        with self._lock:
            self._catch_up()
            node = self._node(event)
            if node is None:
                node = self._note(event, _Node())
                if (
                    not observer.causes()
                ):  # the program completes it, or its operation is told of later
                    node.clock, node.failed = self._timelines.host, error is not None
                    return
            elif not node.promised:
                return
            node.failed = error is not None
            found = [self._node(cause) for cause in observer.causes()]
            causes = [cause for cause in found if cause is not None and cause.clock is not None]
            if not node.before and not node.start and not causes:
                node.start = self._timelines.host  # the program completes it itself
            node.promised = False
            before, node.before = node.before, ()
            self._place(node, [*before, *causes])

    def called(self, event: Event, callback: Callable[[Event], None]) -> None:
        """See ``Observer.called``."""
        if is_user_function(callback):
            self.waited(event)

    def waited(self, event: Event) -> None:
        """See ``Observer.waited``."""
        self._log.append((self._see, (event,)))

    def _see(self, event: Event) -> None:
        node = self._node(event)
        if node is None:
            return
        if node.clock is not None:
            self._timelines.host_sees(node.clock)
            return
        clock = dict(node.start)
        for before in node.before:
            self._join(clock, before)
        self._timelines.host_sees(clock)

    def polled(self, event: Event) -> None:
        """See ``Observer.polled``; only the program's own questions count."""
        # Two frames up is whoever asked ``done``.
        frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        if frame.f_code.co_name == "ok" and frame.f_back is not None:
            frame = frame.f_back
        if is_user_file(frame.f_code.co_filename):
            self.waited(event)

    # Nodes

    def _node(self, event: Event) -> _Node | None:
        notes = event.notes
        return None if notes is None else cast("_Node | None", notes.get(self))

    def _note(self, event: Event, node: _Node) -> _Node:
        if event.notes is None:
            event.notes = {}
        event.notes[self] = node
        return node

    def _awaited(self, event: Event, done: bool) -> _Node | None:
        """The node of an event to wait for; None for one that was done before all this."""
        node = self._node(event)
        return node if node is not None or done else self._promise(event)

    def _promise(self, event: Event) -> _Node:
        node = self._node(event)
        if node is None:
            node = self._note(event, _Node())
            node.promised = True
        return node

    def _place(self, node: _Node, before: Iterable[_Node | None]) -> None:
        """Put ``node`` after the nodes ``before`` it, at once or as soon as these are known."""
        known = [other for other in before if other is not None and other is not node]
        node.before = (*node.before, *known)
        for other in known:
            if other.clock is None:
                other.followers = [*other.followers, node]
                node.missing += 1
        if node.missing == 0:
            self._resolve(node)

    def _resolve(self, node: _Node) -> None:
        ready = [node]
        while ready:
            node = ready.pop()
            clock = dict(node.start)
            for other in node.before:
                if other.clock is not None and other.clock is not node.start:
                    join(clock, other.clock)
            use = node.use
            if use is not None:
                if node.stream is not None:
                    point = self._timelines.tick_stream(node.stream, clock)
                else:
                    point = self._timelines.tick_unordered(clock, _hint(node))
                use.timeline, use.tick = point
                node.failed = node.failed or any(o.failed for o in node.before[: node.depends])
                if not node.failed:
                    self._check(use, node.reads, node.writes, clock)
                if node.carrier is not None:
                    join(self._carried.setdefault(node.carrier, {}), clock)
            node.clock = clock
            node.before = ()
            followers, node.followers = node.followers, ()
            for follower in followers:
                follower.missing -= 1
                if follower.missing == 0:
                    ready.append(follower)

    def _join(self, clock: Clock, node: _Node | None) -> None:
        if node is not None and node.clock is not None:
            join(clock, node.clock)


def _hint(node: _Node) -> int | None:
    """The timeline of an operation before this one."""
    return next((other.use.timeline for other in node.before if other.use is not None), None)
