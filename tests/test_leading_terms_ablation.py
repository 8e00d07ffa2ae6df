"""Leading terms taken out of weights, and the conditions of chapter 4A: against literal computations in numpy, and
against the result files that the book ships."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import literal_leading_terms as literal
from assoc.errors import InputError
from assoc.leading_terms import AttentionOnlyTransformer, basis_functions, cosine, train
from assoc.leading_terms.ablation import (
    PARTS,
    ablate,
    every_weight,
    frequency_terms,
    loss_without,
    parts,
    projection,
    random_direction,
    remove_projection,
    replaced,
    shuffled_words,
)
from assoc.leading_terms.conditions import (
    agreement_under,
    all_leading_terms,
    clock,
    lowest_cosines,
    removal_after_training,
    started_cosines,
    stories,
    two_halves,
    yardstick_agreement,
)
from assoc.leading_terms.model import gaussian_start
from assoc.leading_terms.sweeps import SWEEPS
from assoc.leading_terms.theory import KINDS, step_coefficients
from assoc.seeds import seeded
from assoc.sweeps import load_results, rounded
from notebooks import ROOT

N, T, V, L = 10, 9, 7, 2


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    sequences = torch.randint(V, (N, T + 1), generator=seeded(0)) * 2 // 3
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


@pytest.fixture(scope="module")
def basis(data):
    return basis_functions(*data, V)


@pytest.fixture(scope="module")
def model(data) -> AttentionOnlyTransformer:
    model = AttentionOnlyTransformer(V, T, L)
    train(model, *data, learning_rate=0.7, steps=9, show_progress=False)
    return model


def literal_loss(weights: dict[str, Any], x: np.ndarray, y: np.ndarray) -> float:
    logits = literal.logits(weights, x, V)
    exponents = np.exp(logits - logits.max(axis=2, keepdims=True))
    probabilities = exponents / exponents.sum(axis=2, keepdims=True)
    return float(-np.log(np.take_along_axis(probabilities, y[:, :, None], axis=2)).mean())


def as_arrays(model: AttentionOnlyTransformer) -> dict[str, Any]:
    weights = {kind: [w.detach().numpy().copy() for w in ws] for kind, ws in model.weights().items()}
    return {**weights, "output": weights["output"][0]}


# Taking out


def test_a_share_of_the_projection_is_taken_out() -> None:
    weight, term = (torch.randn(5, 5, generator=seeded(seed), dtype=torch.float64) for seed in (1, 2))
    coefficient = float((weight * term).sum() / term.square().sum())
    for share in (0.0, 0.3, 1.0, 2.0):
        left = remove_projection(weight, term, share)
        assert float((left * term).sum() / term.square().sum()) == pytest.approx((1 - share) * coefficient, abs=1e-12)
    torch.testing.assert_close(projection(weight, term), coefficient * term)


def test_parts_are_what_they_say(data, basis, model) -> None:
    by_frequency = frequency_terms(basis, *data)
    for (kind, _), weight in every_weight(model).items():
        term, frequent = basis.leading_term(kind), by_frequency[kind]
        found = parts(weight, term, frequent, seeded(3))
        assert tuple(found) == PARTS
        along = found["leading term"]
        assert abs(float(((weight - along) * term).sum())) < 1e-12 * float(weight.norm() * term.norm())
        # Frequencies and associations are orthogonal, and the term lies in what they span.
        together = found["its frequencies"] + found["its associations"]
        product = float((found["its frequencies"] * found["its associations"]).sum())
        assert abs(product) < 1e-12 * float(weight.square().sum())
        assert abs(float(((weight - together) * term).sum())) < 1e-12 * float(weight.norm() * term.norm())
        assert abs(float(((weight - together) * frequent).sum())) < 1e-12 * float(weight.norm() * frequent.norm())
        for name in ("shuffled words", "random"):
            assert float(found[name].norm()) == pytest.approx(float(along.norm()))
        torch.testing.assert_close(found["shuffled words"].flatten().sort().values, along.flatten().sort().values)


def test_shuffled_words_keep_singular_values_and_lose_the_words() -> None:
    table = torch.randn(30, 30, generator=seeded(4), dtype=torch.float64)
    shuffled = shuffled_words(table, seeded(5))
    torch.testing.assert_close(torch.linalg.svdvals(shuffled), torch.linalg.svdvals(table))
    assert abs(cosine(shuffled, table)) < 0.2
    vector = torch.arange(6.0)
    assert sorted(shuffled_words(vector, seeded(6)).tolist()) == vector.tolist()


def test_random_directions_have_the_norm_and_no_direction() -> None:
    one, other = (random_direction((40, 40), 2.5, seeded(seed)) for seed in (7, 8))
    assert float(one.norm()) == pytest.approx(2.5)
    assert abs(cosine(one, other)) < 0.1


def test_frequency_terms_are_those_of_a_corpus_that_knows_frequencies_only(data, basis) -> None:
    """Literally: B and Phi are sums over positions; with every word drawn by its frequency only means are left."""
    x, y = (tokens.numpy() for tokens in data)
    X, Y, A0 = literal.one_hot(x, V), literal.one_hot(y, V), literal.uniform_attention(T)
    p, q, u = X.mean(axis=(0, 1)), Y.mean(axis=(0, 1)), np.full(V, 1 / V)
    m = np.einsum("tm,nmv->v", A0, X) / (N * T)
    B, S, Phi = np.outer(p, q - u), basis.interchangeability.numpy(), np.outer(q - u, m)
    Q, Delta = np.zeros((V, V)), np.zeros(T)
    for i in range(N):
        Qi = np.einsum("tmk,tk->tm", literal.softmax_jacobian(A0), (Y[i] - u) @ S @ Phi @ X[i].T)
        Q += X[i].T @ Qi @ X[i] / (N * T)
        Delta += [np.trace(Qi, -k) / (N * T) for k in range(T)]
    found = frequency_terms(basis, *data)
    expected = {"output": B, "value": Phi.T @ basis.bigram.numpy().T, "attention": Q, "position": Delta}
    for kind in KINDS:
        np.testing.assert_allclose(found[kind].numpy(), expected[kind], atol=1e-14, err_msg=kind)


# Losses


def test_losses_without_parts_are_those_of_the_literal_model(data, basis, model) -> None:
    x, y = (tokens.numpy() for tokens in data)
    for (kind, layer), weight in every_weight(model).items():
        part = 1.5 * projection(weight, basis.leading_term(kind))
        weights = as_arrays(model)
        if kind == "output":
            weights["output"] -= part.numpy()
        else:
            weights[kind][layer - 1] -= part.numpy()
        found = loss_without(model, *data, {(kind, layer): part})
        assert found == pytest.approx(literal_loss(weights, x, y), abs=1e-10), (kind, layer)


def test_the_table_of_losses(data, basis, model) -> None:
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    x, y = (tokens.numpy() for tokens in data)
    found = ablate(model, basis, *data, seeded(0))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert found["loss"] == pytest.approx(literal_loss(as_arrays(model), x, y), abs=1e-10)
    assert [(row["kind"], row["layer"]) for row in found["weights"]] == list(every_weight(model))
    weights = as_arrays(model)
    row = found["weights"][0]
    weights["output"] = projection(model.output, basis.bigram).numpy()
    assert row["only"] == pytest.approx(literal_loss(weights, x, y), abs=1e-10)
    assert row["cosine"] == pytest.approx(cosine(model.output, basis.bigram))
    weights["output"] = model.output.detach().numpy() - weights["output"]
    assert row["leading term"] == pytest.approx(literal_loss(weights, x, y), abs=1e-10)
    assert found["layers"]["output"] == pytest.approx(row["leading term"])
    assert all(row[part] > 0 for row in found["weights"] for part in PARTS)
    weights = as_arrays(model)
    for layer in range(L):
        weights["value"][layer] -= projection(model.value[layer], basis.value).numpy()
    assert found["layers"]["value"] == pytest.approx(literal_loss(weights, x, y), abs=1e-10)
    by_frequency = frequency_terms(basis, *data)
    for name, terms in (("leading terms", all_leading_terms(basis)), ("frequencies", by_frequency)):
        weights = {kind: [projection(w, terms[kind]).numpy() for w in ws] for kind, ws in model.weights().items()}
        weights["output"] = weights["output"][0]
        assert found["only"][name] == pytest.approx(literal_loss(weights, x, y), abs=1e-10), name


def test_weights_are_put_back_whatever_happens(model) -> None:
    before = model.output.detach().clone()
    with replaced(model, {("output", 0): torch.zeros(V, V)}):
        assert not model.output.any()
    assert torch.equal(model.output, before)

    def fail() -> None:
        with replaced(model, {("output", 0): torch.zeros(V, V)}):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert torch.equal(model.output, before)


# The start


def test_a_gaussian_start_has_the_variance_of_the_theorem() -> None:
    model = gaussian_start(AttentionOnlyTransformer(120, 50, 2), 0.3, seeded(0), exponent=0.5)
    for weight in (w.detach() for w in (*model.attention, *model.value, model.output)):
        assert float(weight.std()) == pytest.approx(0.3 / 120**1.5, rel=0.05)
        assert float(weight.norm()) == pytest.approx(0.3 / 120**0.5, rel=0.05)
        assert abs(float(weight.mean())) < 0.05 * float(weight.std())
    assert float(model.position[0].detach().norm()) == pytest.approx(50**0.5 * 0.3 / 120**1.5, rel=0.3)
    assert abs(cosine(model.attention[0], model.attention[1])) < 0.05
    again = gaussian_start(AttentionOnlyTransformer(120, 50, 2), 0.3, seeded(0), exponent=0.5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not any(weight.any() for weight in gaussian_start(again, 0.0, seeded(0)).parameters())


def test_what_a_start_costs_if_the_term_is_added_to_it(basis) -> None:
    """For an orthogonal start S the cosine is 1/sqrt(1 + (|S|/(c |K|))^2)."""
    coefficients = step_coefficients(5, 0.4)
    start, expected = {}, {}
    for kind in KINDS:
        term = basis.leading_term(kind)
        noise = remove_projection(random_direction(term.shape, 1.0, seeded(1)), term)
        ratio = float(noise.norm() / (getattr(coefficients, kind) * term.norm()))
        start[kind, 1], expected[kind] = noise, (1 + ratio**2) ** -0.5
    assert started_cosines(start, basis, 5, 0.4) == pytest.approx(expected, rel=1e-9)


# Conditions


def test_two_halves_share_no_story() -> None:
    corpus = stories(60, 20)
    one, other = two_halves(corpus, 1000, 0)
    rows = {tuple(row) for row in one.inputs.tolist()}
    assert len(one) == len(other) == 1000
    numbered = corpus.select(torch.arange(len(corpus)))
    order = torch.randperm(len(numbered), generator=seeded(0))
    assert not set(order[:1000].tolist()) & set(order[1000:2000].tolist())
    assert torch.equal(one.inputs, numbered.inputs[order[:1000]])
    assert len(rows) > 900


def test_byte_pairs_leave_no_word_unknown() -> None:
    corpus = stories(120, 20, "bpe")
    assert "<unk>" not in corpus.vocabulary
    assert 100 < corpus.vocab_size <= 120
    assert corpus.statistics.vocabulary_coverage == 1.0
    assert "<unk>" in stories(120, 20).vocabulary


def test_a_condition_is_the_run_that_it_names() -> None:
    settings = {"vocab_size": 60, "length": 16, "n_sequences": 40, "n_layers": 2}
    found = agreement_under(3, **settings, learning_rate=0.5, steps=8, record_every=4)
    data, others = two_halves(stories(60, 16), 40, 3)
    basis = basis_functions(data.inputs, data.targets, 60)
    model = AttentionOnlyTransformer(60, 16, 2, dtype=torch.float32)
    history = train(model, data.inputs, data.targets, 0.5, 8, basis=basis, show_progress=False)
    assert found["times"] == [2.0, 4.0]
    assert found["loss"] == pytest.approx([history.loss[4], history.loss[8]], rel=1e-5)
    for place, step in enumerate((4, 8)):
        for kind in KINDS:
            expected = min(a.cosine for a in history.agreements[step] if a.kind == kind)
            assert found["cosine"][place][kind] == pytest.approx(expected, abs=1e-5), (kind, step)
    assert found["started"][1] == pytest.approx(dict.fromkeys(KINDS, 1.0))
    other = basis_functions(others.inputs, others.targets, 60)
    assert found["other"][1]["output"] == pytest.approx(cosine(model.output, other.bigram), abs=1e-5)
    assert found["sample"]["value"] == pytest.approx(cosine(other.value, basis.value))
    assert found["clock"] == pytest.approx(2**0.5 * float(torch.linalg.svdvals(basis.context)[0]))
    by_frequency = frequency_terms(basis, data.inputs, data.targets)
    assert found["frequencies"] == pytest.approx({k: cosine(by_frequency[k], basis.leading_term(k)) for k in KINDS})
    beyond = lowest_cosines(model, all_leading_terms(basis), without=by_frequency)
    assert found["beyond"][1] == pytest.approx(beyond, abs=1e-3)


def test_conditions_change_what_they_name() -> None:
    settings = {"vocab_size": 60, "length": 16, "n_sequences": 40, "n_layers": 1, "steps": 4, "record_every": 4}
    plain = agreement_under(0, **settings)
    without = agreement_under(0, **settings, positions=False)
    assert math.isnan(without["cosine"][0]["position"])
    assert without["cosine"][0]["output"] == pytest.approx(plain["cosine"][0]["output"], abs=1e-4)
    started = agreement_under(0, **settings, start=10.0)
    assert started["cosine"][0]["output"] < 0.5 < plain["cosine"][0]["output"]
    assert started["started"][0]["output"] == pytest.approx(started["cosine"][0]["output"], abs=0.1)
    assert agreement_under(0, **settings, batch_size=8)["cosine"] != plain["cosine"]
    assert agreement_under(0, **settings) == plain


def test_steps_are_sized_by_the_clock() -> None:
    settings = {"vocab_size": 60, "length": 16, "n_sequences": 40, "n_layers": 1}
    found = removal_after_training(1, **settings, theta_step=0.1, marks=(3, 6))
    data, _ = two_halves(stories(60, 16), 40, 1)
    basis = basis_functions(data.inputs, data.targets, 60)
    assert found["learning_rate"] * clock(basis, 1) == pytest.approx(0.1)
    assert found["theta"] == pytest.approx([0.3, 0.6])
    model = AttentionOnlyTransformer(60, 16, 1, dtype=torch.float32)
    train(model, data.inputs, data.targets, found["learning_rate"], 6, show_progress=False)
    expected = ablate(model, basis, data.inputs, data.targets, seeded(1))
    assert found["ablations"][1]["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert [row["leading term"] for row in found["ablations"][1]["weights"]] == pytest.approx(
        [row["leading term"] for row in expected["weights"]], abs=1e-4
    )
    shares = data.targets.flatten().bincount().double() / data.targets.numel()
    assert found["entropy"] == pytest.approx(float(-(shares[shares > 0] * shares[shares > 0].log()).sum()))


@pytest.mark.parametrize(
    ("call", "needle"),
    [
        (lambda: remove_projection(torch.ones(2), torch.zeros(2), 0.5), "zero"),
        (lambda: gaussian_start(AttentionOnlyTransformer(3, 3, 1), -1.0, seeded(0)), "scale is -1"),
        (lambda: gaussian_start(AttentionOnlyTransformer(3, 3, 1), 1.0, seeded(0), math.nan), "exponent is nan"),
        (lambda: stories(50, 20, "letters"), "words or bpe"),
        (lambda: two_halves(stories(60, 20), 2000, 0), "at most 1024"),
    ],
)
def test_bad_input(call: Callable[[], object], needle: str) -> None:
    with pytest.raises(InputError, match=needle):
        call()


@pytest.mark.parametrize(
    ("place", "new", "needle"),
    [
        (("value", L + 1), torch.zeros(V, V), "no value weight of layer 3"),
        (("output", 1), torch.zeros(V, V), "no output weight of layer 1"),
        (("key", 1), torch.zeros(V, V), "no key weight"),
        (("position", 1), torch.zeros(V), "must be"),
    ],
)
def test_weights_that_do_not_exist_or_fit_are_not_replaced(model, place, new, needle: str) -> None:
    with pytest.raises(InputError, match=needle), replaced(model, {place: new}):
        pass


# What the book ships


def shipped(name: str) -> tuple[Any, list[dict[str, Any]]]:
    sweep = next(sweep for sweep in SWEEPS if sweep.name == name)
    return sweep, load_results(ROOT / "book" / "results" / f"{name}.json").points


@pytest.mark.parametrize("name", ["4a-ablation", "4a-conditions", "4a-tokenizers", "4a-yardstick"])
def test_shipped_points_are_those_of_the_sweep(name: str) -> None:
    sweep, points = shipped(name)
    assert [{key: point[key] for key in plan} for point, plan in zip(points, sweep.points, strict=True)] == [
        rounded(plan) for plan in sweep.points
    ]


def test_a_shipped_condition_is_found_again() -> None:
    _, points = shipped("4a-conditions")
    point = next(point for point in points if point.get("n_layers") == 1 and point["seed"] == 1)
    found = agreement_under(1, n_layers=1)
    assert found["loss"] == pytest.approx(point["loss"], abs=1e-3)
    for kind in KINDS:
        assert found["cosine"][0][kind] == pytest.approx(point["cosine"][0][kind], abs=1e-3)
        assert found["sample"][kind] == pytest.approx(point["sample"][kind], abs=1e-4)


def test_the_start_of_a_shipped_removal_is_found_again() -> None:
    """The whole run takes minutes: its corpus and step size are compared."""
    _, points = shipped("4a-ablation")
    for point in points[:2]:
        data, _ = two_halves(stories(400, 64, point["tokenizer"]), 128, point["seed"])
        basis = basis_functions(data.inputs, data.targets, data.vocab_size)
        assert point["vocab_size"] == data.vocab_size
        assert point["learning_rate"] == pytest.approx(0.036 / clock(basis, 3), rel=1e-4)
        by_frequency = frequency_terms(basis, data.inputs, data.targets)
        level = cosine(by_frequency["value"], basis.value)
        assert point["frequencies"]["value"] == pytest.approx(level, abs=1e-5)


def test_a_shipped_yardstick_is_found_again() -> None:
    _, points = shipped("4a-yardstick")
    found = yardstick_agreement(points[0]["seed"], tokenizer=points[0]["tokenizer"])
    assert found["cosine"] == pytest.approx(points[0]["cosine"], abs=1e-4)
