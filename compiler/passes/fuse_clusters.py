# SPDX-License-Identifier: Apache-2.0
"""Which operations are compiled together: clusters over a :class:`~gristmill.compiler.graph.Graph`.

A cluster grows from one root (its last operation) towards its operands. Every member is described by the *symbolic
index* at which it is read when the cluster's element ``(0, 1, …)`` is computed: one entry per dimension, the number
of a domain dimension, :data:`ZERO` for a unit dimension, or :data:`OPAQUE` and less for anything else, a number of its
own for every way of computing it. The symbolic index decides what may join:

* elementwise and data-movement operations join at any index, unless that would compute something dear many times;
* a ``reduce`` of minor dimensions joins where it is read once per row (index = a prefix of the domain): a *row*
  cluster;
* one ``dot_general`` joins where it is read at the domain's own index: a *dot* cluster with an epilogue.

An operation with users outside the cluster may still join, as a further result, where it is read at the domain's own
index and no path leads from those users back into the cluster. Data movement is free to be computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.compiler.emitters.cpu.conv_problem import is_direct
from gristmill.compiler.emitters.cpu.cumulative import scanned_dimension
from gristmill.compiler.emitters.cpu.frame import node_cost
from gristmill.compiler.emitters.cpu.pooling import is_pooling
from gristmill.compiler.emitters.cpu.reduction import reduced_groups
from gristmill.compiler.emitters.elemental.movement import reshape_groups
from gristmill.compiler.graph import Graph, Node, is_uniform
from gristmill.dialects import hlo

ZERO = -1
OPAQUE = -2

SymbolicIndex = tuple[int, ...]

#: Element cost (tenths of a nanosecond) from which a value is not computed more than once.
DEAR = 4
#: Elements of a concatenation up to which each may ask which part it is in.
MAX_BRANCHING = 256
#: Members of one cluster at most, which bounds kernel size and compile time.
MAX_MEMBERS = 400
#: Places at which one member may be read, as it is emitted for each. Without a bound they double with every slice or
#: concatenation on the way: XLA's fusion has one of 15 for that reason.
MAX_PLACES = 16
#: Cost from which a value is computed on its own and not again at each place where a cluster reads it, in tenths of a
#: nanosecond: storing it and reading it back, not much of which is in the first-level cache, costs as much.
MAX_RECOMPUTED = 24
#: A reduction of everything is worth its own parallel kernel from this many elements.
MAX_SINGLE_ROW = 16384

_MOVEMENT = frozenset("broadcast_in_dim reshape slice reverse transpose iota constant".split())
_LOOP_ONLY = frozenset("pad concatenate dynamic_slice gather bitcast_convert map".split())
#: Operations that always start a cluster of their own kind.
ROOT_KINDS = {
    "dynamic_update_slice": "update",
    "scatter": "scatter",
    "sort": "sort",
    "select_and_scatter": "select_and_scatter",
    "triangular_solve": "triangular_solve",
    "cholesky": "cholesky",
    "rng_bit_generator": "rng_bit_generator",
    "rng": "rng",
    "fft": "fft",
    "lapack": "lapack",
    "concatenate": "concatenate",
    "convolution": "loop",
    "reduce_window": "loop",
}
#: Cluster kinds that absorb data movement only: their tasks are too few to compute operands in.
MOVEMENT_ONLY = frozenset(
    "sort select_and_scatter triangular_solve cholesky rng_bit_generator rng fft".split()
)
#: Operations that read an operand as a whole; it cannot be computed inside their kernel.
WHOLE_READERS = frozenset(
    "dot_general scatter convolution reduce_window dynamic_update_slice lapack".split()
)
#: Operations whose kernels need the buffer of every result, read or not.
WHOLE_WRITERS = ("lapack", "scatter")
#: Operations that stay at the top level, outside every kernel.
CONTROL = frozenset("parameter while if case constant func.call custom_call".split())


#: Operations whose value an emitter computes for one place of the domain and then has at hand.
_BOUND = ("reduce", "dot_general")


def is_elementwise(node: Node) -> bool:
    """Whether the node's op computes each element from elements at the same index."""
    return node.op is not None and hlo.has_trait(node.op, "elementwise")


