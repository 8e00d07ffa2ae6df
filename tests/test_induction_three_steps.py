"""Theorem 3 in tables of scores: against one-hot vectors multiplied out, all sequences listed, and autograd in d
dimensions; and the shipped results against points computed anew."""

from itertools import permutations, product
from math import comb
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from assoc import sweeps
from assoc.errors import InputError
from assoc.induction import AssociativeTransformer, BigramTask, memory_tables
from assoc.induction.three_step_runs import SWEEPS, orthonormal_model, text_steps
from assoc.induction.three_steps import (
    BLOCKS,
    KEPT,
    NAMED,
    ORDER,
    Examples,
    OneTrigger,
    Overlaps,
    accuracy,
    block_of,
    block_slices,
    first_step,
    gradient,
    gradient_steps,
    keep_blocks,
    matches,
    position_shortcut,
    rates_for,
    read,
    recall,
    second_step,
    set_partitions,
    symmetrised,
    third_step,
    zero_tables,
)
from assoc.seeds import seeded

RESULTS = Path(__file__).parents[1] / "book" / "results"
MARGINS = (10.0, 10.0, 20.0)


def random_tables(data: OneTrigger, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = seeded(seed)
    return {
        name: torch.randn(table.shape, generator=generator, dtype=torch.float64)
        for name, table in zero_tables(data).items()
    }


def by_products(tables, z: list[int]) -> torch.Tensor:
    """Logits of one sequence, all vectors written out as one-hot and multiplied, one place at a time."""
    N, T = len(tables["output2"]), len(z)
    both, eye = N + T, torch.eye(2 * (N + T), dtype=torch.float64)
    x = [eye[token] + eye[N + place] for place, token in enumerate(z)]
    remap = torch.zeros(2 * both, 2 * both, dtype=torch.float64)
    remap[both:, :both] = torch.eye(both)
    x1 = []
    for t in range(T):
        scores = [x[t][:both] @ tables["key1"] @ x[s][:both] for s in range(t + 1)]
        a = torch.stack(scores).softmax(dim=0)
        x1.append(x[t] + remap @ sum(a[s] * x[s] for s in range(t + 1)))
    a = torch.stack([x1[-1] @ tables["key2"] @ x1[s] for s in range(T)]).softmax(dim=0)
    return tables["output2"] @ sum(a[s] * x1[s] for s in range(T))


def every_sequence(data: OneTrigger) -> Examples:
    """All triggers, places and other tokens, each once: an independent listing."""
    N, T = data.vocab_size, data.length
    inputs, targets = [], []
    for q, j in product(range(N), range(T - 2)):
        for rest in product([token for token in range(N) if data.recurring or token != q], repeat=T - 2):
            z = list(rest)
            z.insert(j, q)
            inputs.append([*z, q])
            targets.append(inputs[-1][j + 1])
    return Examples(torch.tensor(inputs), torch.tensor(targets))


def test_partitions_are_all_and_different() -> None:
    assert [len(set_partitions(n)) for n in range(1, 9)] == [1, 2, 5, 15, 52, 203, 877, 4140]
    rows = set_partitions(6).tolist()
    assert len(set(map(tuple, rows))) == len(rows)
    for row in rows:  # classes are numbered in the order of appearance
        assert all(value <= max(row[:place], default=-1) + 1 for place, value in enumerate(row))


@pytest.mark.parametrize(("N", "T"), [(3, 5), (4, 5), (5, 4)])
def test_patterns_are_the_mean_over_all_sequences(N, T) -> None:
    """Also where there are fewer tokens than places, so that some patterns are impossible."""
    data = OneTrigger(N, T)
    patterns, listed = data.every_pattern(), every_sequence(data)
    assert float(patterns.weights.sum()) == pytest.approx(1.0, abs=1e-12)
    tables = {name: symmetrised(table, data) for name, table in random_tables(data).items()}
    for name in ORDER:
        found = symmetrised(gradient(tables, name, patterns), data)
        torch.testing.assert_close(found, gradient(tables, name, listed), atol=1e-12, rtol=1e-10)
    assert accuracy(tables, patterns) == pytest.approx(accuracy(tables, listed), abs=1e-12)


def test_samples_follow_the_definition() -> None:
    data = OneTrigger(7, 6)
    inputs, targets, weights = data.sample(70_000, seeded(0))
    assert weights is None
    is_trigger = inputs == inputs[:, -1:]
    assert bool((is_trigger[:, :-1].sum(dim=1) == 1).all())
    place = is_trigger.int().argmax(dim=1)
    assert bool((targets == inputs.gather(1, place[:, None] + 1)[:, 0]).all())
    assert torch.bincount(place, minlength=6).double().div(70_000)[:4].sub(0.25).abs().max() < 0.01
    assert int(place.max()) == 3
    assert torch.bincount(inputs[:, -1]).double().div(70_000).sub(1 / 7).abs().max() < 0.01
    assert torch.bincount(targets).double().div(70_000).sub(1 / 7).abs().max() < 0.01


def test_reading_is_the_model_multiplied_out() -> None:
    data = OneTrigger(5, 4)
    tables, inputs = random_tables(data), data.sample(6, seeded(1)).inputs
    expected = torch.stack([by_products(tables, z) for z in inputs.tolist()])
    torch.testing.assert_close(read(tables, inputs).logits, expected, atol=1e-12, rtol=1e-12)
    # Tables of zeros take a short cut.
    for name in ORDER:
        tables[name] = torch.zeros_like(tables[name])
        expected = torch.stack([by_products(tables, z) for z in inputs.tolist()])
        torch.testing.assert_close(read(tables, inputs).logits, expected, atol=1e-12, rtol=1e-12)


def test_reading_is_the_model_of_training_with_orthonormal_vectors() -> None:
    N, T = 6, 5
    equal = torch.ones(N, N) / N
    task = BigramTask(equal[0], equal, length=T, n_triggers=1)
    model, data = orthonormal_model(task).double(), OneTrigger(N, T)
    tables, both = random_tables(data), N + T
    with torch.no_grad():
        model.output2[2 * both :, : 2 * both] = tables["output2"]
        model.key2[: 2 * both, : 2 * both] = tables["key2"] * model.dim**0.5
        model.key1[:both, :both] = tables["key1"] * model.dim**0.5
        inputs = data.sample(9, seeded(2)).inputs
        reading, trace = read(tables, inputs), model.trace(inputs)
    torch.testing.assert_close(reading.logits, trace.logits[:, -1], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(reading.attention1, trace.attentions[0], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(reading.attention2, trace.attentions[1][:, -1], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ORDER)
def test_gradients_are_slopes_of_the_loss(name) -> None:
    data = OneTrigger(5, 4)
    examples, tables = data.sample(11, seeded(3)), random_tables(data)
    found = gradient(tables, name, examples)

    def loss(shift: torch.Tensor) -> torch.Tensor:
        moved = tables | {name: tables[name] + shift}
        return functional.cross_entropy(read(moved, examples.inputs).logits, examples.targets)

    for seed in range(4):
        direction = torch.randn(found.shape, generator=seeded(seed), dtype=torch.float64)
        slope = (loss(1e-5 * direction) - loss(-1e-5 * direction)) / 2e-5
        assert float((found * direction).sum()) == pytest.approx(float(slope), rel=1e-6, abs=1e-9)


def test_weighted_and_plain_gradients_agree_beyond_one_chunk(monkeypatch) -> None:
    data = OneTrigger(5, 4)
    examples, tables = data.sample(50, seeded(4)), random_tables(data)
    whole = gradient(tables, "key2", examples)
    monkeypatch.setattr("assoc.induction.three_steps.CHUNK", 7)
    weights = torch.full((50,), 1 / 50, dtype=torch.float64)
    torch.testing.assert_close(gradient(tables, "key2", examples), whole)
    torch.testing.assert_close(gradient(tables, "key2", Examples(*examples[:2], weights)), whole)
    assert accuracy(tables, examples) == pytest.approx(accuracy(tables, Examples(*examples[:2], weights)))


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 64), st.integers(4, 8))
@example(3, 7)
@example(64, 8)
def test_the_closed_forms_are_the_population_gradients(N, T) -> None:
    data = OneTrigger(N, T)
    patterns, tables = data.every_pattern(), zero_tables(data, torch.float64)
    centre = torch.eye(N, dtype=torch.float64) - 1 / N
    step = -symmetrised(gradient(tables, "output2", patterns), data)
    for column, factor in zip(("token", "remapped token"), first_step(data), strict=True):
        torch.testing.assert_close(block_of(step, data, ("token", column)), factor / (N * T) * centre)
    for column in ("position", "remapped position"):
        assert block_of(step, data, ("token", column)).abs().max() < 1e-15

    alpha = beta = 1e-5
    block_of(tables["output2"], data, NAMED["output2"][0]).copy_(alpha * centre)
    step = -symmetrised(gradient(tables, "key2", patterns), data)
    for column, factor in zip(("remapped token", "token"), second_step(data), strict=True):
        found = block_of(step, data, ("token", column)) * N * T / alpha
        torch.testing.assert_close(found, factor * centre, atol=1e-4, rtol=1e-4)
    found = block_of(step, data, ("position", "position"))[-1] * T / alpha
    torch.testing.assert_close(found, position_shortcut(data), atol=1e-4, rtol=1e-4)

    block_of(tables["key2"], data, NAMED["key2"][0]).copy_(beta * centre)
    step = -symmetrised(gradient(tables, "key1", patterns), data)
    found = block_of(step, data, NAMED["key1"][0]) * T / (alpha * beta)
    torch.testing.assert_close(found, third_step(data), atol=1e-4, rtol=1e-3)


def test_margins_are_what_small_steps_leave() -> None:
    data, margins = OneTrigger(64, 8), (1e-3, 1e-3, 1e-3)
    *_, last = gradient_steps(data, rates_for(data, margins), data.every_pattern(), dtype=torch.float64)
    output2, key2, key1 = (block_of(last.tables[name], data, NAMED[name][0]) for name in ORDER)
    assert float(output2[0, 0] - output2[0, 1]) == pytest.approx(1e-3, rel=1e-6)
    assert float(key2[0, 0] - key2[0, 1]) == pytest.approx(1e-3, rel=1e-2)
    row = key1[6]
    assert float(row[5] - row[[*range(5), 6]].max()) == pytest.approx(1e-3, rel=1e-2)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ORDER), st.integers(3, 4), st.integers(4, 6), st.integers(0, 2**32))
