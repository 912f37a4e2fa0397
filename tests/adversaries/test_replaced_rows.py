"""Rows that are replaced in place: the same values and gradients as in a new matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai.adversaries import NodeInjection, gains
from fgai.reading import Reader
from fgai.rows import ReplaceableRows, append_rows, split_rows

OLD = torch.arange(12.0).view(4, 3)


def rows(old: Tensor = OLD) -> ReplaceableRows:
    return ReplaceableRows(append_rows(old, torch.zeros(2, 3)))


@pytest.mark.parametrize("old", [OLD, OLD.to_sparse()], ids=["dense", "sparse"])
def test_overwritten_rows_equal_a_new_matrix(old: Tensor) -> None:
    several = rows(old)
    for seed in range(3):
        x = torch.rand(2, 3, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        now, new = several.overwrite(x), torch.cat([OLD, x])
        assert torch.equal(now.detach().to_dense(), new)
        (slope,) = torch.autograd.grad((now.to_dense() ** 3).sum(), x)
        assert torch.equal(slope, torch.autograd.grad((new**3).sum(), x)[0])
    assert torch.equal(OLD, torch.arange(12.0).view(4, 3))


def test_only_the_last_result_has_its_operands() -> None:
    several, x = rows(), torch.ones(2, 3)
    first = several.overwrite(torch.zeros(2, 3))
    last = several.overwrite(x)
    assert split_rows(first) is None  # its rows are those of the last by now
    parts = split_rows(last)
    assert parts is not None and parts[0] is OLD and parts[1] is x


def test_a_replaced_matrix_keeps_its_rows() -> None:
    several = rows()
    replaced = several.replace(torch.ones(2, 3))
    several.overwrite(torch.zeros(2, 3))
    assert torch.equal(replaced, torch.cat([OLD, torch.ones(2, 3)]))


def test_a_gradient_through_overwritten_rows_is_refused() -> None:
    several = rows()
    loss = several.overwrite(torch.ones(2, 3, requires_grad=True)).square().sum()
    several.overwrite(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


@pytest.mark.parametrize("old", [OLD, OLD.to_sparse()], ids=["dense", "sparse"])
def test_the_steps_of_an_attack(old: Tensor) -> None:
    """They equal steps whose graph is a copy each time."""
    data = Data(x=old, edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    torch.manual_seed(0)
    read = Reader(GATConv(3, 2).eval())
    attack, gain = NodeInjection(nodes=2, edges=3, steps=4, step=0.2), gains.kl(read(data).detach())
    site = attack.place(data)
    x = attack.start(site)
    for _ in range(attack.steps):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(gain(read(site.graph(x))), x)
        x = site.box.ascend(x.detach(), slope, attack.step)
    assert torch.equal(attack.climb(read, site, attack.start(site), gain), x)
