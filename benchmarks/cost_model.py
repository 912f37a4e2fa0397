"""What a run costs that has not been made: from coefficients that `plan.py` measured, and assumptions named here.

`pages.py` writes its table into docs/scale.md; a test compares its prediction with the largest run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fgai.bench.results import read_costs

RESULTS = Path(__file__).parent.parent / "results/plan.json"
LARGE, FEATURES = "10^7 nodes, wide", 128  # the largest run, and the features of ogbn-papers100M
PREDICTED, MEASURED = "predicted before it ran: FGAI, CPU s a step", "FGAI, default adversary, CPU s a step"
SECONDS = "model: CPU us a {}"
TERMS = ("step", "sampled node", "sampled edge", "feature of a sampled node")  # what the seconds of a step depend on
BATCH, LAYERS, MODEL_BYTES = 1_024, 2, 4 * 9_456  # seed nodes; layers and weights of the GAT with 128 features
PAGE = 4_096  # bytes that a disk reads for a row of features


@dataclass(frozen=True)
class Graph:
    """A graph, and how its batches with (10, 10) neighbours are: nodes and edges sampled for a seed node."""

    nodes: int
    edges: int
    features: int
    sampled_nodes: float
    sampled_edges: float

    @property
    def store_bytes(self) -> int:
        """Features, sources, where the edges of a node start."""
        number = 4 if self.nodes < 2**31 else 8
        return 4 * self.features * self.nodes + number * self.edges + 8 * self.nodes


@dataclass(frozen=True)
class Cluster:
    """Machines as they are assumed to be. None of these was measured."""

    machines: int
    ranks: int = 32  # of one core each, per machine
    memory: float = 128e9  # bytes per machine
    reads: float = 500_000  # random reads of a page per second, of the disks of a machine
    hop: float = 50e-6  # seconds from one machine to another for a small message
    network: float = 1.25e9  # bytes per second of a machine: 10 Gbit/s

    @property
    def processes(self) -> int:
        """Ranks of all machines."""
        return self.machines * self.ranks


def known() -> dict[tuple[str, str], float]:
    """What was measured, by what it is and on which graph."""
    return {(cost.what, cost.dataset.removeprefix("generated, ")): cost.value for cost in read_costs(RESULTS)}


def coefficients() -> dict[str, float]:
    """Seconds of a step by its terms, as fitted on graphs up to 10^6 nodes."""
    return {term: known()[SECONDS.format(term), "all sizes"] / 1e6 for term in TERMS}


def step_seconds(coefficients: Mapping[str, float], nodes: float, edges: float, features: int) -> float:
    """CPU seconds of a step of FGAI whose batch has so many nodes and edges.

    >>> step_seconds(dict.fromkeys(TERMS, 1.0), nodes=2, edges=3, features=4)
    14.0
    """
    sizes = (1.0, nodes, edges, nodes * features)
    return sum(coefficients[term] * size for term, size in zip(TERMS, sizes, strict=True))


def ring_seconds(cluster: Cluster, sent: float = MODEL_BYTES) -> float:
    """Seconds of a flat ring over p ranks: 2 (p - 1) hops, each with a p-th of the bytes.

    At any time some hop is between two machines, and the others wait for it.

    >>> round(1e3 * ring_seconds(Cluster(machines=64)))
    205
    """
    ranks = cluster.processes
    return 2 * (ranks - 1) * (cluster.hop + sent / ranks / cluster.network)


def tree_seconds(cluster: Cluster, sent: float = MODEL_BYTES) -> float:
    """Seconds of a binary tree over the machines, up and down, each hop with all bytes; ranks of a machine are free.

    >>> round(1e3 * tree_seconds(Cluster(machines=64)), 2)
    0.96
    """
    return 2 * math.ceil(math.log2(max(cluster.machines, 1))) * (cluster.hop + sent / cluster.network)


def miss_rate(graph: Graph, cluster: Cluster, own: float = 1e9) -> float:
    """Share of the sampled rows that memory does not hold, if each machine has the whole store on its disk.

    Args:
        graph: The graph; all its rows are equally likely.
        cluster: The machines.
        own: Bytes that a rank needs for its batches.
    """
    cache = max(cluster.memory - own * cluster.ranks, 0.0)
    return max(0.0, 1 - cache / graph.store_bytes)


def disk_seconds(graph: Graph, cluster: Cluster) -> float:
    """Seconds that the disk of a machine needs for a step of its ranks: a page for each row that is not in memory."""
    pages = max(1, math.ceil(4 * graph.features / PAGE)) * graph.sampled_nodes * BATCH * cluster.ranks
    return pages * miss_rate(graph, cluster) / cluster.reads


@dataclass(frozen=True)
class Prediction:
    """Hours of an epoch over all nodes, and what they consist of; one of its seconds per step each."""

    steps: float
    compute: float
    disk: float
    ring: float
    tree: float

    @property
    def hours(self) -> float:
        """With a tree, and with batches read ahead: a step takes as long as the slower of computing and reading."""
        return self.steps * (max(self.compute, self.disk) + self.tree) / 3600

    @property
    def waiting_hours(self) -> float:
        """With a ring, and without reading ahead."""
        return self.steps * (self.compute + self.disk + self.ring) / 3600


def epoch(coefficients: Mapping[str, float], graph: Graph, cluster: Cluster) -> Prediction:
    """Predict an epoch of FGAI with its default adversary, all nodes as seed nodes."""
    nodes, edges = graph.sampled_nodes * BATCH, graph.sampled_edges * BATCH
    return Prediction(
        steps=graph.nodes / BATCH / cluster.processes,
        compute=step_seconds(coefficients, nodes, edges, graph.features),
        disk=disk_seconds(graph, cluster),
        ring=ring_seconds(cluster),
        tree=tree_seconds(cluster),
    )


def exact_hours(seconds_per_edge: float, graph: Graph, cluster: Cluster) -> float:
    """Hours to read all nodes layer by layer; each rank reads its share of the edges once per layer."""
    return seconds_per_edge * LAYERS * graph.edges / cluster.processes / 3600
