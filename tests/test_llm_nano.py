"""Nano's start and training against literal transcriptions; what the covariance comparison sees; shipped results."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from assoc.errors import InputError
from assoc.leading_terms import basis_functions, cosine
from assoc.llm import compare_layers, covariance_cosine, nano, smollm2_path
from assoc.llm.beyond import (
    all_tokens,
    frequency_groups,
    minus_group_means,
    random_cosine,
    residual_features,
    score_features,
    shared_cosine,
    yardstick,
)
from assoc.llm.sweeps import COVARIANCE_SWEEPS
from assoc.seeds import seeded
from assoc.sweeps import load_results

SHIPPED = Path(__file__).resolve().parent.parent / "book" / "results"
TINY = nano.NanoSettings(
    n_layers=2, dim=16, n_heads=2, vocab_size=30, length=6, batch_size=4, learning_rate=0.01, warm_up=3
)


def tokens_of(seed: int, n_sequences: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    sequences = torch.randint(TINY.vocab_size, (n_sequences, TINY.length + 1), generator=seeded(seed))
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


@pytest.fixture(scope="module")
def run() -> nano.NanoRun:
    return nano.train_nano(*tokens_of(0), TINY, 8, seeded(1), show_progress=False)


def literal_covariance(matrix: torch.Tensor) -> torch.Tensor:
    centred = matrix - matrix.mean(dim=1, keepdim=True)
    return centred @ centred.T / (matrix.shape[1] - 1)


# The model


def test_checkpoints_are_pythias():
    assert nano.checkpoint_steps(512) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert nano.checkpoint_steps(100)[-1] == 64
    with pytest.raises(InputError, match="at least 1"):
        nano.checkpoint_steps(0)


def test_the_start_is_that_of_gpt_neox_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    settings = nano.NanoSettings(n_layers=4, dim=64, n_heads=4, vocab_size=300)
    model = nano.nano_model(settings, seeded(0)).model
    assert torch.equal(torch.rand(3), expected)
    again = nano.nano_model(settings, seeded(0)).model
    for (name, weight), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(weight, other)
        if weight.ndim == 2:
            writes = "attention.dense." in name or "4h_to_h" in name
            expected_std = 2 / (4 * math.sqrt(64)) if writes else math.sqrt(2 / (5 * 64))
            assert float(weight.detach().std()) == pytest.approx(expected_std, rel=0.05), name
        else:
            assert torch.equal(weight, torch.full_like(weight, float("norm" in name and "weight" in name))), name
    assert model.config.use_parallel_residual
    assert not model.config.tie_word_embeddings
    assert model.gpt_neox.rotary_emb.inv_freq.numel() == 2  # pairs of a quarter of 16
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"dim": 20}, "multiple of 8"), ({"n_heads": 0}, "n_heads"), ({"vocab_size": 1}, "vocab_size")],
)
def test_sizes_that_cannot_be(changes, message):
    with pytest.raises(InputError, match=message):
        nano.nano_model(nano.NanoSettings(**changes), seeded(0))


def test_training_is_adamw_with_warm_up_written_out():
    inputs, targets = tokens_of(2, n_sequences=4)  # one batch holds all, so that the order does not matter
    settings = nano.NanoSettings(**{**vars(TINY), "batch_size": 4})
    trained = nano.train_nano(inputs, targets, settings, 4, seeded(3), show_progress=False)
    model = nano.nano_model(settings, seeded(3)).model
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in model.parameters()]
    for step in range(1, 5):
        logits = model(inputs, use_cache=False).logits
        loss = -logits.log_softmax(-1).gather(2, targets[..., None]).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        assert float(loss.detach()) == pytest.approx(trained.losses[step - 1], rel=1e-5)
        scale = min(1.0, 1.0 / float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt()))
        rate = settings.learning_rate * min(1, step / settings.warm_up)
        with torch.no_grad():
            for weight, (m, v), gradient in zip(model.parameters(), moments, gradients, strict=True):
                if weight.ndim == 2:
                    weight -= rate * 0.1 * weight
                m += (1 - 0.9) * (gradient * scale - m)
                v += (1 - 0.95) * ((gradient * scale) ** 2 - v)
                weight -= rate * m / (1 - 0.9**step) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
    for name, weight in trained.checkpoints[4].model.named_parameters():
        if name.endswith("query_key_value.bias"):
            continue  # a softmax does not see a key's bias: its gradient is rounding, which Adam makes large
        torch.testing.assert_close(weight, dict(model.named_parameters())[name].detach(), atol=2e-4, rtol=2e-3)


def test_checkpoints_stay_as_they_were(run):
    assert list(run.checkpoints) == [0, 1, 2, 4, 8]
    assert len(run.losses) == 8
    start = nano.nano_model(TINY, seeded(1)).embedding
    assert torch.equal(run.checkpoints[0].embedding, start)
    assert not torch.equal(run.checkpoints[8].embedding, run.checkpoints[4].embedding)
    assert not any(w.requires_grad for model in run.checkpoints.values() for w in model.model.parameters())
    assert not run.checkpoints[8].model.training
    again = nano.train_nano(*tokens_of(0), TINY, 8, seeded(1), show_progress=False)
    assert again.losses == run.losses
    assert nano.mean_losses(run) == pytest.approx(
        [run.losses[0], run.losses[0], run.losses[1], sum(run.losses[2:4]) / 2, sum(run.losses[4:]) / 4]
    )


def test_training_refuses():
    inputs, targets = tokens_of(0, n_sequences=3)
    with pytest.raises(InputError, match="batch_size"):
        nano.train_nano(inputs, targets, TINY, 2, seeded(0))
    with pytest.raises(InputError, match="vocab_size=30"):
        nano.train_nano(inputs + 30, targets, TINY, 2, seeded(0))


# Features and yardsticks


def random_matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64) + 0.3


def test_features_have_the_covariances_of_the_paper():
    E, A = random_matrix(12, 5), random_matrix(5, 5, seed=1)
    C = residual_features(E)
    torch.testing.assert_close(C @ C.T / 4, literal_covariance(E))
    C = score_features(E, A)
    assert C.shape == E.shape
    torch.testing.assert_close(C @ C.T / 11, literal_covariance(E @ A @ E.T))


def test_group_means_by_a_loop():
    features, groups = random_matrix(7, 3), torch.tensor([0, 2, 2, 0, 3, 2, 3])
    left = minus_group_means(features, groups)
    for row, group in enumerate(groups.tolist()):
        torch.testing.assert_close(left[row], features[row] - features[groups == group].mean(dim=0))


def test_frequency_groups_hold_neighbours_in_rank():
    counts = torch.tensor([5, 9, 1, 9, 7, 0, 3])
    groups = frequency_groups(counts, size=3)
    assert groups.tolist() == [1, 0, 1, 0, 0, 2, 1]
    with pytest.raises(InputError, match="at least 2"):
        frequency_groups(counts, size=1)


@pytest.mark.parametrize("groups", [None, all_tokens(9), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])])
def test_yardsticks_by_n_by_n_matrices(groups):
    E, K = random_matrix(9, 4), random_matrix(9, 9, seed=1)
    P = torch.eye(9, dtype=torch.float64)
    if groups is not None:
        same = (groups[:, None] == groups).double()
        P = P - same / same.sum(dim=1)
    unit_rows = K / K.norm(dim=1, keepdim=True)
    G, H = (P @ literal_covariance(M) @ P for M in (E, unit_rows))
    stick = yardstick(K, groups)
    assert stick.cosine(residual_features(E)) == pytest.approx(cosine(G, H), rel=1e-12)
    if groups is None:
        assert stick.cosine(residual_features(E)) == pytest.approx(covariance_cosine(E, K), rel=1e-12)


@pytest.mark.parametrize("groups", [None, all_tokens(5)])
def test_chance_is_the_mean_over_all_permutations(groups):
    C, K = residual_features(random_matrix(5, 3)), random_matrix(5, 5, seed=1)
    permutations = [torch.tensor(p) for p in itertools.permutations(range(5))]
    stick = yardstick(K, groups)
    mean = sum(stick.cosine(C[p]) for p in permutations) / len(permutations)
    assert stick.chance(C) == pytest.approx(mean, rel=1e-10)


def test_random_features_reach_what_the_formula_says():
    K, generator = random_matrix(60, 60), seeded(3)
    term = yardstick(K)
    draws = [torch.randn(60, 12, generator=generator, dtype=torch.float64) for _ in range(300)]
    found = sum(term.cosine(residual_features(draw)) for draw in draws) / len(draws)
    assert found == pytest.approx(random_cosine(term, 12), rel=0.03)


def test_shared_cosine_is_that_with_ones():
    C = residual_features(random_matrix(8, 3))
    assert shared_cosine(C) == pytest.approx(cosine(C @ C.T, torch.ones(8, 8)), rel=1e-12)
    assert shared_cosine(C[:1].expand(8, 3)) == pytest.approx(1)
    assert math.isnan(shared_cosine(torch.zeros(8, 3, dtype=torch.float64)))


def test_frequencies_alone_are_the_matrix_of_ones():
    """Phi of rank one, (q - u) m': every row of the value term is a multiple of one vector, so all tokens are alike."""
    _, targets = tokens_of(4, n_sequences=40)
    q = targets.flatten().bincount(minlength=30).double() / targets.numel()
    m = torch.rand(30, generator=seeded(0), dtype=torch.float64) + 0.1
    bigram = basis_functions(*tokens_of(4, n_sequences=40), 30).bigram
    term = yardstick(m[:, None] * ((q - 1 / 30) @ bigram.T))
    assert shared_cosine(term.features) == pytest.approx(1, abs=1e-12)


