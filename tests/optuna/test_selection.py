"""The ensemble for an objective of the user's own."""

import math
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import torch
from optuna.artifacts import FileSystemArtifactStore

import grasp_tune as gt
from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Plan
from grasp_tune.executors.study import CHOICE
from grasp_tune.optuna import GraspSampler, grasp_budget, select

SEED = 6


def paper_s_sgd(
    problem: gt.TorchProblem, sampler: GraspSampler, store: FileSystemArtifactStore
) -> Callable[[optuna.Trial], float]:
    """The cell of Algorithm 2 as a user would write it, with the library's minibatches."""
    from grasp_tune.engine.oracle import Oracle

    def objective(trial: optuna.Trial) -> float:
        step = sampler.suggest(trial)
        oracle = Oracle(problem, SEED)
        optimizer = torch.optim.SGD(oracle.parameters, lr=step)
        budget = grasp_budget(trial)
        loss = math.inf
        for call in budget:
            budget.offer(oracle.model, store)
            loss = float(oracle.gradient("train", call))
            optimizer.step()
        budget.offer(oracle.model, store)
        return loss if math.isfinite(loss) else math.inf

    return objective


@pytest.fixture
def swept(
    problem: gt.TorchProblem, tmp_path: Path
) -> tuple[optuna.Study, FileSystemArtifactStore, Plan]:
    study = optuna.create_study()
    store = FileSystemArtifactStore(tmp_path)
    method = gt.NonConvex(L_eps=0.5, F_eps=0.5)
    sampler = GraspSampler.for_problem(problem, 1500, method, seed=SEED, study=study)
    study.sampler = sampler
    study.optimize(paper_s_sgd(problem, sampler, store))
    return study, store, sampler.plan


def test_a_user_s_own_loop_gets_the_paper_s_choice(
    problem: gt.TorchProblem, swept: tuple[optuna.Study, FileSystemArtifactStore, Plan]
) -> None:
    study, store, plan = swept
    found = select(study, problem, artifact_store=store, by="gradient")
    expected = gt.minimize(
        problem, 1500, gt.NonConvex(L_eps=0.5, F_eps=0.5), "paper", seed=SEED, fused=False,
        progress=False,
    )  # fmt: skip
    assert found.plan == expected.plan == plan
    assert found.choice.key == expected.choice.key
    assert found.score == expected.score
    for name, tensor in found.tensors.items():
        assert torch.equal(tensor, expected.tensors[name])
    assert found.cell is not None
    assert found.calls == expected.calls
    assert sum(found.calls.values()) <= 1500
    # The choice and its certificate are on the study, with the trial that it comes from.
    note = study.user_attrs[CHOICE]
    assert found.certificate is not None
    assert note["certificate"]["text"] == found.certificate.text
    chosen = study.trials[note["trial"]]
    assert chosen.params["lr"] == found.cell.value
    with store.open_reader(note["artifact"]) as file:
        assert file.read(8)


def dead_or_trained(held_out: bool) -> gt.TorchProblem:
    """Two classes by a hidden layer of one unit: at weight -9 it is dead, at 2 it is right."""
    rows = torch.linspace(0.1, 1.0, 40).unsqueeze(1)
    labels = 3.0 * rows.squeeze(1)

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return ((torch.relu(model(batch[0])).squeeze(1) - batch[1]) ** 2).mean()

    def model() -> torch.nn.Module:
        made = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(made.weight, 1.0)
        return made

    data = (rows, labels)
    return gt.TorchProblem(
        model=model, loss=loss, data=data, batch_size=8, validation=data if held_out else None
    )


