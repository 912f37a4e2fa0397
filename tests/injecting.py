"""Small models and graphs for tests of proofs, and random injections inside a set."""

from itertools import combinations

import torch
from torch import nn
from torch_geometric.data import Data

from fgai.graph import add_nodes
from loose import loose


class Two(nn.Module):
    def __init__(self, layer, features=4, classes=3, scale=0.6, channels=3, **settings):
        super().__init__()
        self.one = layer(features, channels, heads=2, **settings)
        self.two = layer(2 * channels, classes, heads=1, **settings)
        for parameter in self.parameters():
            parameter.data += scale * torch.randn_like(parameter)

    def forward(self, x, edge_index):
        return self.two(nn.functional.elu(self.one(x, edge_index)), edge_index)


def graph(nodes=7, share=0.5, low=-1.0, high=1.0):
    pairs = torch.tensor([pair for pair in combinations(range(nodes), 2) if torch.rand(()) < share]).reshape(-1, 2).t()
    x = low + (high - low) * torch.rand(nodes, 4)
    return loose(Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1)))


def neighbours(data, node):
    return data.edge_index[0][data.edge_index[1] == node]


def injected(data, node, allowed, generator):
    """A random injection inside the allowed set; corners of the box half of the time."""
    low, high = allowed.box
    count, size = allowed.nodes, data.num_nodes
    x = low + (high - low) * torch.rand(count, 4, generator=generator, dtype=data.x.dtype)
    if torch.rand((), generator=generator) < 0.5:
        x = torch.where(x > (low + high) / 2, high, low).to(data.x)
    if torch.rand((), generator=generator) < 0.5:
        x = x[:1].expand(count, -1)
    beside = neighbours(data, node)
    hit = beside[torch.randperm(len(beside), generator=generator)[: allowed.neighbours]]
    others = torch.tensor([i for i in range(size) if i != node and i not in beside.tolist()], dtype=torch.long)
    free = others[torch.rand(len(others), generator=generator) < 0.3]
    ends = torch.cat([torch.tensor([node]), hit, free])
    new = torch.cartesian_prod(torch.arange(size, size + count), ends).t()
    among = torch.combinations(torch.arange(size, size + count)).t()
    return add_nodes(data, x, torch.cat([new, new.flip(0), among, among.flip(0)], dim=1))


def cases(data, allowed, trials, generator):
    """Many injections in one graph, a copy of it for each node and trial: clean, attacked, and who is attacked."""
    nodes, count = data.num_nodes, data.num_nodes * trials
    clean = Data(
        x=data.x.repeat(count, 1), edge_index=torch.cat([data.edge_index + i * nodes for i in range(count)], dim=1)
    )
    x, links, victims = [], [], []
    for i in range(count):
        wide = injected(data, i % nodes, allowed, generator)
        new = wide.edge_index[:, data.num_edges :]
        links.append(torch.where(new < nodes, new + i * nodes, new - nodes + (count * nodes + i * allowed.nodes)))
        x.append(wide.x[nodes:])
        victims.append(i * nodes + i % nodes)
    return clean, add_nodes(clean, torch.cat(x), torch.cat(links, dim=1)), torch.tensor(victims)
