r"""Matrix-shaped steps: the base of the default schedule for networks.

A gradient of a hidden matrix is dominated by a few directions. Muon (Jordan et al. 2024) gives all
directions of its running mean the same size: $U V^\top$ in place of $U S V^\top$. Everything else,
embeddings and vectors among it, makes Adam's steps. It has no guarantee of its own; the schedule
that uses it keeps the paper's cells beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.optimizers.adam import FIRST, CoordinateAdam

# Jordan's: for singular values from 0.01 to 1 the fifth iterate lies between 0.7 and 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
# Root mean square of a move per unit of step, as Adam's usually is, so that one step size serves
# both (Liu et al. 2025).
SIZE = 0.2


def hidden_matrices(model: nn.Module | None, params: Iterable[Tensor]) -> frozenset[int]:
    """Return the positions of the parameters that are matrices, where there are layers of them.

    Filters of a convolution are the rows of a matrix; embeddings are no matrices, and neither are
    rows and columns. A model with a single layer is linear in it, and coordinates matter there.
    """
    kinds = (nn.Embedding, nn.EmbeddingBag)
    tables = [] if model is None else [m.weight for m in model.modules() if isinstance(m, kinds)]
    named = {id(item) for item in tables}
    layers = [(at, x) for at, x in enumerate(params) if x.ndim > 1 and id(x) not in named]
    found = [at for at, item in layers if min(len(item), item[0].numel()) > 1]
    return frozenset(found if len(layers) > 1 else ())


def equalized(matrix: Tensor) -> Tensor:
    r"""Return about $U V^\top$ for a matrix $U S V^\top$, by Newton and Schulz's iteration.

    $X \leftarrow a X + b A X + c A^2 X$ with $A = X X^\top$. All factors are polynomials in the
    first $A$, so only small square matrices are multiplied until the end.
    """
    a, b, c = QUINTIC
    wide = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    wide = wide.T if len(wide) > wide.shape[1] else wide
    wide = wide / torch.linalg.matrix_norm(wide).clamp_min(1e-30)
    gram = wide @ wide.T
    factor: Tensor | None = None
    for _ in range(ROUNDS):
        step = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        step.diagonal().add_(a)
        factor = step if factor is None else step @ factor
        gram = step @ (step @ gram)
    assert factor is not None
    found = factor @ wide
    return (found if matrix.shape == found.shape else found.T).to(matrix.dtype)


class MatrixAdam(CoordinateAdam):
    r"""Adam, with matrix-shaped steps for some of the parameters.

    With $m$ the running mean of $g$ (decay 0.9), looked ahead by one gradient, the step of an $n$
    by $k$ matrix is $\eta \cdot 0.2 \sqrt{\max(n, k)}\, U V^\top$ where $m = U S V^\top$.

    matrices: the positions of these parameters.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        matrices: Collection[int] = (),
    ) -> None:
        super().__init__(params, lr=lr)
        every = [point for group in self.param_groups for point in group["params"]]
        self._matrices = {every[at] for at in matrices}

    def _move(self, group: dict[str, Any], points: list[Tensor]) -> None:
        rest = [point for point in points if point not in self._matrices]
        if rest:
            super()._move(group, rest)
        for point in points:
            if point in self._matrices:
                gradient = point.grad
                assert gradient is not None
                self.begin([point], "mean")
                mean = self.state[point]["mean"].lerp_(gradient, 1.0 - FIRST)
                ahead = torch.lerp(mean, gradient, 1.0 - FIRST).reshape(len(point), -1)
                size = group["lr"] * SIZE * math.sqrt(max(ahead.shape))
                point.add_(equalized(ahead).view(point.shape), alpha=-size)
