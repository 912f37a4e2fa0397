"""torch's `MultiheadAttention` over the nodes of a graph: which of its weights belong to which pair of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fgai.attention import Over
from fgai.patching import with_globals

PAIRS = 4_000_000  # the largest number of pairs of nodes that is read, with padding: one graph of 2,000 nodes
Softmax = Callable[..., Tensor]


@dataclass(frozen=True)
class Layout:
    """Where the weights of pairs of nodes are in scores [B, H, L, S], of L queries and S keys.

    A layer whose queries are not nodes, such as the seeds of a Set Transformer, pools the nodes of each graph. Its
    L queries then count as heads.
    """

    at: tuple[Tensor, ...]  # the row, the query and the key of each pair; without queries if the layer pools
    edge_index: Tensor  # [2, E], from the key to the query, or to the graph
    num_targets: int
    over: Over

    def select(self, dense: Tensor) -> Tensor:
        """Return the entries of the pairs, [B, H, L, S] -> [E, H], or [E, H L] if the layer pools."""
        return dense.movedim(1, -1)[self.at].flatten(1) if len(self.at) == 3 else self._pooled(dense).flatten(1)

    def put(self, dense: Tensor, entries: Tensor) -> Tensor:
        """Return `dense` with these entries of the pairs."""
        if len(self.at) == 3:
            return dense.movedim(1, -1).index_put(self.at, entries).movedim(-1, 1)
        shaped = entries.view(-1, dense.size(1), dense.size(2))
        return dense.movedim(-1, 1).index_put(self.at, shaped).movedim(1, -1)

    def _pooled(self, dense: Tensor) -> Tensor:
        return dense.movedim(-1, 1)[self.at]

    def where(self, mask: Tensor) -> Layout:
        """Return the layout of the pairs in the mask."""
        return replace(self, at=tuple(part[mask] for part in self.at), edge_index=self.edge_index[:, mask])


def layout_of(layer: Any, query: Tensor, key: Tensor, mask: Tensor | None, batch: Tensor) -> Layout | str:
    """Return which weights belong to which pair of nodes, or the reason why none do.

    The keys are nodes if there are as many as the graph has, or as each graph of the batch has in its row. Nodes are in
    the order of their ids, as `to_dense_batch` puts them.

    Args:
        layer: The layer.
        query: The queries, as the layer gets them.
        key: The keys.
        mask: The keys to ignore: `key_padding_mask`.
        batch: The graph of each node, [N], sorted.

    >>> layer, x = nn.MultiheadAttention(4, 2, batch_first=True), torch.ones(1, 2, 4)
    >>> layout_of(layer, x, x, None, torch.zeros(2, dtype=torch.long)).edge_index
    tensor([[0, 1, 0, 1],
            [0, 0, 1, 1]])
    >>> layout_of(layer, x, x, None, torch.zeros(7, dtype=torch.long))
    'it attends over something else than the nodes of a graph'
    """
    (rows, queries), (_, keys) = _shape(layer, query), _shape(layer, key)
    valid = _valid(mask, rows, keys, key.device)
    sizes, count = batch.bincount(), valid.sum(1)
    if layer.bias_k is not None or layer.add_zero_attn:
        return "it attends to a learnt key besides the nodes"
    nodes = int(count.sum()) == len(batch) and (rows == 1 or (len(sizes) == rows and bool((count == sizes).all())))
    if not nodes:
        return "it attends over something else than the nodes of a graph"
    node = valid.flatten().long().cumsum(0).view_as(valid) - 1
    if (pairs := rows * queries * keys) > PAIRS:
        return f"it attends over {pairs:,} pairs of nodes, and fgai reads at most {PAIRS:,}"
    if _is_same(query, key):
        row, one, other = (valid[:, :, None] & valid[:, None, :]).nonzero().unbind(1)
        return Layout((row, one, other), torch.stack([node[row, other], node[row, one]]), len(batch), "pairs")
    if rows != len(sizes) or queries == keys:
        return "its queries are not the nodes that it attends to"
    row, other = valid.nonzero().unbind(1)
    return Layout((row, other), torch.stack([node[row, other], row]), rows, "graphs")


def attend(layer: Any, softmax: Softmax, inputs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Call torch's multi-head attention with another softmax; `inputs` are the arguments of its `forward` by name."""
    functions = ModuleType("functional")
    vars(functions).update(vars(functional))
    overridden = vars(functional)["has_torch_function"]  # a mode of the kernels would call torch's own function
    replacements = {functional.softmax: softmax, overridden: lambda _: False}
    forward = with_globals(functional.multi_head_attention_forward, replacements)
    vars(functions)["multi_head_attention_forward"] = forward
    asked = {**inputs, "need_weights": True, "average_attn_weights": False}
    out, weight = with_globals(nn.MultiheadAttention.forward, {functional: functions})(layer, **asked)
    if not inputs.get("need_weights", True):
        return out, None
    return out, weight.mean(-3) if inputs.get("average_attn_weights", True) else weight


def _shape(layer: Any, x: Tensor) -> tuple[int, int]:
    """Return the number of rows, and of entries in each."""
    if x.dim() == 2:
        return 1, x.size(0)
    return (x.size(0), x.size(1)) if layer.batch_first else (x.size(1), x.size(0))


def _valid(mask: Tensor | None, rows: int, keys: int, device: Any) -> Tensor:
    if mask is None:
        return torch.ones(rows, keys, dtype=torch.bool, device=device)
    return (~mask if mask.dtype == torch.bool else mask == 0).view(rows, keys)


def _is_same(query: Tensor, key: Tensor) -> bool:
    """Return whether queries and keys are the same tensor, or views of the same memory."""
    return query is key or (
        query.shape == key.shape and query.stride() == key.stride() and query.data_ptr() == key.data_ptr()
    )
