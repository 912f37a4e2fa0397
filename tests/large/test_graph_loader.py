from typing import Any

import pytest
import torch
from torch_geometric.data import Batch

from fgai.errors import DataError, SettingError
from fgai.items import items_of
from fgai.large import GraphLoader
from worlds import molecule_batch, molecules


@pytest.mark.parametrize("shuffle", [False, True])
def test_its_batches_are_those_that_pyg_collates_of_the_same_graphs(shuffle):
    graphs = molecules(11)
    for number, graph in enumerate(graphs):
        graph.edge_attr, graph.train_mask = torch.rand(graph.num_edges, 2), torch.tensor([number != 4])
        graph.u = torch.rand(1, 3)
    data: Any = Batch.from_data_list(graphs)
    data.edge_index, data.edge_attr = data.edge_index.flip(1), data.edge_attr.flip(0)  # the last graph's edges first
    loader, seen = GraphLoader(data, batch=4, graphs=data.train_mask, shuffle=shuffle, seed=3), []
    for part, chosen in zip(loader, loader.shares, strict=True):
        numbers = [[n for n in range(11) if n != 4][place] for place in chosen]
        expected: Any = Batch.from_data_list([graphs[number] for number in numbers])
        assert all(torch.equal(part[name], expected[name]) for name in ("x", "batch", "ptr", "y", "u", "train_mask"))
        edges, links = (
            sorted(zip(one.edge_index.t().tolist(), one.edge_attr.tolist(), strict=True)) for one in (part, expected)
        )
        assert edges == links and items_of(part).kind == "graphs" and part.num_graphs == len(numbers)
        seen += numbers
    assert sorted(seen) == [number for number in range(11) if number != 4] and len(loader) == 3


def test_labels_of_nodes_and_attributes_that_do_not_tell_their_graph_are_refused():
    data: Any = Batch.from_data_list(molecules(4, v=torch.ones(7)))
    data.v = data.v[:20]
    with pytest.raises(DataError, match=r"`v` is \[20\] in a batch of 4 graphs"):
        GraphLoader(data, batch=2)
    data.y = torch.zeros(data.num_nodes)
    with pytest.raises(DataError, match=r"this graph has Items\('nodes'"):
        GraphLoader(data, batch=2)


def test_an_epoch_and_a_seed_determine_the_batches():
    data = molecule_batch()

    def order(epoch, seed=0):
        loader = GraphLoader(data, batch=20, seed=seed)
        loader.set_epoch(epoch)
        return list(loader.shares)

    assert order(1) == order(1) and order(1) != order(2) and order(1) != order(1, seed=1)
    with pytest.raises(SettingError, match="give smaller batches"):
        GraphLoader(data, batch=0)
