"""The released models and graphs of GAtt (Shin et al., AAAI 2025), from a clone of their repository.

The files are pickles of whole objects. Only tensors and containers are loaded; other classes become empty ones.
"""

from __future__ import annotations

import pickle
import types
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv

FILES = {
    "Models/GAT_BAShapes_2L1H.pt": ("ba-shapes", "Data/BAShapes.pt"),
    "Models/GAT_BAShapes_3L1H.pt": ("ba-shapes", "Data/BAShapes.pt"),
    "Models/GAT_infection_2L1H_demo.pt": ("infection", "Data/Infection_50002d_demo.pt"),
    "Models/GAT_infection_3L1H_demo.pt": ("infection", "Data/Infection_50003d_demo.pt"),
}
LOADED = {
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    *(("torch", f"{kind}Storage") for kind in ("Float", "Long")),
}


class _Empty:
    """Stands for an object of any other class, and keeps its state."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.state: Any = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) in LOADED:
            return super().find_class(module_name, global_name)
        return type(global_name, (_Empty,), {})


def load_tensors(path: Path) -> Any:
    """Load a pickle of any objects: their tensors, and empty objects with their state."""
    only_tensors: Any = types.ModuleType("only_tensors")
    only_tensors.Unpickler, only_tensors.load = _Unpickler, pickle.load
    return torch.load(path, map_location="cpu", pickle_module=only_tensors, weights_only=False)


class Layers(nn.Module):
    """GAT layers of one head with ELU between them.

    >>> Layers([3, 8, 2], bias=True)(torch.ones(2, 3), torch.tensor([[0], [1]])).shape
    torch.Size([2, 2])
    """

    def __init__(self, sizes: list[int], bias: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GATConv(a, b, bias=bias) for a, b in pairwise(sizes))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[N, F], [2, E] -> [N, C]."""
        for conv in self.convs[:-1]:
            x = nn.functional.elu(conv(x, edge_index))
        return self.convs[-1](x, edge_index)


@dataclass(frozen=True)
class Released:
    """A released model and its graph."""

    dataset: str
    model: nn.Module
    x: Tensor
    edge_index: Tensor
    y: Tensor
    stored: dict[str, Any]

    def true_edges(self) -> Iterator[tuple[int, Tensor]]:
        """Yield nodes and masks of the true edges: the edges of houses, or of the only shortest path; [E]."""
        if "edge_mask" in self.stored:
            inside = self.stored["edge_mask"] > 0
            yield from ((node, inside) for node in (self.stored["node_mask"] > 0).nonzero().flatten().tolist())
        else:
            nodes, paths = self.stored["unique_solution_nodes"], self.stored["unique_solution_explanations"]
            code = self.edge_index[0] * len(self.x) + self.edge_index[1]
            for node, path in zip(nodes, paths, strict=True):
                steps = torch.tensor([a * len(self.x) + b for a, b in pairwise(path)])
                yield node, torch.isin(code, steps)


def conv_parameters(conv: Any) -> dict[str, Tensor]:
    """Return the parameters of a loaded GATConv by the names of today's PyG."""
    own = {name: value for name, value in conv.state["_parameters"].items() if value is not None}
    return own | {"lin.weight": conv.state["_modules"]["lin_src"].state["_parameters"]["weight"]}


def released(folder: Path) -> Iterator[Released]:
    """Yield the released models, with their graphs."""
    for path, (dataset, graph) in FILES.items():
        convs = load_tensors(folder / path).state["_modules"].values()
        parameters = [conv_parameters(conv) for conv in convs]
        sizes = [parameters[0]["lin.weight"].size(1), *(own["lin.weight"].size(0) for own in parameters)]
        model = Layers(sizes, bias="bias" in parameters[0]).eval()
        model.load_state_dict({f"convs.{i}.{k}": v for i, own in enumerate(parameters) for k, v in own.items()})
        stored = dict(load_tensors(folder / graph).state["_store"].state["_mapping"])
        yield Released(dataset, model, stored["x"], stored["edge_index"], stored["y"], stored)