@pytest.mark.parametrize("held_out", [False, True])
def test_a_dead_network_wins_by_gradient_and_loses_by_loss(held_out: bool, tmp_path: Path) -> None:
    problem, store = dead_or_trained(held_out), FileSystemArtifactStore(tmp_path)
    plan = gt.NonConvex(L_eps=1.0, F_eps=1.0).plan(budget=600, grad_norm=3.0)
    sampler = GraspSampler(plan, "lr", seed=SEED)
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        sampler.suggest(trial)
        weight = -9.0 if trial.number == 0 else 2.5
        trained, budget = problem.build(SEED), grasp_budget(trial)
        torch.nn.init.constant_(trained.weight, weight)  # type: ignore[arg-type]
        for _ in budget:
            budget.offer(trained, store)
        budget.offer(trained, store)
        return float(problem.loss(trained, problem.data).detach())

    study.optimize(objective)
    found = select(study, problem, artifact_store=store)
    assert float(found.tensors["param.weight"]) == 2.5
    assert found.choice.by == "value"
    assert sum(found.calls.values()) <= 600
    with pytest.warns(UserWarning, match="above that of x0.*by='loss'"):
        found = select(study, problem, artifact_store=store, by="gradient")
    assert float(found.tensors["param.weight"]) == -9.0
    with pytest.raises(InputError, match="by: got 'luck'"):
        select(study, problem, artifact_store=store, by="luck")  # type: ignore[arg-type]


def test_an_artifact_that_was_cut_short_loses(
    problem: gt.TorchProblem, swept: tuple[optuna.Study, FileSystemArtifactStore, Plan]
) -> None:
    study, store, _ = swept
    first = select(study, problem, artifact_store=store)
    store.remove(study.user_attrs[CHOICE]["artifact"])
    second = select(study, problem, artifact_store=store)
    assert second.choice.key != first.choice.key
    assert any("1 candidates are lost" in note for note in second.notes)


def test_without_a_probe_of_ours_x0_is_sampled_now(
    problem: gt.TorchProblem, tmp_path: Path
) -> None:
    plan = gt.NonConvex(L_eps=0.5, F_eps=0.5).plan(budget=1500, grad_norm=3.0)
    sampler = GraspSampler(plan, "lr", seed=SEED)
    study = optuna.create_study(sampler=sampler)
    store = FileSystemArtifactStore(tmp_path)
    study.optimize(paper_s_sgd(problem, sampler, store))
    found = select(study, problem, artifact_store=store)
    assert found.calls["probe"] == 375  # floor(T/4)
    assert found.candidates[0].samples > 0
    assert sum(found.calls.values()) <= 1500


def test_runs_that_diverged_are_not_sampled(problem: gt.TorchProblem, tmp_path: Path) -> None:
    plan = gt.Convex(L_eps=10.0).plan(budget=600, grad_norm=3.0)
    sampler = GraspSampler(plan, "radius", seed=SEED)
    study = optuna.create_study(sampler=sampler)
    store = FileSystemArtifactStore(tmp_path)

    def objective(trial: optuna.Trial) -> float:
        radius, model = sampler.suggest(trial), problem.build(SEED)
        budget = grasp_budget(trial, per_step=2)
        for _ in budget:
            pass
        with torch.no_grad():
            model.weight.mul_(1.0 + radius)  # type: ignore[operator]
        budget.offer(model, store)
        return math.inf if trial.number else 1.0

    study.optimize(objective)
    found = select(study, problem, artifact_store=store)
    assert [row.note for row in found.candidates] == [""] * 2 + ["diverged"] * (len(plan.cells) - 1)
    assert found.calls["ensemble"] == plan.samples_per_candidate


def test_studies_without_plan_or_candidates_say_so(
    problem: gt.TorchProblem, plan: Plan, tmp_path: Path
) -> None:
    store = FileSystemArtifactStore(tmp_path)
    with pytest.raises(InputError, match="has no plan"):
        select(optuna.create_study(), problem, artifact_store=store)
    sampler = GraspSampler(plan, "lr")
    study = optuna.create_study(sampler=sampler)
    trial = study.ask()
    sampler.suggest(trial)
    study.tell(trial, 1.0)
    with pytest.raises(InputError, match="no candidates"):
        select(study, problem, artifact_store=store)
    searched = optuna.create_study(sampler=GraspSampler(budget=100))
    trial = searched.ask()
    trial.suggest_float("lr", 1e-16, 1e12, log=True)
    searched.tell(trial, 1.0)
    with pytest.raises(InputError, match="searched a step without a plan"):
        select(searched, problem, artifact_store=store)
    with pytest.raises(InputError, match="no candidates"):
        select(study, problem, artifact_store=store)
