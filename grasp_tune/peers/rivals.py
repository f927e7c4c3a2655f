"""Optimizers of 2023 to 2026 that no package has, written from their papers; Muon's groups."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from grasp_tune.extras import need


def muon_groups(model: nn.Module, params: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Return parameter groups: the hidden matrices for Muon, everything else for AdamW.

    Not hidden are embeddings, matrices held directly by a module with submodules (for example
    positions), and the first and last of the other matrices, which are inputs and outputs.
    """
    leaves = [item for item in model.modules() if not any(True for _ in item.children())]
    held = [item for item in leaves if not isinstance(item, nn.Embedding)]
    found = [item for module in held for item in module.parameters(recurse=False)]
    matrices = [item for item in found if item.ndim >= 2 and item.requires_grad]
    hidden = set(map(id, matrices[1:-1]))
    groups = [(use, [p for p in params if (id(p) in hidden) == use]) for use in (True, False)]
    return [{"params": members, "use_muon": use} for use, members in groups if members]


def mechanic(params: list[nn.Parameter]) -> Any:
    """Return Mechanic around AdamW with a learning rate of 1."""
    kind = need("mechanic_pytorch", "bench", "this peer").mechanize(AdamW)
    return kind(params, lr=1.0, weight_decay=0.0)


class _Adam(Optimizer):
    """The base class of the optimizers below: Adam's moments. `USUAL` has the default options."""

    USUAL: ClassVar[dict[str, Any]]

    def __init__(self, params: list[nn.Parameter], **options: Any) -> None:
        super().__init__(params, {**self.USUAL, **options})
        self._steps = 0

    def _moments(self, item: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
        """Return the first moment, and the square root of the bias-corrected second moment."""
        state, grad = self.state[item], item.grad
        assert grad is not None
        if "first" not in state:
            state["first"], state["second"] = torch.zeros_like(item), torch.zeros_like(item)
        state["first"].lerp_(grad, 1.0 - beta1)
        state["second"].mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
        return state["first"], state["second"].div(1.0 - beta2**self._steps).sqrt_()


class NAdamW(_Adam):
    r"""Adam with Nesterov's momentum and decoupled weight decay, as AlgoPerf defines it.

    $$m \leftarrow \beta_1 m + (1 - \beta_1) g,\quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2,$$
    $$x \leftarrow (1 - \eta\lambda) x
      - \eta \frac{(\beta_1 m + (1 - \beta_1) g) / (1 - \beta_1^t)}
                  {\sqrt{v / (1 - \beta_2^t)} + \epsilon}$$

    The constants are those of AlgoPerf's self-tuning baseline (Dahl et al. 2023).
    """

    USUAL: ClassVar = {
        "lr": 0.0017486387539278373,
        "betas": (1.0 - 0.06733926164, 0.9955159689799007),
        "weight_decay": 0.08121616522670176,
        "eps": 1e-8,
    }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._steps += 1
        for group in self.param_groups:
            rate, (beta1, beta2) = group["lr"], group["betas"]
            for item in (item for item in group["params"] if item.grad is not None):
                first, root = self._moments(item, beta1, beta2)
                ahead = first.lerp(item.grad, 1.0 - beta1)
                item.mul_(1.0 - rate * group["weight_decay"])
                bias = 1.0 - beta1**self._steps
                item.addcdiv_(ahead, root.add_(group["eps"]), value=-rate / bias)


class ScheduleFreePlus(_Adam):
    r"""ScheduleFree+ (Defazio 2026, arXiv:2605.19095): no schedule, with Polyak's step size.

    The gradient $g_t$ and the loss $F_t$ are taken at $y_t$, which lies between the average $x_t$
    and Adam's iterate $z_t$:
    (1) $\alpha_t = \max(0, F_t + \tilde\beta \langle g_t, z_t - x_t \rangle)
         / (\sqrt{\pi/2} \, \lVert g_t \rVert_1)$;
    (2) $z_{t+1} = z_t - \alpha_t \hat m_t / (\sqrt{\hat v_t} + \epsilon)$, Adam's step;
    (3) $x_{t+1} = (1 - c_t) x_t + c_t z_{t+1}$ with $c_t = w_t / \sum_{s \le t} w_s$ and
        $w_t = \max_{s \le t} \alpha_s^2$;
    (4) $y_{t+1} = \tilde\beta x_{t+1} + (1 - \tilde\beta) z_{t+1}$.

    The defaults are those of the author's code: no warm-up, no annealing of $\tilde\beta$, no
    averaging of the gradient norm, no weight decay.
    """

    USUAL: ClassVar = {"betas": (0.9, 0.95), "interpolation": 0.9, "eps": 1e-8}

    def __init__(self, params: list[nn.Parameter], **options: Any) -> None:
        super().__init__(params, **options)
        self._largest, self._weights = self.defaults["eps"], 0.0

    @torch.no_grad()
    def step(self, loss: float | Tensor) -> None:  # type: ignore[override]
        """Take a step; `loss` belongs to the minibatch whose gradients the parameters have."""
        (group,) = self.param_groups
        (beta1, beta2), mix = group["betas"], group["interpolation"]
        items = [item for item in group["params"] if item.grad is not None]
        pairs = [(item, self.state[item]) for item in items]
        for item, at in pairs:
            if not at:
                at.update(x=item.detach().clone(), z=item.detach().clone())
        inner = sum(float((item.grad * (at["z"] - at["x"])).sum()) for item, at in pairs)
        size = math.sqrt(math.pi / 2) * sum(float(item.grad.abs().sum()) for item in items)
        rate = max(0.0, float(loss) + mix * inner) / size if size > 0 else 0.0  # (1)
        self._steps += 1
        self._largest = max(self._largest, rate)
        self._weights += self._largest**2
        for item, at in pairs:
            first, root = self._moments(item, beta1, beta2)
            mean = first / (1.0 - beta1**self._steps)
            at["z"].addcdiv_(mean, root.add_(group["eps"]), value=-rate)  # (2)
            at["x"].lerp_(at["z"], self._largest**2 / self._weights)  # (3)
            item.copy_(torch.lerp(at["z"], at["x"], mix))  # (4)

    @torch.no_grad()
    def eval(self) -> None:
        for item, state in self.state.items():
            item.copy_(state["x"])


class GreedyAdamW(AdamW):
    """AdamW with GreedyLR (Subramanian et al. 2025, arXiv:2512.14527).

    The learning rate is divided by a factor after the smoothed loss has been below its best for
    more than `PATIENCE` steps in a row, and multiplied by it after as many steps above.
    """

    FACTOR, PATIENCE, WINDOW, THRESHOLD = 0.95, 10, 50, 1e-4
    LOW, HIGH = 1e-2, 1e1  # bounds, as multiples of the initial learning rate

    def __init__(self, params: list[nn.Parameter], **options: Any) -> None:
        super().__init__(params, **options)
        self._recent: list[float] = []
        self._first, self._best, self._good, self._bad = self.defaults["lr"], math.inf, 0, 0

    def step(self, loss: float | Tensor) -> None:  # type: ignore[override]
        """Take a step, then adapt the learning rate to the loss."""
        super().step()
        self._recent = [*self._recent[1 - self.WINDOW :], float(loss)]
        mean = sum(self._recent) / len(self._recent)
        better = mean < self._best - self.THRESHOLD
        self._good, self._bad = (self._good + 1, 0) if better else (0, self._bad + 1)
        self._best = min(self._best, mean)
        (group,) = self.param_groups
        if self._good > self.PATIENCE:
            group["lr"] = min(self.HIGH * self._first, group["lr"] / self.FACTOR)
        elif self._bad > self.PATIENCE:
            group["lr"] = max(self.LOW * self._first, group["lr"] * self.FACTOR)