def is_splat(node: Node) -> bool:
    """Whether the node is an inline constant with one value."""
    data = node.constant
    return data is not None and is_uniform(data)


def is_free(node: Node) -> bool:
    """Whether computing the node again in another kernel costs nothing but reads."""
    if node.kind == "constant":
        return is_splat(node)
    return node.kind in _MOVEMENT


@dataclass
class Cluster:
    """Operations compiled into one kernel.

    Attributes:
        root: the last member.
        kind: emitter kind.
        domain: sizes of the domain's dimensions (unit dimensions have none).
        split: number of leading domain dimensions that are rows, once a reduction has joined.
        index: the symbolic index each member joined at.
        reads: every symbolic index each member is read at.
        roots: the results of the root's op that are read at all.
        outputs: members read outside, besides the roots.
        has_dot: whether a ``dot_general`` is a member.
    """

    root: Node
    kind: str = "loop"
    domain: list[int] = field(default_factory=list[int])
    split: int | None = None
    index: dict[Node, SymbolicIndex] = field(default_factory=dict[Node, SymbolicIndex])
    reads: dict[Node, set[SymbolicIndex]] = field(default_factory=dict[Node, set[SymbolicIndex]])
    roots: list[Node] = field(default_factory=list[Node])
    outputs: list[Node] = field(default_factory=list[Node])
    has_dot: bool = False

    @property
    def size(self) -> int:
        """Elements of the domain."""
        return math.prod(self.domain)

    def members(self) -> list[Node]:
        """Members in program order."""
        return sorted(self.index, key=lambda n: n.order)

    def results(self) -> list[Node]:
        """Values computed for others: further outputs in program order, then the root's."""
        return [*sorted(self.outputs, key=lambda n: n.order), *self.roots]

    def is_identity(self, index: SymbolicIndex) -> bool:
        """Whether ``index`` is the domain's own: every dimension once, in order."""
        real = [i for i in index if i != ZERO]
        return real == list(range(len(self.domain)))


def operand_indices(node: Node, index: SymbolicIndex) -> list[SymbolicIndex]:
    """The symbolic indices at which ``node``, read at ``index``, reads its operands (not for reductions)."""
    if is_elementwise(node) or node.kind == "optimization_barrier":
        return [index if x.shape == node.shape else () for x in node.operands]
    if node.kind == "map":
        return [index if x.shape == node.shape else opaque(x) for x in node.operands]
    if node.kind == "broadcast_in_dim":
        operand = node.operands[0]
        where = node.dims("dimensions")
        return [
            tuple(ZERO if operand.shape[d] == 1 else index[t] for d, t in enumerate(where)),
        ]
    if node.kind == "transpose":
        result = [ZERO] * len(index)
        for position, dimension in enumerate(node.dims("permutation")):
            result[dimension] = index[position]
        return [tuple(result)]
    if node.kind == "reshape":
        return [_reshape(node.operands[0].shape, node.shape, index)]
    if node.kind == "slice":
        full = zip(index, node.operands[0].shape, node.shape, strict=True)
        return [tuple(i if a == b else (ZERO if a == 1 else OPAQUE) for i, a, b in full)]
    return [opaque(x) for x in node.operands]


def opaque(node: Node) -> SymbolicIndex:
    """The index of a node read in a way that is not followed."""
    return tuple(ZERO if size == 1 else OPAQUE for size in node.shape)


