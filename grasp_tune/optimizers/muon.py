r"""Matrix-shaped steps: the base of the default schedule for networks.

A gradient of a hidden matrix is dominated by a few directions. Muon (Jordan et al. 2024) gives all
directions of its running mean the same size: $U V^\top$ in place of $U S V^\top$. All other
parameters, such as embeddings and vectors, make Adam's steps. There is no guarantee for these
steps; the schedule that uses them also runs the paper's cells.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.optimizers.adam import FIRST, RAMP, TINY, CoordinateAdam
from grasp_tune.optimizers.coordinatewise import embeddings

# Jordan's: for singular values from 0.01 to 1 the fifth iterate lies between 0.7 and 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
WHOLE, BLOCK = 128, 64  # longest shorter side of a matrix that is not cut; rows of a block
NEARLY_SQUARE = 1.5  # below this ratio of its sides, the plain iteration takes less time
STACKED = 2**16  # most numbers of a matrix that is stacked with others of its shape
# With a smaller norm, the squares of 10^7 numbers underflow in float32, and the norm is wrong.
SILENT = 1e-15
# Root mean square of a move with step size 1, as Adam's usually is, so that one step size serves
# both (Liu et al. 2025).
SIZE = 0.2


def hidden_matrices(model: nn.Module | None, params: Iterable[Tensor]) -> frozenset[int]:
    """Return the positions of the parameters that are matrices, except the last layer.

    Convolution filters are the rows of a matrix; embeddings do not count. The last layer makes
    Adam's steps, as Jordan advises: the loss was lower on seven of ten networks, mostly by 2 to
    5 %. A model of a single layer is linear in it, and coordinates matter there.
    """
    found = list(params)
    tables = embeddings(model, found)
    layers = [(at, x) for at, x in enumerate(found) if x.ndim > 1 and at not in tables]
    # More than one row and more than one column.
    return frozenset(at for at, x in layers[:-1] if len(x) > 1 and x.numel() > len(x))


def equalized(matrices: Tensor) -> Tensor:
    r"""Return $U V^\top$, approximately, for a matrix $U S V^\top$ or for each one of a stack.

    Newton and Schulz's iteration: $X \leftarrow a X + b A X + c A^2 X$ with $A = X X^\top$. All
    factors are polynomials in the first $A$. So for a wide matrix only small square ones are
    multiplied until the end.
    """
    a, b, c = QUINTIC
    wide = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    wide = wide.mT if wide.shape[-2] > wide.shape[-1] else wide
    wide = wide / torch.linalg.matrix_norm(wide, keepdim=True).clamp_min(SILENT)
    product = torch.addmm if wide.ndim == 2 else torch.baddbmm
    if wide.shape[-1] < NEARLY_SQUARE * wide.shape[-2]:
        for _ in range(ROUNDS):
            gram = wide @ wide.mT
            wide = product(wide, product(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    else:
        gram, factor = wide @ wide.mT, None
        for left in reversed(range(ROUNDS)):
            step = product(gram, gram, gram, beta=b, alpha=c)
            step.diagonal(dim1=-2, dim2=-1).add_(a)
            factor = step if factor is None else step @ factor
            gram = step @ (step @ gram) if left else gram
        wide = factor @ wide
    return (wide if matrices.shape == wide.shape else wide.mT).to(matrices.dtype)


def equalized_in_blocks(matrices: Tensor) -> Tensor:
    """Return `equalized` of each block of rows of a matrix, or of a stack of matrices; in place.

    The cost of a whole matrix grows with the third power of its shorter side: 784 by 1024 numbers
    take 185 ms of a CPU core, and 4 ms in blocks; a minibatch of 16 rows takes 3 ms. Blocks of 50
    for a side of 100 raise the loss by 2 % (MNIST, 784-100-10, T = 1500), so only matrices with a
    shorter side above `WHOLE` are cut.
    """
    *_, rows, columns = matrices.shape
    if min(rows, columns) <= WHOLE:
        return equalized(matrices)
    size = -(-rows // -(-rows // BLOCK))
    padded = nn.functional.pad(matrices, (0, 0, 0, -rows % size)) if rows % size else matrices
    # A few at a time, so that temporary memory is a part of the matrix, not several times it.
    for some in padded.view(-1, size, columns).split(max(1, STACKED * 4 // (size * columns))):
        some.copy_(equalized(some))
    return padded[..., :rows, :]


class MatrixAdam(CoordinateAdam):
    r"""Adam, with matrix-shaped steps for some of the parameters.

    With $m = U S V^\top$ the running mean of $g$ (decay 0.9), with Nesterov's look-ahead, the
    entries of $o = U V^\top$ are divided by the roots of the running means of their own squares, as
    in AdaMuon (Si et al. 2025). So weights of inputs of different sizes, which a matrix of few rows
    cannot tell apart, move alike. The root mean square of a step is $0.2 \eta$. Large matrices are
    cut into blocks of rows, which are equalized one by one.

    params, lr: as for any torch optimizer; `lr` is $\eta$.
    matrices: the positions of the parameters with matrix-shaped steps.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        matrices: Collection[int] = (),
    ) -> None:
        super().__init__(params, lr=lr)
        self._matrices = {id(self.points[at]) for at in matrices}

    def unit_sizes(self) -> list[Tensor]:
        """Return the largest mean gradient of each unit (a row of a matrix), layer by layer."""
        means = self.entries([x for x in self.points if id(x) in self._matrices], "mean")
        rows = [mean.flatten(1) for mean in means]
        # The norm with exponent infinity gives the same bits, in 25 times the time.
        return [torch.maximum(row.amax(1), -row.amin(1)) for row in rows]

    def _move(self, group: dict[str, Any], points: list[Tensor]) -> None:
        super()._move(group, [point for point in points if id(point) not in self._matrices])
        fresh = group["steps"] ** -RAMP
        alike: dict[tuple[int, ...], list[Tensor]] = {}  # small ones are stacked by shape
        for at, point in enumerate(points):
            if id(point) in self._matrices:
                shape = len(point), point[0].numel()
                alike.setdefault((*shape, at if point.numel() > STACKED else -1), []).append(point)
        for (rows, columns, _), some in alike.items():
            gradients = [point.grad for point in some if point.grad is not None]
            means = self.entries(some, "mean")
            torch._foreach_lerp_(means, gradients, 1.0 - FIRST)
            ahead = torch._foreach_lerp(means, gradients, 1.0 - FIRST)
            flat = [item.reshape(rows, columns) for item in ahead]
            if len(flat) == 1:
                moves: Sequence[Tensor] = (equalized_in_blocks(flat[0]),)
            else:
                moves = equalized_in_blocks(torch.stack(flat)).unbind()
            moves = [move.view(point.shape) for move, point in zip(moves, some, strict=True)]
            # A layer without gradients in this minibatch does not move. Its mean is not zero, and
            # its size, which shows how old it is, is lost.
            torch._foreach_mul_(moves, [norm.sign() for norm in torch._foreach_norm(gradients)])
            squares = self.entries(some, "square")
            torch._foreach_mul_(squares, 1.0 - fresh)
            torch._foreach_addcmul_(squares, moves, moves, fresh)
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, TINY)
            torch._foreach_div_(moves, roots)
            norms = torch._foreach_norm(moves)
            torch._foreach_clamp_min_(norms, TINY)
            torch._foreach_div_(moves, norms)
            size = group["lr"] * SIZE * math.sqrt(rows * columns)
            torch._foreach_add_(some, moves, alpha=-size)
