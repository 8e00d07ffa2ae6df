"""The chi-square test: known quantiles, a literal loop, and p-values that are uniform where they should be."""

import pytest
import torch

from assoc.errors import InputError
from assoc.induction import BigramTask
from assoc.induction.statistics import is_caught, row_chi_square, transition_counts


def test_p_values_at_tabulated_quantiles() -> None:
    # Two outcomes, 100 draws: (o - 50)^2 / 50 twice. 3.841459 is the 95 % quantile for one degree of freedom.
    shift = (3.841459 * 25) ** 0.5
    result = row_chi_square(torch.tensor([[50 + shift, 50 - shift]]), torch.tensor([[0.5, 0.5]]))
    assert result.freedom == 1
    assert result.statistic == pytest.approx(3.841459, rel=1e-5)
    assert result.p_value == pytest.approx(0.05, rel=1e-4)
    # 18.30704 is that for ten.
    counts = torch.full((1, 11), 100.0, dtype=torch.float64)
    shift = (18.30704 * 100 / 2) ** 0.5
    counts[0, 0] += shift
    counts[0, 1] -= shift
    result = row_chi_square(counts, torch.full((1, 11), 1 / 11, dtype=torch.float64))
    assert result.freedom == 10
    assert result.p_value == pytest.approx(0.05, rel=1e-4)


def by_loops(counts: list[list[float]], distributions: list[list[float]]) -> tuple[float, int]:
    statistic, freedom = 0.0, 0
    for observed, probabilities in zip(counts, distributions, strict=True):
        total, likeliest = sum(observed), probabilities.index(max(probabilities))
        cells = {j: [0.0, 0.0] for j, p in enumerate(probabilities) if total * p >= 5 or (j == likeliest and total)}
        for j, (o, p) in enumerate(zip(observed, probabilities, strict=True)):
            cell = cells.get(j if total * p >= 5 else likeliest)
            if cell is not None:
                cell[0] += o
                cell[1] += total * p
        statistic += sum((o - e) ** 2 / e for o, e in cells.values())
        freedom += max(len(cells) - 1, 0)
    return statistic, freedom


def tables(seed: int, n_rows: int = 12, n_columns: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Distributions with small and zero entries, and counts drawn from them; some rows are short, one is empty."""
    generator = torch.Generator().manual_seed(seed)
    distributions = torch.rand(n_rows, n_columns, generator=generator, dtype=torch.float64) ** 4
    distributions[:, 3] = 0
    distributions /= distributions.sum(dim=1, keepdim=True)
    counts = torch.zeros(n_rows, n_columns, dtype=torch.float64)
    for row, total in enumerate([0, 3, 20, *[500] * (n_rows - 3)]):
        if total:
            draws = torch.multinomial(distributions[row], total, replacement=True, generator=generator)
            counts[row] = draws.bincount(minlength=n_columns)
    return counts, distributions


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_loops(seed: int) -> None:
    counts, distributions = tables(seed)
    result = row_chi_square(counts, distributions)
    statistic, freedom = by_loops(counts.tolist(), distributions.tolist())
    assert result.statistic == pytest.approx(statistic)
    assert result.freedom == freedom


def test_p_values_are_uniform_under_the_null() -> None:
    p_values = torch.tensor([row_chi_square(*tables(seed)).p_value for seed in range(300)])
    for level in (0.1, 0.5, 0.9):
        assert abs(float((p_values < level).double().mean()) - level) < 0.09


def test_wrong_distributions_are_refuted() -> None:
    counts, distributions = tables(0)
    shifted = distributions.roll(1, dims=1)
    assert row_chi_square(counts[:, 4:], distributions[:, 4:].roll(1, dims=1)).p_value < 1e-12
    assert row_chi_square(counts, shifted).p_value == 0, "a count where the probability is zero"


def test_transition_counts() -> None:
    inputs, targets = torch.tensor([[0, 1, 1]]), torch.tensor([[1, 1, 0]])
    where = torch.tensor([[True, True, False]])
    assert transition_counts(inputs, targets, where, 2).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("outputs", ["uniform", "bigram"])
def test_caught_sequences_are_those_that_reached_a_ring(outputs: str) -> None:
    generator = torch.Generator().manual_seed(0)
    N, K = 12, 4
    bigram = torch.rand(N, N, generator=generator, dtype=torch.float64)
    task = BigramTask(
        torch.full((N,), 1 / N, dtype=torch.float64),
        bigram / bigram.sum(dim=1, keepdim=True),
        length=40,
        n_triggers=K,
        outputs=outputs,
    )
    sequences = task.sample_sequences(300, generator)
    expected = []
    for inputs, triggers, drawn in zip(
        sequences.inputs.tolist(), sequences.triggers.tolist(), sequences.outputs.tolist(), strict=True
    ):
        rules = dict(zip(triggers, drawn, strict=True))
        in_rings = set()
        for trigger in triggers:
            now, path = trigger, []
            while now in rules and now not in path:
                path.append(now)
                now = rules[now]
            if now == trigger:
                in_rings.add(trigger)
        # Within the last K + 1 inputs the ring must be recognised: it, or a path into it, by their first.
        path = inputs[-K - 1 :]
        expected.append(all(token in rules for token in path) and any(token in in_rings for token in path))
    caught = is_caught(sequences.occurrence, K)
    assert caught.tolist() == expected
    assert 0.1 < caught.double().mean() < 0.9
    for row in caught.nonzero().flatten().tolist()[:20]:
        tail = sequences.inputs[row, -K - 1 :].tolist()
        assert any(tail[-1] == token for token in tail[:-1]), "the last trigger has been there before"


def test_bad_input() -> None:
    with pytest.raises(InputError, match="too few for rings"):
        is_caught(torch.ones(2, 4, dtype=torch.int64), 4)
    with pytest.raises(InputError, match="one shape"):
        row_chi_square(torch.ones(2, 3), torch.ones(3, 2) / 2)
    with pytest.raises(InputError, match="too few counts"):
        row_chi_square(torch.ones(1, 2), torch.tensor([[0.5, 0.5]]))