def test_symmetrised_is_the_mean_over_renamings(name, N, T, seed) -> None:
    data = OneTrigger(N, T)
    table, slices = random_tables(data, seed)[name], block_slices(data)
    total, renamings = torch.zeros_like(table), list(permutations(range(N)))
    for names in renamings:
        order = torch.arange(2 * (N + T))
        for block in ("token", "remapped token"):
            order[slices[block]] = torch.tensor(names) + slices[block].start
        total += table[order[: len(table)]][:, order[: table.shape[1]]] / len(renamings)
    torch.testing.assert_close(symmetrised(table, data), total)


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 7), st.integers(4, 7), st.integers(0, 2**32))
def test_reading_is_a_product_of_one_hot_vectors(N, T, seed) -> None:
    data = OneTrigger(N, T, recurring=True)
    tables, (inputs, _, _) = random_tables(data, seed), data.sample(3, seeded(seed))
    logits, attention1, attention2 = read(tables, inputs)
    torch.testing.assert_close(logits, torch.stack([by_products(tables, z) for z in inputs.tolist()]))
    for attention in (attention1, attention2):
        torch.testing.assert_close(attention.sum(dim=-1), torch.ones(attention.shape[:-1], dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 8), st.integers(4, 8), st.integers(0, 2**32))
def test_matches_row_by_row(N, T, seed) -> None:
    data = OneTrigger(N, T)
    tables = random_tables(data, seed)
    both = N + T

    def best(scores: list[float], right: int) -> bool:
        return scores[right] == max(scores) and scores.count(scores[right]) == 1

    key1, key2, output2 = (tables[name].tolist() for name in ("key1", "key2", "output2"))
    expected = {
        "output2": [best([output2[j][v] for j in range(N)], v) for v in range(N)],
        "key2": [best(key2[k][both : both + N], k) for k in range(N)],
        "key1": [best(key1[N + t][N:], t - 1) for t in range(1, T)],
    }
    for name in ORDER:
        assert matches(tables, data, name).tolist() == expected[name]
        assert recall(tables, data, name) == pytest.approx(sum(expected[name]) / len(expected[name]))


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 5), st.integers(4, 5), st.integers(1, 6), st.floats(0.5, 3), st.integers(0, 2**32))
def test_a_step_spills_over_as_the_vectors_overlap(N, T, d, root, seed) -> None:
    """A change sum_ab g_ab u_a v_b' of the matrix, seen in its scores u_i' W v_j."""
    generator = seeded(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tokens, positions, remap, value, output = randn(N, d), randn(T, d), randn(d, d), randn(d, d), randn(N, d)
    overlaps = Overlaps.of(tokens, positions, remap, value, output, root=root)
    own = [*tokens, *positions]
    stream = own + [remap @ vector for vector in own]
    vectors = {
        "output2": (list(output), [value @ vector for vector in stream], 1),
        "key2": (stream, stream, root),
        "key1": (own, own, root),
    }
    for name, (left, right, divisor) in vectors.items():
        g = random_tables(OneTrigger(N, T), seed)[name]
        change = sum(g[a, b] * torch.outer(u, v) for a, u in enumerate(left) for b, v in enumerate(right))
        # Attention scores are divided by `root`, and with them the gradient by which the matrix moves.
        scores = torch.stack([torch.stack([u @ change @ v for v in right]) for u in left]) / divisor**2
        torch.testing.assert_close(overlaps.spread(name, g), scores, rtol=1e-8, atol=1e-9)
    residual = torch.stack([torch.stack([u @ vector for vector in stream]) for u in output])
    torch.testing.assert_close(overlaps.residual, residual)


def test_blocks_cover_the_tables_and_can_be_kept() -> None:
    data = OneTrigger(5, 4)
    assert list(block_slices(data)) == list(BLOCKS)
    table = torch.ones(18, 18)
    kept = keep_blocks(table, data, [("token", "remapped token"), ("position", "position")])
    assert float(kept.sum()) == 25 + 16
    assert bool(block_of(kept, data, ("token", "remapped token")).all())
    assert keep_blocks(table, data, None) is table
    total = sum(block_of(table, data, pair).sum() for pair in product(BLOCKS, repeat=2))
    assert float(total) == 18 * 18


def test_recall_and_accuracy_of_known_tables() -> None:
    data = OneTrigger(6, 5)
    tables = zero_tables(data)
    examples = every_sequence(OneTrigger(3, 4))
    assert [recall(tables, data, name) for name in ORDER] == [0, 0, 0]  # ties are lost
    assert accuracy(zero_tables(OneTrigger(3, 4)), examples) == pytest.approx(1 / 3)  # ties count as their share
    for name in ("output2", "key2"):
        block_of(tables[name], data, NAMED[name][0]).copy_(30 * torch.eye(6))
    block_of(tables["key1"], data, NAMED["key1"][0])[1:, :-1] = 30 * torch.eye(4)
    assert [recall(tables, data, name) for name in ORDER] == [1, 1, 1]
    block_of(tables["key1"], data, NAMED["key1"][0])[2, 4] = 40  # the future counts, too
    assert matches(tables, data, "key1").tolist() == [True, False, True, True]
    assert recall(tables, data, "key1") == 0.75


def test_three_steps_make_an_induction_head() -> None:
    data = OneTrigger(64, 8)
    everything, rates = data.every_pattern(), rates_for(data, MARGINS)
    reached = {}
    for kept, blocks in KEPT.items():
        steps = list(gradient_steps(data, rates, everything, kept=blocks, dtype=torch.float64))
        assert [step.name for step in steps] == list(ORDER)
        reached[kept] = accuracy(steps[-1].tables, everything)
        if kept in ("named", "own token"):
            assert [recall(step.tables, data, step.name) for step in steps] == [1, 1, 1]
    assert reached["named"] == pytest.approx(5 / 6, abs=0.01)  # all but j = 1
    assert reached["own token"] > 0.99
    assert reached["all"] < 0.3 < 0.9 < reached["no positions"]


def test_steps_may_draw_examples_anew() -> None:
    """A function is asked once a step, and the tables move by what it gave for that step."""
    data, rates, drawn = OneTrigger(8, 6), dict.fromkeys(ORDER, 5.0), []

    def draw() -> Examples:
        drawn.append(data.sample(30, seeded(len(drawn))))
        return drawn[-1]

    *_, last = gradient_steps(data, rates, draw, dtype=torch.float64)
    assert len(drawn) == 3
    tables = zero_tables(data, torch.float64)
    for name, examples in zip(ORDER, drawn, strict=True):
        tables[name] = -5.0 * keep_blocks(gradient(tables, name, examples), data, NAMED[name])
    for name in ORDER:
        torch.testing.assert_close(last.tables[name], tables[name])


def test_a_matrix_whose_turn_is_too_early_does_not_move() -> None:
    data = OneTrigger(8, 6)
    everything, rates = data.every_pattern(), rates_for(data, MARGINS)
    moved = {}
    for order in (("key2", "key1", "output2"), ("output2", "key1", "key2"), ("key1", "output2", "key2")):
        *_, last = gradient_steps(data, rates, everything, order=order)
        moved[order] = {name for name in ORDER if last.tables[name].any()}
    assert list(moved.values()) == [{"output2"}, {"output2", "key2"}, {"output2", "key2"}]
    at_once = list(gradient_steps(data, rates, everything, order=[ORDER] * 3))
    assert len(at_once) == 9
    assert [{name for name in ORDER if step.tables[name].any()} for step in at_once[::3]] == [
        {"output2"},
        {"output2", "key2"},
        set(ORDER),
    ]


def test_tables_with_overlaps_are_the_model_in_d_dimensions() -> None:
    data, generator, root = OneTrigger(6, 5), seeded(7), 12**0.5
    model = AssociativeTransformer(6, 5, 12, generator=generator).double()
    overlaps = Overlaps.of(
        model.token_embedding.detach(),
        model.position_embedding.detach(),
        (model.output1 @ model.value1).detach(),
        model.value2.detach(),
        model.unembedding.detach(),
        root=root,
    )
    examples, rates = data.sample(40, generator), {"output2": 3.0, "key2": 20.0, "key1": 20.0}
    for name in ORDER:
        getattr(model, name).data.zero_()
    order = ("output2", "key2", "key1", "output2", "key1")
    for name in order:
        weight = getattr(model, name)
        loss = functional.cross_entropy(model(examples.inputs)[:, -1], examples.targets)
        weight.data -= rates[name] * torch.autograd.grad(loss, weight)[0]
    *_, last = gradient_steps(
        data, rates, examples, order=order, kept=KEPT["all"], overlaps=overlaps, dtype=torch.float64
    )
    expected = memory_tables(model)
    for name in ORDER:
        found = block_of(last.tables[name], data, NAMED[name][0])
        wanted = expected[name].T if name == "output2" else expected[name]
        torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-8)
    logits = read(last.tables, examples.inputs, overlaps.residual).logits
    torch.testing.assert_close(logits, model(examples.inputs)[:, -1].detach(), atol=1e-9, rtol=1e-8)