def test_yardsticks_refuse():
    with pytest.raises(InputError, match="groups"):
        yardstick(random_matrix(4, 4), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="features must be"):
        yardstick(random_matrix(4, 4)).cosine(random_matrix(3, 2))


# A whole comparison


def test_compare_beyond_is_the_papers_comparison_with_its_levels(run):
    inputs, targets = tokens_of(0)
    basis = basis_functions(inputs, targets, TINY.vocab_size)
    sticks = nano.prepare_yardsticks(basis, inputs.flatten().bincount(minlength=TINY.vocab_size))
    model, tokens = run.checkpoints[8], torch.arange(TINY.vocab_size)
    found = nano.compare_beyond(model, tokens, sticks)
    layers = list(compare_layers(model, tokens, sticks.terms))
    for kind in nano.KINDS:
        assert found["cosines"][kind] == [getattr(layer, kind) for layer in layers]
    for layer, before, _, after in model.single_token_residuals(tokens):
        C = score_features(before, model.mean_query_key(layer))
        assert sticks.plain["attention"].cosine(C) == pytest.approx(found["cosines"]["attention"][layer], rel=1e-4)
        expected = covariance_cosine(after - after.mean(dim=0), unit_and_centred(basis.value))
        assert found["beyond_shared"]["embedding"]["value"][layer] == pytest.approx(expected, rel=1e-4)
    nested = nano.by_checkpoint([found, found])
    assert nested["heads"] == [found["heads"]] * 2
    assert nested["cosines"]["embedding"] == [found["cosines"]["embedding"]] * 2


