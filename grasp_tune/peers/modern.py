"""Rivals of 2023 to 2026 at their published defaults; their packages are imported when used.

Rates that are constant by default are brought down along a cosine, as their authors do: a recipe
without annealing would not be theirs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grasp_tune.peers.published import load_package
from grasp_tune.peers.session import Answer, Run, Session
from grasp_tune.peers.single import cosine

WARM_UP = 0.05  # of the budget, for AdamW


@dataclass(frozen=True, slots=True)
class Rival:
    """All of T with one optimizer that may need to know the model, the budget or the losses.

    make: the optimizer for a run and a budget.
    step: takes a step where the optimizer wants to be told the loss; `Optimizer.step()` otherwise.
    rate: the factor of the learning rate after a share of the budget.
    modes: the optimizer has train() and eval(), and must be told.
    """

    make: Callable[[Run, int], Optimizer]
    step: Callable[[Any, float], None] | None = None
    rate: Callable[[float], float] | None = None
    modes: bool = False

    def __call__(self, session: Session) -> Answer:
        """Return the last point of the run."""
        run, budget, rate = session.run(), session.budget, self.rate
        optimizer: Any = self.make(run, budget)
        if self.modes:
            optimizer.train()
        told: Any = optimizer if self.step is None else _Told(optimizer, run, self.step)
        run.advance(told, budget, rate=None if rate is None else lambda call: rate(call / budget))
        if self.modes:
            optimizer.eval()
        return Answer(run.tensors(), diverged=not run.sound())


class _Told:
    """An optimizer whose step is given the loss of the minibatch."""

    def __init__(self, optimizer: Optimizer, run: Run, step: Callable[[Any, float], None]) -> None:
        self._optimizer, self._run, self._step = optimizer, run, step
        self.param_groups = optimizer.param_groups

    def step(self) -> None:
        """Take a step."""
        self._step(self._optimizer, self._run.losses[-1])


def warm_cosine(share: float, warm_up: float = WARM_UP) -> float:
    """Return the factor of the rate: linear from 0 to 1 during the warm-up, then a cosine to 0."""
    if share < warm_up:
        return share / warm_up
    return cosine((share - warm_up) / (1.0 - warm_up))


def adamw_cosine(rate: float) -> Rival:
    """AdamW with torch's other defaults, 5 % warm-up and a cosine: what most people run."""
    return Rival(lambda run, _: torch.optim.AdamW(run.oracle.parameters, lr=rate), rate=warm_cosine)


# ---- packages ------------------------------------------------------------------------------------


def prodigy_plus(run: Run, budget: int) -> Optimizer:
    """Prodigy with schedule-free averaging (LoganBooker's package, 2024-2026)."""
    kind = load_package("prodigyplus").ProdigyPlusScheduleFree
    # Random rounding is for bfloat16 and would draw random numbers; groups there are none.
    made: Optimizer = kind(run.oracle.parameters, stochastic_rounding=False, split_groups=False)
    return made


def muon(run: Run, budget: int) -> Optimizer:
    """Muon on hidden matrices, AdamW on all else (Jordan et al. 2024)."""
    hidden = {id(item) for item in hidden_matrices(run.oracle.model)}
    groups = [
        {"params": [p for p in run.oracle.parameters if id(p) in hidden], "use_muon": True},
        {"params": [p for p in run.oracle.parameters if id(p) not in hidden], "use_muon": False},
    ]
    made: Optimizer = load_package("pytorch_optimizer").Muon([g for g in groups if g["params"]])
    return made


def hidden_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the matrices between the first and the last layer.

    Embeddings, matrices that a module with parts holds itself (positions, for example), and the
    first and last of the others are left out: inputs and outputs are not hidden.
    """
    found = [
        item
        for module in model.modules()
        if not isinstance(module, nn.Embedding) and not any(True for _ in module.children())
        for item in module.parameters(recurse=False)
        if item.ndim >= 2 and item.requires_grad
    ]
    yield from found[1:-1]


def ademamix(run: Run, budget: int) -> Optimizer:
    """AdEMAMix (Pagliardini et al. 2024), its two schedules as long as the run."""
    kind = load_package("pytorch_optimizer").AdEMAMix
    made: Optimizer = kind(run.oracle.parameters, t_alpha_beta3=float(budget))
    return made


def momo(run: Run, budget: int) -> Optimizer:
    """MoMo-Adam (Schaipp et al. 2024), a lower bound of 0."""
    made: Optimizer = load_package("momo").MomoAdam(run.oracle.parameters)
    return made


def momo_step(optimizer: Any, loss: float) -> None:
    """Take a step of MoMo."""
    optimizer.step(loss=torch.tensor(loss))


def dowg(run: Run, budget: int) -> Optimizer:
    """DoWG for each coordinate, as its authors' package has it (Khaled et al. 2023)."""
    made: Optimizer = load_package("dowg").CoordinateDoWG(run.oracle.parameters)
    return made