def test_random_vectors_become_orthonormal() -> None:
    data = OneTrigger(6, 5)
    small, large = (Overlaps.random(data, dim, seeded(0)) for dim in (16, 4096))
    eye = torch.eye(22)
    assert (large.stream - eye).abs().max() < 0.15 < (small.stream - eye).abs().max()
    assert (large.value - eye).abs().max() < 0.15
    assert large.residual.abs().max() < 0.15


@settings(deadline=None)
@given(st.integers(3, 100), st.integers(4, 60))
def test_best_accuracy_is_the_mean_share_of_one_of_several_triggers(N, T) -> None:
    """Of the T - 3 other places before T - 1 each holds the trigger with probability 1/N."""
    p = 1 / N
    chances = [comb(T - 3, m) * p**m * (1 - p) ** (T - 3 - m) for m in range(T - 2)]
    expected = sum(chance / (1 + m) for m, chance in enumerate(chances))
    assert OneTrigger(N, T, recurring=True).best_accuracy() == pytest.approx(expected, rel=1e-10)


def test_best_accuracy_with_recurring_triggers() -> None:
    data = OneTrigger(3, 5, recurring=True)
    listed = every_sequence(data)
    candidates = (listed.inputs[:, :3] == listed.inputs[:, -1:]).sum(dim=1)
    assert data.best_accuracy() == pytest.approx(float((1 / candidates.double()).mean()))
    assert OneTrigger(3, 5).best_accuracy() == 1
    inputs, targets, _ = data.sample(1000, seeded(0))
    follows = (inputs[:, :3] == inputs[:, -1:]) & (inputs[:, 1:4] == targets[:, None])
    assert bool(follows.any(dim=1).all())


