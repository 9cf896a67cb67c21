"""Which replica runs on which nodes and GPUs: as the file says, and solved where it doesn't.

Solving is a depth-first search, largest replicas first, that prefers empty nodes in the order of the file. Nodes in the
same state are tried once, so it is exact for clusters of this size; a budget of steps ends it on odd ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from switchyard.cluster.fit import RankMemory, rank_memory
from switchyard.cluster.spec import Cluster, Fabric, Node, Pool

STEPS = 50_000
"""Placements that are tried before the search gives up."""
SLACK_GIB = 1e-9
"""Rounding is no lack of memory."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a model and where it runs.

    Attributes:
        pool: its pool.
        number: 1 for the first of the pool.
        nodes: names, the head first.
        gpus: for each node, the GPUs that it takes there.
        running: whether all its nodes are active.
        shift: how many replicas of its pool before it have their head on the same machine; its ports are so many higher.
    """

    pool: str
    number: int
    nodes: tuple[str, ...]
    gpus: tuple[tuple[int, ...], ...]
    running: bool = True
    shift: int = 0

    @property
    def name(self) -> str:
        """`qwen-1`: what the gateway calls it."""
        return f"{self.pool}-{self.number}"

    @property
    def head(self) -> str:
        """The node with the HTTP server."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a rank takes of one GPU."""

    replica: str
    pool: str
    gpu: int
    memory: RankMemory


@dataclass(frozen=True)
class Layout:
    """Where everything runs.

    Attributes:
        replicas: in the order of the file.
        unplaced: pools for which no room was found, and why.
        taken: for each node, what its ranks take.
        solved: pools whose placement was not read from the file.
    """

    replicas: tuple[Replica, ...]
    unplaced: Mapping[str, str]
    taken: Mapping[str, tuple[Taken, ...]]
    solved: tuple[str, ...] = ()

    def of(self, pool: str, running: bool = True) -> tuple[Replica, ...]:
        """The replicas of a pool; those that run, or all."""
        return tuple(r for r in self.replicas if r.pool == pool and (r.running or not running))

    def gpu_gib(self, node: Node) -> tuple[float, ...]:
        """What is taken of each GPU of a node, in GiB."""
        return tuple(sum(t.memory.total for t in self.taken[node.name] if t.gpu == gpu) for gpu in range(node.gpus))


def lay_out(cluster: Cluster, solve_all: bool = False) -> Layout:
    """Place every pool: those with a `placement` as it says (unless `solve_all`), then the others."""
    board = _Board(cluster)
    wanted: list[str] = []
    for name, pool in cluster.pools.items():
        if pool.placement is None or solve_all:
            wanted.append(name)
        else:
            board.take_given(name, pool.placement)
    unplaced = _solve(board, wanted)
    order = list(cluster.pools)
    replicas = _shifted(cluster, sorted(board.replicas, key=lambda r: (order.index(r.pool), r.number)))
    return Layout(replicas, unplaced, {n: tuple(t) for n, t in board.taken.items()}, tuple(wanted))


def _shifted(cluster: Cluster, replicas: list[Replica]) -> tuple[Replica, ...]:
    """The replicas with ports of their own on each machine."""
    heads: Counter[tuple[str, str]] = Counter()
    shifted = []
    for replica in replicas:
        at = replica.pool, cluster.node(replica.head).mgmt
        shifted.append(replace(replica, shift=heads[at]))
        heads[at] += 1
    return tuple(shifted)


def fabric_groups(cluster: Cluster) -> tuple[tuple[str, ...], ...] | None:
    """The sets of nodes that one replica over several nodes may have; None where any will do (a switch)."""
    names = tuple(n.name for n in cluster.nodes)
    match cluster.fabric.kind:
        case "switch":
            return None
        case "ring":
            return (names,)
        case "direct":
            return direct_pairs(cluster.fabric, names)
        case "none":
            return ()