def _reshape(source: Sequence[int], target: Sequence[int], index: SymbolicIndex) -> SymbolicIndex:
    if 0 in source:
        return tuple(ZERO if size == 1 else OPAQUE for size in source)
    result = [ZERO] * len(source)
    for from_dims, to_dims in reshape_groups(source, target):
        from_real = [d for d in from_dims if source[d] != 1]
        to_real = [d for d in to_dims if target[d] != 1]
        if len(from_real) == 1 and len(to_real) == 1:
            result[from_real[0]] = index[to_real[0]]
        else:
            for d in from_real:
                result[d] = OPAQUE
    return tuple(result)


class Clustering:
    """Grows clusters over one graph; see the module docstring."""

    def __init__(self, graph: Graph, functions: Mapping[str, Graph]):
        self.graph = graph
        self._functions = functions
        self.clusters: list[Cluster] = []
        self.cluster_of: dict[Node, Cluster] = {}
        #: Free operations that several clusters may compute, and the clusters that do.
        self._shared: dict[Node, list[Cluster]] = {}
        self._live_results = set(graph.results)
        #: Place of the root looked at: operations before it are not clustered yet, unless they joined a later one.
        self._front = len(graph.nodes)
        #: Numbers of components that are not followed, by what computes them.
        self._computed: dict[tuple[Node, int, SymbolicIndex, int], int] = {}

    def run(self) -> list[Cluster]:
        """Cluster every live operation that needs a kernel; clusters come in reverse order of their roots."""
        for node in reversed(self.graph.nodes):
            self._front = node.order
            if node.kind in CONTROL or node in self.cluster_of or not self._is_needed(node):
                continue
            if node.kind == "reshape":
                continue  # renames a buffer: no kernel
            self._grow(self._start(node))
        return self.clusters

    def _is_needed(self, node: Node) -> bool:
        """Whether some result of the node's op is read outside the clusters that recompute it."""
        return any(
            s in self._live_results or any(self._reads(u, s) for u in s.users)
            for s in node.siblings
        )

    def _reads(self, user: Node, node: Node) -> bool:
        """Whether ``user`` reads ``node`` as a value in memory."""
        if user.kind in CONTROL or any(node not in c.index for c in self._shared.get(user, ())):
            return True
        owner = self.cluster_of.get(user)
        if owner is not None:
            return node not in owner.index
        if user.order < self._front and not is_free(user):
            return True  # some later cluster will compute it: to ask its users would walk through the whole program
        # A data-movement op that no one else needs was recomputed inside its users' clusters.
        return self._is_needed(user)

    def _start(self, node: Node) -> Cluster:
        keeps = node.kind in WHOLE_WRITERS
        live = [s for s in node.siblings if keeps or s.users or s in self._live_results]
        cluster = Cluster(node, roots=live)
        cluster.domain = [size for size in node.shape if size != 1]
        cluster.kind = ROOT_KINDS.get(node.kind, "loop")
        if node.kind == "dot_general":
            cluster.kind, cluster.has_dot = "dot", True
        elif node.kind == "transpose" and _moves_minor(node):
            cluster.kind = "transpose"
        elif node.kind == "reduce":
            self._start_reduce(cluster, node)
        elif node.kind == "reduce_window" and scanned_dimension(node) is not None:
            cluster.kind = "cumulative"
        elif node.kind == "reduce_window" and is_pooling(
            node, self._functions[node.symbol("to_apply")]
        ):
            cluster.kind = "pooling"
        elif node.kind == "convolution" and is_direct(node):
            cluster.kind = "convolution"
        elif node.kind not in ROOT_KINDS and not self._is_fusible(node):
            cluster.kind = node.kind
        numbers = iter(range(len(cluster.domain)))
        index = tuple(ZERO if size == 1 else next(numbers) for size in node.shape)
        for sibling in node.siblings:
            cluster.index[sibling], cluster.reads[sibling] = index, {index}
            self.cluster_of[sibling] = cluster
        self.clusters.append(cluster)
        return cluster

    def _start_reduce(self, cluster: Cluster, node: Node) -> None:
        groups = reduced_groups(node)
        if groups is None or 0 in node.operands[0].shape:
            return
        batch, reduced, kept = groups
        if math.prod(kept) == 1 and not (
            math.prod(batch) == 1 and math.prod(reduced) > MAX_SINGLE_ROW
        ):
            cluster.kind = "row"
            cluster.split = len(cluster.domain)
            cluster.domain += [size for size in reduced if size != 1]
        else:
            cluster.kind = "column"

    def _is_fusible(self, node: Node) -> bool:
        return is_elementwise(node) or node.kind in _MOVEMENT or node.kind in _LOOP_ONLY

    def _grow(self, cluster: Cluster) -> None:
        """Absorb operands until none fits; several rounds, since a value may become private only later."""
        changed = cluster.kind != "computation"
        while changed:
            changed = False
            for node in sorted(cluster.index, key=lambda n: -n.order):
                for operand, index in self._operands(cluster, node, cluster.index[node]):
                    if operand in cluster.index or len(cluster.index) >= MAX_MEMBERS:
                        continue
                    if self._try_absorb(cluster, operand, index):
                        changed = True

    def _operands(
        self, cluster: Cluster, node: Node, index: SymbolicIndex
    ) -> list[tuple[Node, SymbolicIndex]]:
        if node.kind == "concatenate" and node is cluster.root:
            return [(x, index) for x in node.operands]  # every element of a part is read once
        if node.kind == "reduce":
            found = self._reduce_operands(cluster, node, index)
        elif node.kind in WHOLE_READERS:
            found = [(x, opaque(x)) for x in node.operands if not _reads_whole(node, x)]
        else:
            found = list(zip(node.operands, operand_indices(node, index), strict=True))
        # The reductions of a kernel walk over their operands together.
        ways = [
            (cluster.root, 0) if node.kind == "reduce" else (node, n) for n in range(len(found))
        ]
        return [
            (x, self._distinct((*way, index), at)) for way, (x, at) in zip(ways, found, strict=True)
        ]

    def _distinct(self, way: tuple[Node, int, SymbolicIndex], at: SymbolicIndex) -> SymbolicIndex:
        """``at``, with numbers of this ``way`` of computing it: a node, which operand, and where the node is read."""
        return tuple(
            self._computed.setdefault((*way, d), OPAQUE - 1 - len(self._computed))
            if i == OPAQUE
            else i
            for d, i in enumerate(at)
        )

    def _reduce_operands(
        self, cluster: Cluster, node: Node, index: SymbolicIndex
    ) -> list[tuple[Node, SymbolicIndex]]:
        count = len(node.siblings)
        dimensions = set(node.dims("dimensions"))
        result: list[tuple[Node, SymbolicIndex]] = []
        for operand in node.operands[:count]:
            kept = iter(index)
            columns = iter(range(cluster.split or 0, len(cluster.domain)))
            full: list[int] = []
            for d, size in enumerate(operand.shape):
                if d not in dimensions:
                    full.append(next(kept))
                elif size == 1:
                    full.append(ZERO)
                else:
                    full.append(next(columns) if cluster.split is not None else OPAQUE)
            result.append((operand, tuple(full)))
        return result + [(x, ()) for x in node.operands[count : 2 * count]]

    def _try_absorb(self, cluster: Cluster, node: Node, index: SymbolicIndex) -> bool:
        if node.kind in CONTROL and not is_free(node):
            return False
        owner = self.cluster_of.get(node)
        if owner is not None and owner is not cluster:
            return False
        if any(
            _reads_whole(user, node)
            for s in node.siblings
            for user in s.users
            if user in cluster.index
        ):
            return False
        before = list(cluster.domain), cluster.split, cluster.kind
        if not self._joins(cluster, node, index):
            return False
        outside = [s for s in node.siblings if self._read_outside(cluster, s)]
        is_output = bool(outside) and not is_free(node)
        reads = self._reads_added(cluster, node, index)
        if reads is None or (is_output and not self._may_be_output(cluster, node, index)):
            cluster.domain, cluster.split, cluster.kind = before  # a reduction may have set them
            return False
        for member, places in reads.items():
            cluster.reads.setdefault(member, set()).update(places)
        if is_output:
            cluster.outputs += outside
        for sibling in node.siblings:
            cluster.index[sibling] = index
            if outside and is_free(node):
                self._shared.setdefault(sibling, []).append(cluster)
            else:
                self.cluster_of[sibling] = cluster
        if node.kind == "dot_general":
            cluster.kind, cluster.has_dot = "dot", True
        return True

    def _reads_added(
        self, cluster: Cluster, node: Node, index: SymbolicIndex
    ) -> dict[Node, set[SymbolicIndex]] | None:
        """Where members would also be read if ``node`` joined at ``index``.

        ``None`` when what is computed once a row or a tile (reductions, products) would be read at another place than
        its own: a member may pass on several; when a member would be read at too many; or when ``node`` would be read
        at several and is dearer to compute again than to store.
        """
        added: dict[Node, set[SymbolicIndex]] = {}
        pending = [(sibling, index) for sibling in node.siblings]
        pending += [
            (operand, at)
            for sibling in node.siblings
            for user in sibling.users
            for place in cluster.reads.get(user, ())
            for operand, at in self._operands(cluster, user, place)
            if operand is sibling
        ]
        while pending:
            member, at = pending.pop()
            if at in cluster.reads.get(member, ()) or at in added.get(member, ()):
                continue
            if member.kind in _BOUND and at != cluster.index.get(member, index):
                return None
            added.setdefault(member, set()).add(at)
            if len(added[member]) + len(cluster.reads.get(member, ())) > MAX_PLACES:
                return None
            operands = self._operands(cluster, member, at)
            pending += [(x, place) for x, place in operands if x in cluster.index]
        again = max(len(added.get(sibling, ())) for sibling in node.siblings) - 1
        if again > 1 and again * self._chain_cost(node) > MAX_RECOMPUTED:
            return None
        return added

    def _chain_cost(self, node: Node) -> int:
        """Rough cost of one element of ``node`` and of what would join a cluster then, in tenths of a nanosecond."""
        cost, pending, seen = 0, [node], {node}
        while pending and cost <= MAX_RECOMPUTED:
            current = pending.pop()
            if current.kind == "constant":
                continue
            if not self._is_fusible(current) or current in self.cluster_of:
                cost += 1
                continue
            cost += 0 if is_free(current) else node_cost(current)
            for operand in current.operands:
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return cost

    def _joins(self, cluster: Cluster, node: Node, index: SymbolicIndex) -> bool:
        """Whether the node can be computed inside the cluster at ``index``."""
        if cluster.kind in MOVEMENT_ONLY and not is_free(node):
            return False
        if node.kind == "reduce":
            return self._joins_row(cluster, node, index)
        if node.kind == "dot_general":
            return (
                cluster.kind == "loop"
                and cluster.root.kind not in ROOT_KINDS
                and cluster.is_identity(index)
                and node.type.size == cluster.size
                and node.type.size > 1
            )
        if not self._is_fusible(node):
            return False
        if node.kind == "reshape" and _is_opaque(operand_indices(node, index)[0]):
            return not _is_opaque(index) and node.type.size <= 64
        if node.kind == "transpose" and _moves_minor(node) and node.type.size > 4096:
            return False
        if node.kind == "concatenate" and node.type.size > MAX_BRANCHING:
            return False
        if cluster.kind == "column" and node.kind in ("gather", "dynamic_slice"):
            return True
        return not self._recomputes(cluster, node, index)

    def _recomputes(self, cluster: Cluster, node: Node, index: SymbolicIndex) -> bool:
        """Whether joining would compute something dear more often than once an element."""
        if node_cost(node) < DEAR or node.type.size <= 1:
            return False
        real = [i for i in index if i != ZERO]
        if _is_opaque(index):
            return node.type.size < cluster.size
        # A prefix of the domain is computed once a row (loop-invariant in the inner loop).
        return real != list(range(len(real))) and node.type.size < cluster.size

    def _joins_row(self, cluster: Cluster, node: Node, index: SymbolicIndex) -> bool:
        if (
            cluster.has_dot
            or cluster.kind not in ("loop", "row")
            or cluster.root.kind in ROOT_KINDS
        ):
            return False
        groups = reduced_groups(node)
        if groups is None or math.prod(groups[2]) != 1 or 0 in node.operands[0].shape:
            return False
        batch, reduced, _ = groups
        columns = [size for size in reduced if size != 1]
        real = [i for i in index if i != ZERO]
        if real != list(range(len(real))) or not columns:
            return False
        if math.prod(batch) == 1 and math.prod(reduced) > MAX_SINGLE_ROW:
            return False
        split = len(real)
        if cluster.split is not None:
            return cluster.split == split and cluster.domain[split:] == columns
        if split == len(cluster.domain):  # a per-row root: the reduction brings the columns
            if any(map(_is_opaque, cluster.index.values())):
                return False
            cluster.domain += columns
        elif cluster.domain[split:] != columns:
            return False
        cluster.split, cluster.kind = split, "row"
        return True

    def _read_outside(self, cluster: Cluster, node: Node) -> bool:
        if node in self._live_results:
            return True
        for user in node.users:
            if user in self._shared:
                return True  # computed elsewhere too, from this node
            if user in cluster.index:
                continue
            if self._reads(user, node):
                return True
        return False

    def _may_be_output(self, cluster: Cluster, node: Node, index: SymbolicIndex) -> bool:
        """Whether the node can be a further result: a full (or per-row) value with no path back."""
        if cluster.kind not in ("loop", "row", "dot") or cluster.root.kind in ROOT_KINDS:
            return False
        if node.kind == "constant" or node.type.rank != len(index):
            return False
        real = [i for i in index if i != ZERO]
        full = real == list(range(len(cluster.domain)))
        per_row = cluster.split is not None and real == list(range(cluster.split))
        if not (full or per_row):
            return False
        if full and cluster.kind != "row" and node.shape != cluster.root.shape:
            return False
        return not self._leads_back(cluster, node)

    def _outside_users(self, cluster: Cluster, node: Node) -> list[Node]:
        """Users of ``node`` outside the cluster, those that read copies of its free members included."""
        found: list[Node] = []
        pending, seen = list(node.siblings), set[Node]()
        while pending:
            for user in pending.pop().users:
                if user not in cluster.index:
                    found.append(user)
                elif user in self._shared and user not in seen:
                    seen.add(user)
                    pending.append(user)
        return found

    def _leads_back(self, cluster: Cluster, node: Node) -> bool:
        """Whether a user of ``node`` outside the cluster reaches the cluster's inputs."""
        stack = self._outside_users(cluster, node)
        seen: set[Node] = set()
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if current in cluster.index:
                return True
            owner = self.cluster_of.get(current)
            unit = owner.index if owner is not None else current.siblings
            for member in list(unit):
                seen.add(member)
                stack += [u for u in member.users if u not in unit]
        return False


def _is_opaque(index: SymbolicIndex) -> bool:
    """Whether a component is not followed."""
    return any(i <= OPAQUE for i in index)


def _reads_whole(user: Node, node: Node) -> bool:
    """Whether ``user`` needs ``node`` as a buffer: its elements are read many times, or updated in place."""
    if user.kind == "dynamic_update_slice":
        return node is user.operands[0]
    return user.kind in WHOLE_READERS


def _moves_minor(node: Node) -> bool:
    """Whether a transpose moves the minor dimension (unit dimensions aside)."""
    real = [d for d in node.dims("permutation") if node.operands[0].shape[d] != 1]
    minor = [d for d in range(len(node.shape)) if node.operands[0].shape[d] != 1]
    return bool(real) and real[-1] != minor[-1]