# ---- written from their papers -------------------------------------------------------------------


class NAdamW(Optimizer):
    r"""Adam with Nesterov's momentum and decoupled weight decay, as AlgoPerf defines it.

    $$m \leftarrow \beta_1 m + (1 - \beta_1) g,\quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2,$$
    $$x \leftarrow (1 - \eta\lambda) x
      - \eta \frac{(\beta_1 m + (1 - \beta_1) g) / (1 - \beta_1^t)}
                  {\sqrt{v / (1 - \beta_2^t)} + \epsilon}$$

    The constants are those of AlgoPerf's self-tuning baseline (Dahl et al. 2023).
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        lr: float = 0.0017486387539278373,
        betas: tuple[float, float] = (1.0 - 0.06733926164, 0.9955159689799007),
        weight_decay: float = 0.08121616522670176,
        eps: float = 1e-8,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, defaults)
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step."""
        self._steps += 1
        for group in self.param_groups:
            rate, (beta1, beta2) = group["lr"], group["betas"]
            for item in group["params"]:
                if item.grad is None:
                    continue
                first, second = self._moments(item)
                first.lerp_(item.grad, 1.0 - beta1)
                second.mul_(beta2).addcmul_(item.grad, item.grad, value=1.0 - beta2)
                ahead = first.lerp(item.grad, 1.0 - beta1)
                root = second.div(1.0 - beta2**self._steps).sqrt_().add_(group["eps"])
                item.mul_(1.0 - rate * group["weight_decay"])
                item.addcdiv_(ahead, root, value=-rate / (1.0 - beta1**self._steps))

    def _moments(self, item: Tensor) -> tuple[Tensor, Tensor]:
        state = self.state[item]
        if not state:
            state["first"], state["second"] = torch.zeros_like(item), torch.zeros_like(item)
        return state["first"], state["second"]


def _algoperf(share: float) -> float:
    """Return AlgoPerf's factor of the rate: 2 % warm-up, then a cosine."""
    return warm_cosine(share, 0.02)


def nadamw(run: Run, budget: int) -> Optimizer:
    """NAdamW with AlgoPerf's constants."""
    return NAdamW(run.oracle.parameters)