def direct_pairs(fabric: Fabric, names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Which nodes are cabled to each other: as said, else two by two."""
    if fabric.pairs:
        return tuple(tuple(p) for p in fabric.pairs)
    return tuple(pair for i, pair in enumerate(pairwise(names)) if i % 2 == 0)


class _Board:
    """The nodes while they fill up."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes = {n.name: n for n in cluster.nodes}
        self.position = {name: i for i, name in enumerate(self.nodes)}
        self.taken: dict[str, list[Taken]] = {n.name: [] for n in cluster.nodes}
        self.replicas: list[Replica] = []
        self.memory = {
            (name, node.name): rank_memory(pool, node) for name, pool in cluster.pools.items() for node in cluster.nodes
        }

    def take_given(self, name: str, placement: tuple[tuple[str, ...], ...]) -> None:
        for number, group in enumerate(placement, 1):
            known = [self.nodes[n] for n in group]
            running = all(node.state == "active" for node in known)
            gpus = tuple(self.emptiest(node, self.cluster.pools[name].gpus_per_node) for node in known)
            replica = Replica(name, number, tuple(group), gpus, running)
            self.replicas.append(replica)
            if running:
                self.add(replica)

    def add(self, replica: Replica) -> None:
        for node, gpus in zip(replica.nodes, replica.gpus, strict=True):
            memory = self.memory[replica.pool, node]
            self.taken[node] += [Taken(replica.name, replica.pool, gpu, memory) for gpu in gpus]

    def remove(self, replica: Replica) -> None:
        for node in replica.nodes:
            self.taken[node] = [t for t in self.taken[node] if t.replica != replica.name]

    def loads(self, node: Node) -> list[float]:
        """Of each GPU, GiB that are taken; all of it where a rank of unknown size sits."""
        loads = [0.0] * node.gpus
        for taken in self.taken[node.name]:
            if taken.gpu < node.gpus:
                loads[taken.gpu] += taken.memory.total if taken.memory.weights is not None else node.usable_gib
        return loads

    def emptiest(self, node: Node, count: int) -> tuple[int, ...]:
        """So many GPUs, those with the least on them; numbers beyond the machine's where it has too few."""
        loads = self.loads(node)
        order = sorted(range(len(loads)), key=lambda gpu: (loads[gpu], gpu))
        return tuple(sorted([*order, *range(len(loads), count)][:count]))

    def room(self, pool_name: str, node: Node) -> tuple[int, ...] | None:
        """GPUs of a node on which a rank has room; None when there are too few."""
        pool = self.cluster.pools[pool_name]
        if node.state != "active" or node.gpus < pool.gpus_per_node:
            return None
        loads, memory = self.loads(node), self.memory[pool_name, node.name]
        need = memory.total if memory.weights is not None else node.usable_gib
        gpus = self.emptiest(node, pool.gpus_per_node)
        return gpus if all(loads[gpu] + need <= node.usable_gib + SLACK_GIB for gpu in gpus) else None

    def state(self, node: Node) -> tuple[object, ...]:
        """Two nodes with the same state are the same to a pool that has no place yet."""
        free = tuple(sorted(round(load, 6) for load in self.loads(node)))
        return (node.usable_gib, node.gpus, node.arch, node.image, bool(node.fabric), free)

    def candidates(self, pool_name: str) -> Iterator[tuple[str, ...]]:
        """Sets of nodes for one more replica, the preferred first, none twice but for names."""
        pool = self.cluster.pools[pool_name]
        size = pool.nodes_per_replica
        groups = fabric_groups(self.cluster) if size > 1 else None
        if groups is not None:
            seen: set[tuple[object, ...]] = set()
            for group in groups:
                fits = len(group) == size and self.alike(group) and all(self.room(pool_name, self.nodes[n]) for n in group)
                state = tuple(self.state(self.nodes[n]) for n in group)
                if fits and state not in seen:
                    seen.add(state)
                    yield group
            return
        classes: dict[tuple[object, ...], list[str]] = {}
        for node in sorted(self.nodes.values(), key=lambda n: (len(self.taken[n.name]), self.position[n.name])):
            if self.room(pool_name, node) is not None:
                classes.setdefault(self.state(node), []).append(node.name)
        for group in _pick(list(classes.values()), size):
            if self.alike(group):
                yield tuple(sorted(group, key=self.position.__getitem__))

    def alike(self, group: tuple[str, ...]) -> bool:
        """One replica's ranks run the same program: CPU and image must not differ."""
        return len({(self.nodes[n].arch, self.nodes[n].image) for n in group}) == 1


def _pick(classes: list[list[str]], size: int) -> Iterator[tuple[str, ...]]:
    """Choices of `size` names, as many as possible of the first class first; within a class always the first ones."""
    if size == 0:
        yield ()
        return
    if not classes:
        return
    first, rest = classes[0], classes[1:]
    for count in range(min(size, len(first)), -1, -1):
        for others in _pick(rest, size - count):
            yield (*first[:count], *others)


def _solve(board: _Board, names: list[str]) -> dict[str, str]:
    """Put the replicas of these pools onto the board; returns the pools without a place, and why."""
    pools = board.cluster.pools
    size = {name: max(board.memory[name, node].total for node in board.nodes) for name in names}
    names = sorted(names, key=lambda name: (-pools[name].nodes_per_replica, -size[name]))
    todo = [(name, number) for name in names for number in range(1, pools[name].replicas + 1)]
    steps, deepest = STEPS, 0

    def place(depth: int) -> bool:
        nonlocal steps, deepest
        deepest = max(deepest, depth)
        if depth == len(todo):
            return True
        name, number = todo[depth]
        for group in board.candidates(name):
            steps -= 1
            if steps < 0:
                return False
            gpus = tuple(board.emptiest(board.nodes[n], pools[name].gpus_per_node) for n in group)
            replica = Replica(name, number, group, gpus)
            board.replicas.append(replica)
            board.add(replica)
            if place(depth + 1):
                return True
            board.replicas.pop()
            board.remove(replica)
        return False

    if place(0):
        return {}
    if steps < 0:
        return dict.fromkeys(names, f"no place was found in {STEPS} steps: give a placement")
    stuck, number = todo[deepest]
    others = " and ".join(names[: names.index(stuck)])
    if number > 1:
        beside = f", beside {others}" if others else ""
        why = f"{number - 1} of {pools[stuck].replicas} replicas of {stuck} have a place{beside}"
    else:
        why = _why_not(board, stuck, pools[stuck], others)
    return {name: why if name == stuck else f"pools are placed together, and {stuck} has none" for name in names}


def _why_not(board: _Board, name: str, pool: Pool, others: str) -> str:
    """Why not even its first replica has a place; the board has only what was placed by the file."""
    active = [n for n in board.nodes.values() if n.state == "active"]
    room = [n for n in active if board.room(name, n) is not None]
    need = max((board.memory[name, n.name].total for n in active), default=0.0)
    each = f"{pool.replicas} x {pool.nodes_per_replica} nodes" if pool.nodes_per_replica > 1 else f"{pool.replicas} nodes"
    alone = f"{len(room)} of {len(active)} active nodes have room for a rank of {need:.1f} GiB"
    if len(room) >= pool.replicas * pool.nodes_per_replica:
        if others:
            return f"{name} needs {each} with {need:.1f} GiB free, and {others} can't be placed so that they are left"
        if pool.nodes_per_replica > 1:
            return f"the fabric ({board.cluster.fabric.kind}) has no groups for {each}"
    return f"{name} needs {each}; {alone}"
