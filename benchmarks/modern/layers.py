"""Layers that several modern networks share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output at every position."""
        rows, length, width = x.shape
        parts = self.project(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """Attention and a feed-forward net, each with a residual connection and a norm."""

    def __init__(
        self,
        width: int,
        heads: int = 4,
        *,
        causal: bool,
        pre_norm: bool = True,
        dropout: float = 0.0,
        inner: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal)
        self.inner = inner or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.pre_norm, self.dropout = pre_norm, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next layer's input."""
        for norm, part in zip(self.norms, (self.attention, self.inner), strict=True):
            if self.pre_norm:
                x = x + self.dropout(part(norm(x)))
            else:
                x = norm(x + self.dropout(part(x)))
        return x


class Experts(nn.Module):
    """A feed-forward layer of several experts; every position uses the best `chosen`."""

    def __init__(self, width: int, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.gate, self.chosen = nn.Linear(width, experts), chosen
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * (2 * width) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs."""
        best, at = self.gate(x).topk(self.chosen, dim=-1)
        weights = torch.zeros(*x.shape[:-1], len(self.up)).scatter(-1, at, best.softmax(-1))
        hidden = F.gelu(torch.einsum("blw,ewh->bleh", x, self.up))
        return torch.einsum("bleh,ehw,ble->blw", hidden, self.down, weights)
