"""What basis functions recover: word classes, themes, and what they cannot see."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assoc.corpus import load_corpus
from assoc.errors import InputError
from assoc.leading_terms.basis import basis_functions
from assoc.leading_terms.neighbours import association, neighbours
from assoc.leading_terms.recovery import (
    WORD_CLASSES,
    against_frequencies,
    chance_agreement,
    class_agreement,
    context_against_frequencies,
    evened,
    hold_out,
    labelled_words,
    shuffle_words,
    theme_ranks,
    topical_words,
    word_shares,
)


def random_tokens(n_sequences, length, vocab_size, seed=0):
    tokens = torch.randint(vocab_size, (n_sequences, length + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@pytest.fixture(scope="module")
def stories():
    return load_corpus("stories", vocab_size=1500, length=60, unknown="map")


# Word classes


def test_word_classes_lie_in_the_vocabulary_of_the_stories(stories):
    tokens, labels = labelled_words(stories.vocabulary, WORD_CLASSES)
    assert len(tokens) == sum(map(len, WORD_CLASSES.values())) == len(set(tokens.tolist()))
    names = list(WORD_CLASSES)
    assert all(
        stories.vocabulary[t] in WORD_CLASSES[names[c]] for t, c in zip(tokens.tolist(), labels.tolist(), strict=True)
    )


def test_labelled_words_leaves_out_what_the_vocabulary_lacks():
    tokens, labels = labelled_words(["b", "x", "a", "d", "c"], {"first": ["a", "b", "z"], "second": ["c", "d"]})
    assert tokens.tolist() == [2, 0, 4, 3]
    assert labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("classes", "needle"),
    [({"one": ["a", "z"]}, "fewer than two"), ({"one": ["a", "b"], "two": ["a", "c"]}, "two classes")],
)
def test_labelled_words_refuses(classes, needle):
    with pytest.raises(InputError, match=needle):
        labelled_words(["a", "b", "c"], classes)


def agreement_by_loops(strengths, labels):
    nearest, precisions = [], []
    for i in range(len(labels)):
        others = sorted((j for j in range(len(labels)) if j != i), key=lambda j: (-strengths[i][j], j))
        nearest.append(labels[others[0]] == labels[i])
        ranks = [rank for rank, j in enumerate(others, start=1) if labels[j] == labels[i]]
        precisions.append(sum(found / rank for found, rank in enumerate(ranks, start=1)) / len(ranks))
    return sum(nearest) / len(nearest), sum(precisions) / len(precisions)


@given(st.integers(0, 10_000), st.integers(2, 4))
def test_class_agreement_is_that_of_loops(seed, n_classes):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n_classes).repeat(3)[torch.randperm(3 * n_classes, generator=generator)]
    strengths = torch.randint(-3, 4, (len(labels), len(labels)), generator=generator).double()  # with ties
    assert class_agreement(strengths, labels) == pytest.approx(agreement_by_loops(strengths.tolist(), labels.tolist()))


def test_class_agreement_ignores_the_diagonal_and_reaches_both_ends():
    labels = torch.tensor([0, 0, 1, 1])
    block = (labels[:, None] == labels).double()
    assert class_agreement(block - 5 * torch.eye(4), labels) == (1.0, 1.0)
    assert class_agreement(-block, labels).nearest == 0.0
    assert class_agreement(-block, labels).precision == pytest.approx(1 / 3)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 1, 1]])
def test_chance_is_the_mean_over_all_orders(labels):
    n_words = len(labels)
    precision, nearest = [], []
    for i in range(n_words):
        others = [j for j in range(n_words) if j != i]
        for order in itertools.permutations(others):
            hits = [labels[j] == labels[i] for j in order]
            nearest.append((hits[0], math.factorial(n_words - 1)))
            terms = [sum(hits[: k + 1]) / (k + 1) for k in range(len(hits)) if hits[k]]
            precision.append(sum(terms) / len(terms))
    chance = chance_agreement(torch.tensor(labels))
    assert chance.nearest == pytest.approx(sum(hit for hit, _ in nearest) / len(nearest))
    assert chance.precision == pytest.approx(sum(precision) / len(precision))


@pytest.mark.parametrize("measure", [chance_agreement, lambda labels: class_agreement(torch.zeros(3, 3), labels)])
def test_a_class_of_one_word_is_refused(measure):
    with pytest.raises(InputError, match="at least two words"):
        measure(torch.tensor([0, 0, 1]))


def test_class_agreement_refuses_a_table_of_another_size():
    with pytest.raises(InputError, match=r"strengths must be .* of shape \(4, 4\)"):
        class_agreement(torch.zeros(4, 5), torch.tensor([0, 0, 1, 1]))


def test_interchangeability_finds_classes_and_context_finds_themes(stories):
    """The claim of the chapter, on a smaller corpus: each basis function recovers its own kind of relation."""
    themes = sorted(set(stories.topics))
    labels = torch.tensor([themes.index(topic) for topic in stories.topics])
    held = hold_out(labels, 8, torch.Generator().manual_seed(0))
    basis = basis_functions(stories.inputs[~held], stories.targets[~held], stories.vocab_size)
    kinds = {
        "class": labelled_words(stories.vocabulary, WORD_CLASSES),
        "theme": topical_words(stories.inputs[held], labels[held], stories.vocab_size, minimum=5),
    }
    found = {
        (kind, name): class_agreement(association(basis, name, normalised=True)[tokens][:, tokens], words).nearest
        for kind, (tokens, words) in kinds.items()
        for name in ("interchangeability", "context")
    }
    assert found["class", "interchangeability"] > 2 * found["class", "context"]
    assert found["theme", "context"] > 2 * found["theme", "interchangeability"]


# Against frequencies


def test_frequency_basis_is_the_definition_with_q_for_u():
    n_sequences, length, vocab_size = 4, 7, 6
    inputs, targets = random_tokens(n_sequences, length, vocab_size)
    B, Phi = torch.zeros(2, vocab_size, vocab_size, dtype=torch.float64)
    q = [(targets == j).double().mean().item() for j in range(vocab_size)]
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
        for t in range(length):
            for j in range(vocab_size):
                residual = ((y[t] == j) - q[j]) / (n_sequences * length)
                B[x[t], j] += residual
                for m in range(t + 1):
                    Phi[j, x[m]] += residual / (t + 1)
    found = against_frequencies(basis_functions(inputs, targets, vocab_size), inputs, targets)
    for table, expected in ((found.bigram, B), (found.interchangeability, B.T @ B), (found.context, Phi)):
        torch.testing.assert_close(table, expected, rtol=0, atol=1e-14)
        for dim in (0, 1):
            assert table.sum(dim=dim).abs().max() < 1e-14


@pytest.mark.parametrize("skip", [0, 1, 4])
def test_context_without_the_first_positions_is_the_literal_sum(skip):
    n_sequences, length, vocab_size = 4, 7, 6
    inputs, targets = random_tokens(n_sequences, length, vocab_size, seed=skip)
    q = [(targets[:, skip:] == j).double().mean().item() for j in range(vocab_size)]
    expected = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
        for t, m, j in itertools.product(range(skip, length), range(length), range(vocab_size)):
            if m <= t:
                expected[j, x[m]] += ((y[t] == j) - q[j]) / (t + 1) / (n_sequences * length)
    found = context_against_frequencies(inputs, targets, vocab_size, skip)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_context_needs_a_position():
    with pytest.raises(InputError, match="0 to 6"):
        context_against_frequencies(*random_tokens(2, 7, 5), 5, skip=7)


def test_frequency_basis_has_neighbours():
    inputs, targets = random_tokens(5, 8, 6)
    basis = against_frequencies(basis_functions(inputs, targets, 6), inputs, targets)
    strongest = neighbours(basis, list("abcdef"), "c", "bigram", top=1)[0]
    assert strongest.strength == basis.bigram[2].max()


# Stories


def test_topical_words_by_counting():
    #                theme 0                     theme 1
    inputs = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 3], [2, 2, 3, 4], [4, 3, 2, 4]])
    labels = torch.tensor([0, 0, 1, 1])
    # word: occurrences in theme 0, 1 = 0: 3, 0; 1: 3, 0; 2: 1, 3; 3: 1, 2; 4: 0, 3
    assert [t.tolist() for t in topical_words(inputs, labels, 6, minimum=3, share=0.7, per_theme=2)] == [
        [0, 1, 2, 4],
        [0, 0, 1, 1],
    ]
    tokens, themes = topical_words(inputs, labels, 6, minimum=4, share=0.7, per_theme=1)
    assert (tokens.tolist(), themes.tolist()) == ([2], [1])
    assert topical_words(inputs, labels, 6, minimum=3, share=0.7, per_theme=3)[0].tolist() == []


@given(st.integers(0, 1000), st.integers(1, 3))
def test_hold_out_takes_the_same_number_of_every_label(seed, per_label):
    labels = torch.tensor([2, 0, 0, 2, 0, 2, 0, 2, 2])
    held = hold_out(labels, per_label, torch.Generator().manual_seed(seed))
    assert labels[held].bincount().tolist() == [per_label, 0, per_label]
    assert torch.equal(held, hold_out(labels, per_label, torch.Generator().manual_seed(seed)))


def test_hold_out_differs_between_seeds_and_refuses_too_many():
    labels = torch.arange(4).repeat(8)
    choices = [hold_out(labels, 2, torch.Generator().manual_seed(seed)) for seed in range(4)]
    assert len({tuple(choice.tolist()) for choice in choices}) > 1
    with pytest.raises(InputError, match="1 to 7"):
        hold_out(labels, 8, torch.Generator())


def test_word_shares_and_evened():
    shares = word_shares(torch.tensor([[0, 0, 2, 1], [3, 3, 3, 3]]), 5)
    assert shares.tolist() == [[0.5, 0.25, 0.25, 0, 0], [0, 0, 0, 1, 0]]
    table = torch.tensor([[3, 4], [0, 0], [0, 2], [1, 1]], dtype=torch.float64)
    rows = evened(table, torch.tensor([0.25, 0.5, 0.0625, 0.0], dtype=torch.float64))
    assert rows.tolist() == [[1.2, 1.6], [0, 0], [0, 4.0], [0, 0]]


def test_theme_ranks_are_those_of_loops():
    generator = torch.Generator().manual_seed(3)
    training, held_out = torch.randn(42, 5, generator=generator, dtype=torch.float64).split([30, 12])
    training_labels, labels = torch.arange(30) % 3 * 2, torch.arange(12) % 3 * 2  # labels 0, 2, 4
    mean = [sum(row[k] for row in training.tolist()) / 30 for k in range(5)]

    def unit(row):
        length = math.sqrt(sum(v * v for v in row))
        return [v / length for v in row]

    def centred(row):
        return unit([v - m for v, m in zip(row, mean, strict=True)])

    def centroid(theme):
        rows = [centred(r) for r, c in zip(training.tolist(), training_labels.tolist(), strict=True) if c == theme]
        return unit([sum(column) for column in zip(*rows, strict=True)])

    centroids = {theme: centroid(theme) for theme in (0, 2, 4)}
    expected = []
    for row, label in zip(held_out.tolist(), labels.tolist(), strict=True):
        nearness = {c: sum(a * b for a, b in zip(centred(row), v, strict=True)) for c, v in centroids.items()}
        expected.append(sorted(nearness, key=nearness.get, reverse=True).index(label))
    assert theme_ranks(training, training_labels, held_out, labels).tolist() == expected


def test_theme_ranks_refuse_what_does_not_fit():
    vectors = torch.eye(4).double()
    with pytest.raises(InputError, match="without training stories"):
        theme_ranks(vectors, torch.tensor([0, 0, 1, 1]), vectors, torch.tensor([0, 1, 2, 0]))
    with pytest.raises(InputError, match=r"held_out must be .* of shape \(n, 4\)"):
        theme_ranks(vectors, torch.tensor([0, 0, 1, 1]), vectors[:, :3], torch.tensor([0, 1, 1, 0]))


# What averages cannot see


def test_shuffle_words_keeps_the_words_of_each_sequence():
    inputs, targets = random_tokens(20, 12, 50)
    x, y = shuffle_words(inputs, targets, torch.Generator().manual_seed(0))
    assert torch.equal(x[:, 1:], y[:, :-1])
    before, after = (torch.cat([a, b[:, -1:]], dim=1).sort(dim=1).values for a, b in ((inputs, targets), (x, y)))
    assert torch.equal(before, after)
    assert (x != inputs).any(dim=1).all()