def test_positions_are_those_of_single_token_residuals(run):
    model = run.checkpoints[8]
    found = nano.positions_compared(model, 5, seeded(0))
    tokens = torch.randperm(TINY.vocab_size, generator=seeded(0))[1:6]
    first, _ = model.single_token_residuals(tokens)
    assert found["first"]["norm"] == pytest.approx([float(first.after.norm(dim=1).mean())], rel=1e-5)
    assert found["first"]["shared"] == pytest.approx([shared_cosine(residual_features(first.after))], rel=1e-4)
    assert found["second"]["norm"] != found["first"]["norm"]


def unit_and_centred(term: torch.Tensor):
    from assoc.llm import prepare_term

    return prepare_term(term, centre_tokens=True)


# What is shipped


def test_shipped_points_are_those_of_the_registry():
    for sweep in COVARIANCE_SWEEPS:
        points = load_results(SHIPPED / f"{sweep.name}.json").points
        assert [{key: point[key] for key in sweep.points[0]} for point in points] == list(sweep.points)


def test_shipped_nano_again_for_two_steps():
    """The same start and steps give the same cosines; the rest of the run is long."""
    point = load_results(SHIPPED / "6a-nano.json").where(seed=0)[0]
    settings = nano.NanoSettings()
    corpus = nano.load_corpus("stories", vocab_size=settings.vocab_size, length=settings.length, unknown="map")
    basis = basis_functions(corpus.inputs, corpus.targets, settings.vocab_size)
    run = nano.train_nano(corpus.inputs, corpus.targets, settings, 2, seeded(0), show_progress=False)
    assert nano.mean_losses(run) == pytest.approx(point["loss"][:3], rel=1e-3)
    plain, beyond = yardstick(basis.value), yardstick(basis.value, all_tokens(settings.vocab_size))
    *_, last = run.checkpoints[2].single_token_residuals(torch.arange(settings.vocab_size))
    C = residual_features(last.after)
    at = point["steps"].index(2)
    assert plain.cosine(C) == pytest.approx(point["cosines"]["embedding"][at][-1], rel=0.01)
    assert plain.chance(C) == pytest.approx(point["chance"]["embedding"][at][-1], rel=0.01)
    assert beyond.cosine(C) == pytest.approx(point["beyond_shared"]["embedding"]["value"][at][-1], rel=0.05)


def test_shipped_smollm2_again_for_its_first_layer():
    try:
        smollm2_path()
    except InputError as error:
        pytest.skip(str(error))
    point = load_results(SHIPPED / "6a-smollm2.json").points[0]
    model = nano.load_model(smollm2_path())
    texts = nano.load_texts("stories").texts
    statistics = nano.token_statistics(texts, model.encode, point["n_tokens"], point["length"])
    assert statistics.n_sequences == point["n_sequences"]
    places = load_results(SHIPPED / "6a-smollm2-position.json").points[0]
    again = nano.positions_compared(model, places["n_tokens"], seeded(places["seed"]))
    for name in ("first", "second"):
        assert again[name]["norm"] == pytest.approx(places[name]["norm"], rel=0.01)
    first = next(iter(model.single_token_residuals(statistics.tokens)))
    C = residual_features(first.after)
    assert yardstick(statistics.basis.value).cosine(C) == pytest.approx(point["cosines"]["embedding"][0], rel=0.01)
