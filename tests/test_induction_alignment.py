"""How far memories have formed: against loops over pairs, and without any effect on training."""

import copy
import statistics

import pytest
import torch
from torch.nn import functional

from assoc.errors import InputError
from assoc.induction import (
    AssociativeTransformer,
    BigramTask,
    ideal_memories,
    install_ideal_memories,
    memory_tables,
    train_induction,
)
from assoc.induction.alignment import (
    MEMORIES,
    gradient_alignment,
    previous_by_position,
    signal_to_noise,
    stored_pairs,
    uses_of_positions,
    watch_memories,
)
from assoc.seeds import seeded

N, T, DIM = 10, 12, 32


@pytest.fixture
def task() -> BigramTask:
    table = torch.rand(N, N, generator=seeded(3)) + 0.1
    return BigramTask(
        torch.arange(N, 0, -1) / (N * (N + 1) / 2), table / table.sum(dim=1, keepdim=True), length=T, n_triggers=3
    )


@pytest.fixture
def model() -> AssociativeTransformer:
    return AssociativeTransformer(N, T, DIM, generator=seeded(0))


def test_signal_to_noise_is_its_formula(model: AssociativeTransformer, task: BigramTask) -> None:
    for name, measured in signal_to_noise(model, task).items():
        table = memory_tables(model)[name].double().tolist()
        gaps, variances = [], []
        for i, f in zip(*(part.tolist() for part in stored_pairs(model, task)[name]), strict=True):
            wrong = table[i][:f] + table[i][f + 1 :]
            gaps.append(table[i][f] - statistics.mean(wrong))
            variances.append(statistics.variance(wrong))
        expected = statistics.mean(gaps) / statistics.mean(variances) ** 0.5
        assert measured == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_signal_is_large_for_ideal_memories_and_near_zero_at_random(task: BigramTask) -> None:
    wide = AssociativeTransformer(N, T, 1024, generator=seeded(0))
    assert all(abs(value) < 1 for value in signal_to_noise(wide, task).values())
    install_ideal_memories(wide, task)
    assert all(value > 10 for value in signal_to_noise(wide, task).values())


def test_signal_to_noise_needs_three_candidates() -> None:
    two = BigramTask(torch.tensor([0.5, 0.5]), torch.full((2, 2), 0.5), length=8, n_triggers=1)
    with pytest.raises(InputError, match="three tokens"):
        signal_to_noise(AssociativeTransformer(2, 8, 4), two)


def test_gradient_alignment_is_the_slope_along_the_ideal(model: AssociativeTransformer, task: BigramTask) -> None:
    """In float64: norm times cosine is how fast the loss falls along the ideal direction, by central differences."""
    model = model.double()
    batch = task.sample(32, seeded(1))
    counts = batch.occurrence >= 2

    def loss() -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(model(batch.inputs)[counts], batch.targets[counts]))

    for name, (norm, similarity) in gradient_alignment(model, task, batch).items():
        direction = ideal_memories(model, task)[name]
        direction = 1e-4 * direction / direction.norm()
        weight = getattr(model, name).data
        weight += direction
        above = loss()
        weight -= 2 * direction
        below = loss()
        weight += direction
        assert norm * similarity == pytest.approx((below - above) / 2e-4, rel=1e-5, abs=1e-9)


def test_watching_changes_nothing(model: AssociativeTransformer, task: BigramTask) -> None:
    twin = copy.deepcopy(model)
    options = {"steps": 7, "batch_size": 16, "learning_rate": 0.2, "evaluation_size": 32}
    train_induction(twin, task, generator=seeded(2), **options)
    with watch_memories(model, task, every=3) as watch:
        train_induction(model, task, generator=seeded(2), **options)
    assert watch.steps == [0, 3, 6]
    assert all(torch.equal(getattr(model, name), getattr(twin, name)) for name in MEMORIES)
    assert all(watch.cosine[name][0] == 0.0 and len(watch.signal[name]) == 3 for name in MEMORIES)
    model(task.sample(1).inputs)
    assert watch.steps == [0, 3, 6], "the watch ends with its context"


def test_watch_finds_what_is_added(model: AssociativeTransformer, task: BigramTask) -> None:
    inputs = task.sample(1, seeded(0)).inputs
    with watch_memories(model, task) as watch:
        model(inputs)
        with torch.no_grad():
            for name, memory in ideal_memories(model, task, scale=100.0).items():
                getattr(model, name).add_(memory)
        model(inputs)
    assert all(watch.cosine[name][1] == pytest.approx(1.0, abs=1e-5) for name in MEMORIES)
    assert watch.first_step("key1", 3.0) == 1
    assert watch.first_step("key1", 1e9) is None


def test_watch_needs_whole_numbers(model: AssociativeTransformer, task: BigramTask) -> None:
    with pytest.raises(InputError, match="every"), watch_memories(model, task, every=0):
        pass


def test_positions_one_by_one(task: BigramTask) -> None:
    batch = task.sample(20, seeded(5))
    uses = torch.zeros(T, dtype=torch.float64)
    for z, occurrence in zip(batch.inputs.tolist(), batch.occurrence.tolist(), strict=True):
        for t in range(T):
            for s in range(1, t + 1):
                uses[s] += occurrence[t] >= 2 and z[s - 1] == z[t]
    assert uses.sum() > 0
    assert torch.allclose(uses_of_positions(batch), uses / 20)
    attention = torch.rand(3, T, T, generator=seeded(6))
    expected = [sum(float(attention[b, t, t - 1]) for b in range(3)) / 3 for t in range(1, T)]
    assert previous_by_position(attention).tolist() == pytest.approx(expected)
