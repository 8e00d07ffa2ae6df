"""Cross-talk of outer-product memories: predictions against simulation, corrections against the formulas."""

import math

import pytest
import torch

from assoc.errors import InputError
from assoc.induction import (
    AssociativeTransformer,
    BigramTask,
    capacity,
    induction_predictions,
    install_ideal_memories,
    memory_tables,
)
from assoc.induction.cross_talk import (
    capacity_scale,
    dual_vectors,
    exclude_first_position,
    expected_recall,
    install_dual_key2,
    key_noise,
    stored_queries,
)
from assoc.seeds import seeded

N, T, SCALE = 12, 16, 20.0


@pytest.fixture
def task() -> BigramTask:
    table = torch.rand(N, N, generator=seeded(3)) + 0.1
    table /= table.sum(dim=1, keepdim=True)
    return BigramTask(torch.arange(N, 0, -1) / (N * (N + 1) / 2), table, length=T, n_triggers=3)


def model(dim: int) -> AssociativeTransformer:
    return AssociativeTransformer(N, T, dim, generator=seeded(0)).double()


@pytest.mark.parametrize("dim", [1, 2, 16, 1000])
def test_capacity_scale_solves_its_equation(dim: int) -> None:
    n = capacity_scale(dim)
    assert n * 2 * math.log(n) == pytest.approx(dim**2)


def test_expected_recall_is_that_of_independent_normal_noise() -> None:
    n, d, draws = 60, 16, 20_000
    right = 1 + torch.randn(draws, generator=seeded(0)) * math.sqrt(n - 1) / d
    wrong = torch.randn(draws, n - 1, generator=seeded(1)) * math.sqrt(2 / d + (n - 2) / d**2)
    simulated = (right > wrong.amax(dim=1)).double().mean()
    assert expected_recall(n, d) == pytest.approx(float(simulated), abs=4 * 0.5 / math.sqrt(draws))


def test_expected_recall_is_close_to_what_memories_hold() -> None:
    for n in (300, 1200, 2000):
        assert capacity(n, 128, seeded(0)) == pytest.approx(expected_recall(n, 128), abs=0.07)
    assert capacity(100, 128, seeded(0)) == 1
    assert expected_recall(100, 128) > 0.99


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="dim is 0: give a whole number of at least 1"):
        capacity_scale(0)
    with pytest.raises(InputError, match="n_pairs is 1: give a whole number of at least 2"):
        expected_recall(1, 8)


def test_dual_vectors_match_only_their_own() -> None:
    vectors = torch.randn(20, 30, generator=seeded(0), dtype=torch.float64)
    torch.testing.assert_close(dual_vectors(vectors) @ vectors.T, torch.eye(20, dtype=torch.float64))
    assert dual_vectors(vectors.float()).dtype == torch.float32


def test_stored_queries_are_the_fixed_triggers_or_all_tokens(task: BigramTask) -> None:
    assert stored_queries(model(8), task).tolist() == [0, 1, 2]
    assert stored_queries(model(8), None).tolist() == list(range(N))
    random_triggers = BigramTask(task.unigram, task.bigram, length=T, n_triggers=3, triggers="random")
    assert stored_queries(model(8), random_triggers).tolist() == list(range(N))


def test_excluding_position_1_is_one_outer_product_for_each_trigger(task: BigramTask) -> None:
    head = install_ideal_memories(model(64), task, scale=SCALE)
    before = head.key2.detach().clone()
    assert exclude_first_position(head, task, scale=SCALE) is head
    expected = torch.zeros(64, 64, dtype=torch.float64)
    p = head.position_embedding[0]
    for k in range(3):
        w = head.token_embedding[k]
        expected -= SCALE * 8 * torch.outer(w, p) / (w @ w * (p @ p))
    torch.testing.assert_close(head.key2.detach() - before, expected)


def test_dual_keys_have_no_cross_talk(task: BigramTask) -> None:
    head = install_dual_key2(install_ideal_memories(model(2 * (N + T)), task, scale=SCALE), task, scale=SCALE)
    expected = torch.zeros(N, N, dtype=torch.float64)
    expected[range(3), range(3)] = SCALE
    torch.testing.assert_close(memory_tables(head)["key2"], expected, atol=1e-8, rtol=0)
    scores = (head.token_embedding @ head.key2 @ head.position_embedding.T / math.sqrt(head.dim)).detach()
    expected = torch.zeros(N, T, dtype=torch.float64)
    expected[:3, 0] = -SCALE
    torch.testing.assert_close(scores, expected, atol=1e-8, rtol=0)
    between_tokens = (head.token_embedding @ head.key2 @ head.token_embedding.T).detach()
    torch.testing.assert_close(between_tokens, torch.zeros_like(between_tokens), atol=1e-7, rtol=0)


def test_both_corrections_make_the_head_right(task: BigramTask) -> None:
    inputs, targets, occurrence = task.sample(64, seeded(1))
    repeated = occurrence >= 2
    assert (induction_predictions(inputs) == targets)[repeated].all()

    def accuracy(head: AssociativeTransformer) -> float:
        return float((head(inputs).argmax(dim=-1) == targets)[repeated].double().mean())

    head = install_ideal_memories(model(512), task, scale=SCALE)
    by_formula = accuracy(head)
    assert by_formula < 0.985
    assert accuracy(exclude_first_position(head, task, scale=SCALE)) > 0.99
    assert accuracy(install_dual_key2(head, task, scale=SCALE)) == 1


@torch.no_grad()
def test_key_noise_is_the_spread_of_wrong_scores(task: BigramTask) -> None:
    head = install_ideal_memories(model(32), task, scale=SCALE)
    inputs, _, occurrence = task.sample(6, seeded(1))
    x = head.embed(inputs)
    (attention, _), V1 = head.attention_maps(inputs), head.output1 @ head.value1
    first, second = [], []
    for b in range(len(inputs)):
        x1 = [x[b, t] + V1 @ sum(attention[b, t, s] * x[b, s] for s in range(t + 1)) for t in range(T)]
        for t in range(T):
            for s in range(1, t - 1):
                first.append(float(x[b, t] @ head.key1 @ x[b, s]))
                if occurrence[b, t] >= 2 and inputs[b, s - 1] != inputs[b, t]:
                    second.append(float(x1[t] @ head.key2 @ x1[s]))
    expected = [float(torch.tensor(scores).std()) / (SCALE * math.sqrt(32)) for scores in (first, second)]
    assert key_noise(head, inputs, occurrence, scale=SCALE) == pytest.approx(expected, rel=1e-5)