def test_text_steps_read_the_model_they_change() -> None:
    task = BigramTask.from_text("the cat sat on the mat and the rat ran to the hat", length=16, n_triggers=3)
    model = orthonormal_model(task)
    steps = text_steps(model, task, (0.1, 10, 20), 64, kept=NAMED, generator=seeded(0), test_size=64)
    assert [step["name"] for step in steps] == list(ORDER)
    both = task.vocab_size + task.length
    tables = memory_tables(model)
    ahead = tables["output2"].diagonal().mean() - tables["output2"].fill_diagonal_(0).sum() / (
        task.vocab_size * (task.vocab_size - 1)
    )
    assert abs(float(ahead)) == pytest.approx(0.1, rel=1e-3)
    kept = model.key2.detach().clone()
    kept[: task.vocab_size, both : both + task.vocab_size] = 0
    assert not kept.any()
    assert model.output2[2 * both :, : task.vocab_size].any()
    assert steps[0]["recall"] > 0.5


@pytest.mark.parametrize(("seed", "n_sequences"), [(0, 150), (1, 64)])
def test_text_steps_go_down_the_loss_on_repeated_outputs(seed, n_sequences) -> None:
    """With batches of several parts (the first case), and where that leaves the stored pairs behind (the second)."""
    text = "the cat sat on the mat and the rat ran to the hat"
    task = BigramTask.from_text(text, length=16, n_triggers=3, triggers="random")
    model, again = orthonormal_model(task), seeded(seed)
    text_steps(model, task, (0.1, 10, 20), n_sequences, generator=seeded(seed), test_size=64)
    task.sample(64, again)
    *_, batch = (task.sample(n_sequences, again) for _ in ORDER)
    step = model.key1.detach().clone()
    model.key1.data.zero_()
    repeated = batch.occurrence >= 2
    loss = functional.cross_entropy(model(batch.inputs)[repeated], batch.targets[repeated])
    slope = torch.autograd.grad(loss, model.key1)[0]
    torch.testing.assert_close(step / step.norm(), -slope / slope.norm(), atol=1e-5, rtol=1e-4)


