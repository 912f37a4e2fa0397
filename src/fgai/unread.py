"""Detects attention that the tap cannot read: modules that do not use PyG's softmax over edges."""

from __future__ import annotations

from torch import nn


def attention_not_read(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules whose attention the tap does not see.

    These are torch's `MultiheadAttention`, PyG's global attention (as in `GPSConv`), and modules whose `forward` calls
    torch's `scaled_dot_product_attention`. Modules inside a listed one are not listed again.

    >>> attention_not_read(nn.TransformerEncoderLayer(4, 2))
    ('self_attn',)
    """
    names: list[str] = []
    for name, module in model.named_modules():
        if _has_dense_attention(module) and not any(name.startswith(f"{outer}.") for outer in names):
            names.append(name)
    return tuple(names)


def _has_dense_attention(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return (
        isinstance(module, nn.MultiheadAttention)
        or type(module).__module__.startswith("torch_geometric.nn.attention")
        or (code is not None and "scaled_dot_product_attention" in code.co_names)
    )