class ScheduleFreePlus(Optimizer):
    r"""ScheduleFree+ (Defazio 2026, arXiv:2605.19095): no schedule, and Polyak's step.

    The gradient $g_t$ and the loss $F_t$ are those at $y_t$, which lies between the average $x_t$
    and Adam's iterate $z_t$:
    (1) $\alpha_t = \max(0, F_t + \tilde\beta \langle g_t, z_t - x_t \rangle)
         / (\sqrt{\pi/2} \, \lVert g_t \rVert_1)$;
    (2) $z_{t+1} = z_t - \alpha_t \hat m_t / (\sqrt{\hat v_t} + \epsilon)$, Adam's step;
    (3) $x_{t+1} = (1 - c_t) x_t + c_t z_{t+1}$ with $c_t = w_t / \sum_{s \le t} w_s$ and
        $w_t = \max_{s \le t} \alpha_s^2$;
    (4) $y_{t+1} = \tilde\beta x_{t+1} + (1 - \tilde\beta) z_{t+1}$.

    The defaults are those of the author's code: no warm-up, no annealing of $\tilde\beta$, no
    average of the gradient's norm, no weight decay.
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        betas: tuple[float, float] = (0.9, 0.95),
        interpolation: float = 0.9,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"betas": betas, "interpolation": interpolation, "eps": eps})
        self._steps, self._largest, self._weights = 0, eps, 0.0

    @torch.no_grad()
    def step(self, loss: float) -> None:  # type: ignore[override]
        """Take a step; `loss` is that of the minibatch whose gradients the parameters hold."""
        (group,) = self.param_groups
        (beta1, beta2), mix = group["betas"], group["interpolation"]
        items = [item for item in group["params"] if item.grad is not None]
        states = [self._state(item) for item in items]
        inner = sum(
            float((item.grad * (state["z"] - state["x"])).sum())
            for item, state in zip(items, states, strict=True)
        )
        size = math.sqrt(math.pi / 2) * sum(float(item.grad.abs().sum()) for item in items)
        rate = max(0.0, loss + mix * inner) / size if size > 0 else 0.0  # (1)
        self._steps += 1
        self._largest = max(self._largest, rate)
        self._weights += self._largest**2
        share = self._largest**2 / self._weights
        for item, state in zip(items, states, strict=True):
            state["first"].lerp_(item.grad, 1.0 - beta1)
            state["second"].mul_(beta2).addcmul_(item.grad, item.grad, value=1.0 - beta2)
            mean = state["first"] / (1.0 - beta1**self._steps)
            root = state["second"].div(1.0 - beta2**self._steps).sqrt_().add_(group["eps"])
            state["z"].addcdiv_(mean, root, value=-rate)  # (2)
            state["x"].lerp_(state["z"], share)  # (3)
            item.copy_(torch.lerp(state["z"], state["x"], mix))  # (4)

    def train(self) -> None:
        """Begin at the present point."""

    @torch.no_grad()
    def eval(self) -> None:
        """Put the average in place."""
        for item, state in self.state.items():
            item.copy_(state["x"])

    def _state(self, item: Tensor) -> dict[str, Tensor]:
        state = self.state[item]
        if not state:
            state["x"], state["z"] = item.detach().clone(), item.detach().clone()
            state["first"], state["second"] = torch.zeros_like(item), torch.zeros_like(item)
        return state


def schedule_free_plus(run: Run, budget: int) -> Optimizer:
    """ScheduleFree+ at its defaults."""
    return ScheduleFreePlus(run.oracle.parameters)


def plus_step(optimizer: Any, loss: float) -> None:
    """Take a step of ScheduleFree+."""
    optimizer.step(loss)


class GreedyRate:
    """GreedyLR (Subramanian et al. 2025, arXiv:2512.14527) around AdamW.

    The rate is divided by a factor when the smoothed loss has been below its best for more than
    `patience` steps in a row, and multiplied by it when it has been above for as many.
    """

    FACTOR, PATIENCE, WINDOW, THRESHOLD = 0.95, 10, 50, 1e-4
    LOW, HIGH = 1e-2, 1e1  # times the first rate

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._best, self._good, self._bad = math.inf, 0, 0

    def __call__(self, optimizer: Any, loss: float) -> None:
        """Take a step, then change the rate by what the loss has done."""
        optimizer.step()
        self._recent = [*self._recent[1 - self.WINDOW :], loss]
        mean = sum(self._recent) / len(self._recent)
        better = mean < self._best - self.THRESHOLD
        self._good, self._bad = (self._good + 1, 0) if better else (0, self._bad + 1)
        self._best = min(self._best, mean)
        group = optimizer.param_groups[0]
        first = group.setdefault("first_rate", group["lr"])
        if self._good > self.PATIENCE:
            group["lr"] = min(self.HIGH * first, group["lr"] / self.FACTOR)
        elif self._bad > self.PATIENCE:
            group["lr"] = max(self.LOW * first, group["lr"] * self.FACTOR)


def greedy(session: Session) -> Answer:
    """Return the end of AdamW with GreedyLR."""
    return Rival(lambda run, _: torch.optim.AdamW(run.oracle.parameters), step=GreedyRate())(
        session
    )


# ---- by name -------------------------------------------------------------------------------------

# Name, title, what it does, the package that it needs.
RIVALS: tuple[tuple[str, str, Callable[[Session], Answer], str | None], ...] = (
    ("adamw-cosine", "AdamW, warm-up, cosine", adamw_cosine(1e-3), None),
    ("nadamw", "NAdamW, AlgoPerf's constants", Rival(nadamw, rate=_algoperf), None),
    (
        "schedule-free-plus",
        "ScheduleFree+",
        Rival(schedule_free_plus, step=plus_step, modes=True),
        None,
    ),
    ("prodigy-plus", "Prodigy, schedule-free", Rival(prodigy_plus, modes=True), "prodigyplus"),
    ("muon", "Muon, cosine", Rival(muon, rate=cosine), "pytorch_optimizer"),
    ("ademamix", "AdEMAMix, cosine", Rival(ademamix, rate=warm_cosine), "pytorch_optimizer"),
    ("momo", "MoMo-Adam", Rival(momo, step=momo_step), "momo"),
    ("dowg", "DoWG", Rival(dowg), "dowg"),
    ("greedy-lr", "AdamW, GreedyLR", greedy, None),
)