RATES = dict.fromkeys(ORDER, 1.0)


def steps_of(data: OneTrigger, rates, **settings) -> list:
    """Steps on sequences of 8 tokens and 5 places, whatever the data say."""
    return list(gradient_steps(data, rates, OneTrigger(8, 5).sample(20, seeded(0)), **settings))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneTrigger(2, 8), "vocab_size"),
        (lambda: OneTrigger(8, 3), "length"),
        (lambda: OneTrigger(8, 13).every_pattern(), "use sample"),
        (lambda: OneTrigger(8, 8, recurring=True).every_pattern(), "use sample"),
        (lambda: OneTrigger(8, 8).sample(0), "n_sequences"),
        (lambda: rates_for(OneTrigger(8, 8), (1, 1)), "three numbers"),
        (lambda: rates_for(OneTrigger(8, 8), (1, 0, 1)), "three numbers"),
        (lambda: rates_for(OneTrigger(8, 8), (1, float("nan"), 1)), "three numbers"),
        (lambda: rates_for(OneTrigger(8, 8), (1, float("inf"), 1)), "three numbers"),
        (lambda: rates_for(OneTrigger(8, 8), ("1", 1, 1)), "three numbers"),
        (lambda: rates_for(OneTrigger(8, 8), 5), "three numbers"),
        (lambda: text_steps(None, None, (1, 1), 8), "three numbers"),
        (lambda: rates_for(OneTrigger(64, 4), (1, 1, 1)), "64 tokens at 4 places"),
        (lambda: rates_for(OneTrigger(4, 12), (1, 1, 1)), "4 tokens at 12 places"),
        (lambda: rates_for(OneTrigger(8, 8, recurring=True), (1, 1, 1)), "occurs once"),
        (lambda: first_step(OneTrigger(8, 8, recurring=True)), "occurs once"),
        (lambda: third_step(OneTrigger(8, 8, recurring=True)), "occurs once"),
        (lambda: steps_of(OneTrigger(8, 5), {}, order=["key3"]), "key3"),
        (lambda: steps_of(OneTrigger(8, 5), {}), "learning rate"),
        (lambda: steps_of(OneTrigger(8, 5), RATES, kept={"output2": None}), "blocks that are kept"),
        (lambda: steps_of(OneTrigger(8, 6), RATES), "at 6 places"),
        (lambda: steps_of(OneTrigger(3, 5), RATES), "of 3 tokens"),
        (lambda: Overlaps.random(OneTrigger(8, 5), 0), "dim"),
    ],
)
def test_bad_input_is_told_in_one_line(make, message) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# --- the shipped results

