# SPDX-License-Identifier: Apache-2.0
"""Where the threads of a parallel execution must meet.

Every thread runs the whole program: a parallel phase is split over the threads, a serial one runs on thread 0.
A barrier is placed before a phase exactly when it touches bytes that an access since the last barrier, possibly by
another thread, touched in a conflicting way (one of the two writes). So independent kernels need none between
them, and neither do consecutive serial phases. Predicates and selectors are read by every thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gristmill.compiler.emitters.kernel import Phase
from gristmill.compiler.program.tree import Branch, Buffer, Copy, Launch, Loop, Node

#: Copies of at least this many bytes are split over the threads.
PARALLEL_COPY_BYTES = 256 * 1024

#: (buffer, whether it is written, whether every thread may be the one that does it).
_Access = tuple[Buffer, bool, bool]
_State = set[_Access]


def is_parallel(phase: Phase) -> bool:
    """Whether the phase's tasks are split over threads."""
    return phase.parallel and phase.tasks > 1


def copies_in_parallel(copy: Copy) -> bool:
    """Whether the copy is split over threads."""
    return copy.source.nbytes >= PARALLEL_COPY_BYTES


def is_serial(node: Node) -> bool:
    """Whether all of the node runs on thread 0. After an external call every thread asks whether it failed."""
    if isinstance(node, Launch):
        return node.spec.external is None and not any(map(is_parallel, node.phases))
    if isinstance(node, Copy):
        return not copies_in_parallel(node)
    return all(is_serial(inner) for inner in _inner(node))


def place_barriers(nodes: list[Node]) -> None:
    """Set the barrier flags of a whole program's tree."""
    _sequence(nodes, set())


def _inner(node: Loop | Branch) -> list[Node]:
    if isinstance(node, Loop):
        return [*node.cond, *node.body]
    return [inner for branch in node.branches for inner in branch]


def _sequence(nodes: list[Node], state: _State) -> _State:
    for node in nodes:
        state = _node(node, state)
    return state


def _node(node: Node, state: _State) -> _State:
    """Place the barriers of one node; returns what was accessed since the last barrier."""
    if isinstance(node, Launch):
        node.barriers = []
        for phase in node.phases:
            accesses = set(_launch_accesses(node, is_parallel(phase)))
            barrier, state = _step(accesses, state)
            node.barriers.append(barrier)
        return (
            set() if node.spec.external is not None else state
        )  # threads meet after external calls
    if isinstance(node, Copy):
        accesses = set(_copy_accesses(node, copies_in_parallel(node)))
        node.barrier, state = _step(accesses, state)
        return state
    if is_serial(node):
        node.barrier, state = _step(set(_all_accesses([node])), state)
        return state
    return _loop(node, state) if isinstance(node, Loop) else _branch(node, state)


def _loop(node: Loop, state: _State) -> _State:
    entry = set(state)
    while True:
        node.barrier, leave = _step({(node.predicate, False, True)}, _sequence(node.cond, entry))
        after = _sequence(node.body, leave)
        if after <= entry:
            return leave
        entry = entry | after


def _branch(node: Branch, state: _State) -> _State:
    node.barrier, state = _step({(node.selector, False, True)}, state)
    after: _State = set()
    for branch in node.branches:
        after |= _sequence(branch, state)
    return after


def _step(accesses: _State, state: _State) -> tuple[bool, _State]:
    """Whether a barrier must precede ``accesses``, and the state after them."""
    accesses = {access for access in accesses if access[0].root != "constant"}
    if any(_conflict(new, old) for new in accesses for old in state):
        return True, accesses
    return False, state | accesses


def _conflict(new: _Access, old: _Access) -> bool:
    return (
        (new[1] or old[1]) and (new[2] or old[2]) and new[0].overlaps(old[0])
    )  # two accesses by thread 0 are in order


def _launch_accesses(node: Launch, parallel: bool) -> Iterator[_Access]:
    """A phase reads arguments and writes, or reads back, results and workspace."""
    for buffer in node.arguments:
        yield buffer, False, parallel
    for buffer in node.results:
        yield buffer, True, parallel
    if node.workspace is not None:
        yield node.workspace, True, parallel


def _copy_accesses(node: Copy, parallel: bool) -> Iterator[_Access]:
    yield node.source, False, parallel
    yield node.destination, True, parallel


def _all_accesses(nodes: Iterable[Node]) -> Iterator[_Access]:
    """Every access of nodes that run on thread 0."""
    for node in nodes:
        if isinstance(node, Launch):
            yield from _launch_accesses(node, False)
        elif isinstance(node, Copy):
            yield from _copy_accesses(node, False)
        else:
            yield (node.predicate if isinstance(node, Loop) else node.selector), False, False
            yield from _all_accesses(_inner(node))
