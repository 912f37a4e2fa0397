"""Which explanation finds the true edges? Two-layer GATs on graphs with known true edges, results/known_reasons.json.

For each test node that has true edges and is predicted correctly: AUROC and precision at the number of true edges, over
the edges of its computation graph of two hops. Means over nodes.

python benchmarks/known_reasons.py --seeds 2
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.explain.algorithm import ExplainerAlgorithm

from fgai import datasets
from fgai.backbones.gat import GAT
from fgai.calling import eval_mode
from fgai.explanations import explain_node
from fgai.faithfulness import truth_scores
from fgai.files import write_json
from fgai.graph import locate
from fgai.methods import Vanilla
from fgai.reading import Reader, Reading, open_reader
from fgai.seeding import seeded

DATASETS = ("ba-shapes", "infection")
Mask = Callable[[int], Tensor]  # from a node to the weights of all edges
SETTINGS: Any = {
    "explanation_type": "model",
    "edge_mask_type": "object",
    "model_config": {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
}


def trained(data: Any, seed: int) -> nn.Module:
    with seeded(seed):
        model = GAT(data.num_features, int(data.y.max()) + 1, hidden=16, heads=4, dropout=0.0)
    return Vanilla(epochs=300, patience=300, seed=seed).fit(model, data).model


def masks(model: nn.Module, data: Any, reading: Reading, read: Reader, seed: int) -> dict[str, Mask]:
    """Return for each explanation a function from a node to a mask over the edges of the graph."""

    def ours(name: str) -> Mask:
        ready = reading.attribution(name, read=read, graph=data)
        return lambda node: explain_node(ready, node).mask(data.edge_index)

    def pygs(algorithm: ExplainerAlgorithm) -> Mask:
        explain = Explainer(copy.deepcopy(model), algorithm, **SETTINGS)  # PyG's explainers modify a model

        def mask(node: int) -> Tensor:
            explained: Any = explain(data.x, data.edge_index, index=node)
            return explained.edge_mask.detach().float()

        return mask

    generator = torch.Generator().manual_seed(seed)
    return {
        **{name: ours(name) for name in ("tree", "last", "first", "leave-one-out")},
        "GNNExplainer": pygs(GNNExplainer(epochs=100)),
        "integrated gradients": pygs(CaptumExplainer("IntegratedGradients")),
        "random": lambda _: torch.rand(data.num_edges, generator=generator),
    }


def scores(name: str, seed: int, nodes: int) -> list[dict[str, object]]:
    data: Any = datasets.load(name, seed=seed)
    model = trained(data, seed)
    with open_reader(model) as read:
        reading = read.checked(data)
        functions = masks(model, data, reading, read, seed)
    right = reading.logits.argmax(-1) == data.y
    sample = [(node, *inside(reading, data, node)) for node in (right & data.test_mask).nonzero().flatten().tolist()]
    sample = [(node, near, true) for node, near, true in sample if 0 < int(true.sum()) < len(true)][:nodes]
    rows = []
    with eval_mode(model):
        for explanation, mask in functions.items():
            with seeded(seed):
                each = [truth_scores(mask(node)[near], true) for node, near, true in sample]
            means = torch.tensor([[one.auroc, one.precision] for one in each], dtype=torch.double).mean(0)
            rows.append({"explanation": explanation, "auroc": float(means[0]), "precision": float(means[1])})
    about = {
        "dataset": name,
        "seed": seed,
        "nodes": len(sample),
        "accuracy": float(right[data.test_mask].double().mean()),
        "command": "python benchmarks/known_reasons.py --seeds 2",
    }
    return [{**about, **row} for row in rows]


def inside(reading: Reading, data: Any, node: int) -> tuple[Tensor, Tensor]:
    """Return the edges of the node's computation graph, and which of them are true."""
    explained = reading.explain(node, "tree")
    at = locate(data.edge_index, explained.edge_index)
    hop = torch.cat([explained.hop, explained.hop.new_zeros(1)])[at]
    near = hop > 0
    return near, datasets.true_edges(data, node, hop)[near]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in DATASETS:
        for seed in range(given.seeds):
            rows += scores(name, seed, given.nodes)
            for row in rows[-7:]:
                print({key: value for key, value in row.items() if key != "command"}, flush=True)
            write_json(Path("results/known_reasons.json"), rows)


if __name__ == "__main__":
    main()