CHEAP = {
    "5b-dimensions": ({"dim": 128, "kept": "named", "seed": 1}, {"accuracy": 0.03, "key2": 0.05}),
    "5b-lengths": ({"length": 8, "kept": "own token"}, {"accuracy": 1e-3, "recall": 1e-3, "ahead": 1e-3}),
    "5b-text": ({"triggers": "random", "dim": 0, "kept": "named", "margins": [0.1, 10.0, 20.0], "seed": 0}, None),
}


@pytest.mark.parametrize("name", CHEAP)
def test_a_shipped_point_comes_out_again(name) -> None:
    where, tolerances = CHEAP[name]
    sweep = next(sweep for sweep in SWEEPS if sweep.name == name)
    shipped = sweeps.load_results(RESULTS / f"{name}.json").where(**where)[0]
    found = sweep.function(**{key: shipped[key] for key in sweep.points[0]})
    for key, tolerance in (tolerances or {"accuracy": 0.05, "recall": 0.1}).items():
        assert found[key] == pytest.approx(shipped[key], abs=tolerance)


def test_the_shipped_descent_begins_as_a_short_one() -> None:
    sweep = next(sweep for sweep in SWEEPS if sweep.name == "5b-descent")
    shipped = sweeps.load_results(RESULTS / "5b-descent.json").where(rate=10.0)[0]
    found = sweep.function(length=8, rate=10.0, n_steps=20, every=20)
    for key in ("step", "accuracy", *ORDER):
        assert found[key] == pytest.approx(shipped[key][: len(found[key])], abs=0.01)
