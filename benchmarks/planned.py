"""The tables of the plan to larger graphs, from results/plan.json and the cost model."""

from __future__ import annotations

from cost_model import FEATURES, LARGE, MEASURED, Cluster, Graph, coefficients, epoch, exact_hours, known
from fgai.bench.tables import grid

LARGER = {  # nodes, edges, machines of 32 ranks
    "ogbn-papers100M": (111_059_956, 1_615_685_872, (4, 16)),
    "10^10 edges": (690_000_000, 10**10, (16, 64)),
}


def larger_graphs() -> str:
    """What the cost model says of larger graphs with the features and the degree of ogbn-papers100M."""
    rows = known()
    if (MEASURED, LARGE) not in rows:
        return "Not run yet.\n"
    seconds, edge = coefficients(), rows["layer by layer: CPU ns per edge and layer", "10^6 nodes"] / 1e9
    sampled, body = rows["edges sampled for a seed node", LARGE], []
    for name, (nodes, edges, several) in LARGER.items():
        graph = Graph(nodes, edges, FEATURES, sampled + 1, sampled)
        for machines in several:
            cluster = Cluster(machines)
            one = epoch(seconds, graph, cluster)
            body.append([
                name, f"{graph.store_bytes / 1e9:.0f} GB", str(machines),
                f"{one.hours:.2g} h", f"{one.waiting_hours:.2g} h", f"{one.compute:.2g} s", f"{one.disk:.2g} s",
                f"{1e3 * one.ring:.2g} ms", f"{1e3 * one.tree:.2g} ms", f"{exact_hours(edge, graph, cluster):.2g} h",
            ])  # fmt: skip
    head = ["graph", "store", "machines", "epoch", "epoch, ring, no reading ahead", "computing, a step", "disk, a step",
            "ring, a step", "tree, a step", "exact reading"]  # fmt: skip
    return grid(head, body)


def assumptions() -> str:
    """The cost model's error, its coefficients, and what it assumes of machines."""
    rows, machine = known(), Cluster(1)
    if (MEASURED, LARGE) not in rows:
        return "Not run yet.\n"
    ratio = rows["predicted over measured", LARGE]
    measured = [
        ["seconds of the largest step, predicted over measured", f"{ratio:.3f}", "measured"],
        *([f"CPU µs of a {term}", f"{1e6 * value:.3g}", "fitted"] for term, value in coefficients().items()),
        ["nodes sampled for a seed node", "one per sampled edge", "assumed: in larger graphs no two edges meet"],
        ["edges sampled for a seed node", f"{rows['edges sampled for a seed node', LARGE]:.3g}", "measured"],
        ["exact reading, CPU ns per edge and layer",
         f"{rows['layer by layer: CPU ns per edge and layer', '10^6 nodes']:.3g}", "measured"],
    ]  # fmt: skip
    pages = rows.get(("disk: random pages a second, one reader", LARGE))
    assumed = [
        ["ranks of a machine, one core each", str(machine.ranks), "assumed"],
        ["memory of a machine", f"{machine.memory / 1e9:.0f} GB", "assumed"],
        ["random reads a second of its disks", f"{machine.reads:,.0f}",
         f"assumed; one reader here, without reading ahead: {pages:,.0f}" if pages else "assumed"],
        ["a hop between machines", f"{1e6 * machine.hop:.0f} µs", "assumed"],
        ["its network", f"{8 * machine.network / 1e9:.0f} Gbit/s", "assumed"],
    ]  # fmt: skip
    return grid(["what", "value", "source"], [*measured, *assumed])
