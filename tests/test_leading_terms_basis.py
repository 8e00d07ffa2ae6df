"""Basis functions against a literal transcription, the papers' own program, and what must hold of them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import literal_leading_terms as literal
from assoc.corpus import load_corpus
from assoc.errors import InputError
from assoc.leading_terms import basis as basis_module
from assoc.leading_terms import basis_functions
from assoc.leading_terms.basis import (
    AttentionAndPosition,
    BigramAndContext,
    attention_and_position,
    basis_functions_of_batches,
    bigram_frequencies,
    compose,
    context,
    distinct_tokens,
    prefix_averages,
    prefixes,
    sub_diagonal_sums,
)
from conftest import relative_error, shared_file


@st.composite
def corpora(draw: st.DrawFn, longest: int = 9) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Random inputs and targets; targets need not be the shifted inputs, the formulas hold for any."""
    n, length, vocab_size = draw(st.integers(1, 5)), draw(st.integers(1, longest)), draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    highest = draw(st.integers(1, vocab_size))  # words above never occur
    x, y = torch.randint(highest, (2, n, length), generator=generator)
    return x, y, vocab_size


@settings(max_examples=150, deadline=None)
@given(corpora())
def test_all_six_agree_with_the_literal_transcription(corpus: tuple) -> None:
    x, y, vocab_size = corpus
    expected = literal.basis(x.numpy(), y.numpy(), vocab_size)
    for name, tensor in basis_functions(x, y, vocab_size).items():
        assert tensor.dtype == torch.float64
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-10, atol=1e-14, err_msg=name)


@settings(max_examples=40, deadline=None)
@given(corpora(), st.integers(0, 2**32))
def test_attention_and_position_of_any_association(corpus: tuple, seed: int) -> None:
    """Q and Delta of a matrix that is not S Phi, position by position."""
    x, y, vocab_size = corpus
    G = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Q, Delta = np.zeros((vocab_size, vocab_size)), np.zeros(x.shape[1])
    for words, following in zip(x.tolist(), y.tolist(), strict=True):
        for t, query in enumerate(words):
            g = [float(G[following[t], word]) for word in words[: t + 1]]
            for m, word in enumerate(words[: t + 1]):
                share = (g[m] - sum(g) / len(g)) / (t + 1) / x.numel()
                Q[query, word] += share
                Delta[t - m] += share
    attention, position = attention_and_position(x, y, G)
    np.testing.assert_allclose(attention.numpy(), Q, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(position.numpy(), Delta, rtol=1e-10, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(corpora(), st.integers(1, 60))
def test_chunking_changes_nothing(corpus: tuple, elements: int) -> None:
    x, y, vocab_size = corpus
    whole = basis_functions(x, y, vocab_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basis_module, "CHUNK_ELEMENTS", elements)
        patch.setattr(basis_module, "PREFIX_STEP", 1 + elements % 9)
        for name, tensor in basis_functions(x, y, vocab_size).items():
            torch.testing.assert_close(tensor, getattr(whole, name), rtol=1e-12, atol=1e-15)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 30), length=st.integers(1, 9), elements=st.integers(1, 600))
def test_chunks_are_as_large_as_memory_allows(n: int, length: int, elements: int) -> None:
    """n T^2 numbers at most, but one sequence at least; all sequences, in their order."""
    x = torch.arange(n * length).view(n, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basis_module, "CHUNK_ELEMENTS", elements)
        chunks = list(basis_module._chunks(x, -x))
    *full, last = [len(inputs) for inputs, _ in chunks]
    assert all(size == 1 or size * length**2 <= elements for size in (*full, last))
    assert all((size + 1) * length**2 > elements for size in full)
    assert torch.equal(torch.cat([inputs for inputs, _ in chunks]), x)
    assert all(torch.equal(targets, -inputs) for inputs, targets in chunks)


@settings(max_examples=60, deadline=None)
@given(corpora(), st.lists(st.integers(0, 5), max_size=3), st.randoms(use_true_random=False))
def test_parts_of_a_corpus_add_up_to_the_whole(corpus: tuple, cuts: list[int], order: object) -> None:
    """In any order, parts without a sequence among them."""
    x, y, vocab_size = corpus
    ends = sorted(min(cut, len(x)) for cut in cuts)
    parts = [(x[a:b], y[a:b]) for a, b in zip([0, *ends], [*ends, len(x)], strict=True)]
    order.shuffle(parts)

    def merged(make: Callable) -> object:
        total = make()
        for part in parts:
            total += make().add(*part)
        return total

    first = merged(lambda: BigramAndContext(vocab_size))
    assert first.n_positions == x.numel()
    sharded = compose(first, lambda association: merged(lambda: AttentionAndPosition(association, x.shape[1])))
    streamed = basis_functions_of_batches(parts, vocab_size, x.shape[1])
    for name, tensor in basis_functions(x, y, vocab_size).items():
        for other in (sharded, streamed):
            torch.testing.assert_close(getattr(other, name), tensor, rtol=1e-12, atol=1e-15)


def test_sums_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has the other sequences, and adds what it found wherever this one asks for sums."""
    x, y = torch.randint(6, (2, 5, 8), generator=torch.Generator().manual_seed(1))
    association = torch.rand(6, 6, dtype=torch.float64)
    for make in (lambda: BigramAndContext(6), lambda: AttentionAndPosition(association, 8)):
        other = make().add(x[2:], y[2:])
        theirs = [getattr(other, name) for name in other.sums] + [torch.tensor(other.n_positions)]

        def add_up(tensors: list[torch.Tensor], theirs: list[torch.Tensor] = theirs) -> None:
            for mine, further in zip(tensors, theirs, strict=True):
                mine += further

        monkeypatch.setattr("assoc.distributed.add_up", add_up)
        found = make().add(x[:2], y[:2]).over_processes()
        expected = make().add(x, y)
        assert found.n_positions == expected.n_positions
        for name in expected.sums:
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-15)


def test_processes_share_sums_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randint(6, (2, 5, 8), generator=torch.Generator().manual_seed(1))
    asked: list[int] = []
    monkeypatch.setattr("assoc.distributed.add_up", lambda tensors: asked.append(len(tensors)))
    basis_functions_of_batches([(x, y)], 6, 8)
    assert asked == []
    basis_functions_of_batches([(x, y)], 6, 8, over_processes=True)
    assert asked == [3, 3]  # two sums and the number of positions, in either pass


def test_batches_may_differ_in_length() -> None:
    """Short and long sequences, against the definitions: each has its own T, and N T is their sum."""
    x, y = torch.randint(6, (2, 5, 8), generator=torch.Generator().manual_seed(1))
    batches = [(x[:2], y[:2]), (x[2:, :3], y[2:, :3])]
    basis = basis_functions_of_batches(batches, 6, 8)
    weights = [b[0].numel() / 25 for b in batches]
    parts = [literal.basis(b[0].numpy(), b[1].numpy(), 6) for b in batches]
    for name in ("bigram", "context"):
        expected = sum(weight * part[name] for weight, part in zip(weights, parts, strict=True))
        np.testing.assert_allclose(getattr(basis, name).numpy(), expected, atol=1e-15)
    assert basis.position.shape == (8,)
    assert abs(basis.position.sum()) < 1e-16


def test_statistics_are_computed_where_the_tokens_are() -> None:
    """Whatever the default device: a tensor made on it by mistake would not go together with the others."""
    x, y = torch.randint(6, (2, 5, 8), generator=torch.Generator().manual_seed(1))
    expected, frequencies, phi = basis_functions(x, y, 6), bigram_frequencies(x, y, 6), context(x, y, 6)
    with torch.device("meta"):
        for name, tensor in basis_functions_of_batches([(x, y)], 6, 8, over_processes=True).items():
            assert torch.equal(tensor, getattr(expected, name)), name
        assert torch.equal(bigram_frequencies(x, y, 6).to_dense(), frequencies.to_dense())
        assert torch.equal(context(x, y, 6), phi)


def test_float32() -> None:
    x, y = torch.randint(30, (2, 40, 25), generator=torch.Generator().manual_seed(0))
    single = basis_functions(x, y, 30, dtype=torch.float32)
    for name, tensor in basis_functions(x, y, 30).items():
        assert getattr(single, name).dtype == torch.float32
        # Position terms are differences of nearly equal sums: their rounding is that of the sums.
        assert relative_error(getattr(single, name), tensor) < (1e-4 if name == "position" else 1e-5), name


def test_bigram_frequencies_count_pairs() -> None:
    x, y = torch.randint(5, (2, 4, 6), generator=torch.Generator().manual_seed(0))
    expected = literal.basis(x.numpy(), y.numpy(), 5)["bigram"]
    sparse = bigram_frequencies(x, y, 5)
    pairs = set(zip(x.flatten().tolist(), y.flatten().tolist(), strict=True))
    assert len(pairs) < 25
    assert sparse.indices().T.tolist() == sorted(map(list, pairs)), "pairs that never occur have no entry"
    frequencies = sparse.to_dense()
    np.testing.assert_allclose((frequencies - frequencies.sum(dim=1, keepdim=True) / 5).numpy(), expected, atol=1e-15)


def test_sums_that_do_not_belong_together() -> None:
    x, y = torch.randint(5, (2, 4, 6), generator=torch.Generator().manual_seed(0))
    association = torch.rand(5, 5, dtype=torch.float64)
    sums, second = BigramAndContext(5).add(x, y), AttentionAndPosition(association, 6).add(x, y)

    def add(a: object, b: object) -> None:
        a += b

    cases = [
        (lambda: BigramAndContext(5).context(), "^no sequence was added"),
        (lambda: AttentionAndPosition(association, 6).statistics(), "no sequence was added"),
        (lambda: add(sums, BigramAndContext(6)), "^only accumulators of one kind, vocabulary and length"),
        (lambda: add(sums, second), "one kind, vocabulary and length"),
        (lambda: add(second, AttentionAndPosition(association, 7)), "one kind, vocabulary and length"),
        (lambda: add(second, AttentionAndPosition(association + 1, 6)), "^these parts .* different S Phi"),
        (lambda: AttentionAndPosition(association, 3).add(x, y), "longer than length=3"),
        (lambda: basis_functions_of_batches(iter([(x, y)]), 5, 6), "^the batches are gone through twice"),
        (lambda: basis_functions_of_batches([], 5, 6), "no sequence was added"),
        (lambda: sums.add(x, y + 5), "^targets hold tokens"),
        (lambda: BigramAndContext(0), "^vocab_size is 0"),
        (lambda: AttentionAndPosition(association, 0), "^length is 0"),
        (lambda: AttentionAndPosition(association[0], 6), "^association must be"),
        (lambda: AttentionAndPosition(association[1:], 6), "^association must be"),
        (lambda: AttentionAndPosition(association / 0, 6), "^association holds a number that is not finite"),
        (lambda: BigramAndContext(5, dtype=torch.int64), "^dtype is torch.int64"),
        (lambda: basis_functions_of_batches([(x.tolist(), y.tolist())], 5, 6), "^inputs and targets must be torch"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_reference(reference: dict) -> None:
    """Results of the paper's own program; its Q is not divided by N T."""
    x, y = torch.tensor(reference["x"]), torch.tensor(reference["y"])
    basis = basis_functions(x, y, int(reference["vocab_size"]))
    names = {
        "bigram": "B_bar", "interchangeability": "Sigma_B", "context": "Phi_bar", "value": "B_bar_Phi_bar",
    }  # fmt: skip
    for name, theirs in names.items():
        assert relative_error(getattr(basis, name), reference[f"theory_{theirs}"]) < 1e-9, name
    assert relative_error(basis.attention * x.numel(), reference["theory_Q_bar"]) < 1e-9
    # What they call G_bar is (S Phi)': row = word of the prefix.
    assert relative_error((basis.interchangeability @ basis.context).T, reference["theory_G_bar"]) < 1e-9


def test_sums_that_must_vanish() -> None:
    x, y = torch.randint(30, (2, 20, 15), generator=torch.Generator().manual_seed(0))
    basis = basis_functions(x, y, 30)
    for sums in (
        basis.bigram.sum(dim=1),
        basis.interchangeability.sum(dim=0),
        basis.context.sum(dim=0),
        basis.position.sum()[None],  # each row of Q_i sums to 0
        basis.attention.sum()[None],
    ):
        assert sums.abs().max() < 1e-16


def test_bigram_is_frequency_times_conditional_minus_uniform() -> None:
    """'a b a b a': P(a) = 1/2, P(b|a) = 1, V = 2."""
    x, y = torch.tensor([[0, 1, 0, 1]]), torch.tensor([[1, 0, 1, 0]])
    expected = torch.tensor([[-0.25, 0.25], [0.25, -0.25]], dtype=torch.float64)
    torch.testing.assert_close(basis_functions(x, y, 2).bigram, expected)


def test_context_counts_words_of_the_prefix_by_hand() -> None:
    """Targets 1, 2 after the prefixes (0) and (0, 1): word 2 is predicted from 0 and 1, each with half the weight."""
    phi = context(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]), 3)
    raw = np.array([[0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]]) / 2
    np.testing.assert_allclose(phi.numpy(), raw - raw.mean(axis=0))


@settings(max_examples=60, deadline=None)
@given(corpora(longest=40))
def test_distinct_tokens_describe_the_sequences(corpus: tuple) -> None:
    """Long sequences too: sorting keeps equal tokens in their order only if asked to."""
    x, _, vocab_size = corpus
    tokens, slots = distinct_tokens(x)
    distinct = [list(dict.fromkeys(row)) for row in x.tolist()]  # in the order in which they first occur
    n_slots = max(map(len, distinct))
    assert tokens.tolist() == [row + [0] * (n_slots - len(row)) for row in distinct]
    assert slots.tolist() == [
        [row.index(token) for token in tokens] for row, tokens in zip(distinct, x.tolist(), strict=True)
    ]
    averages = prefix_averages(slots, tokens.shape[1])
    expected = literal.uniform_attention(x.shape[1]) @ literal.one_hot(x.numpy(), vocab_size)
    dense = torch.zeros(*x.shape, vocab_size, dtype=torch.float64)
    dense.scatter_add_(2, tokens.unsqueeze(1).expand(-1, x.shape[1], -1), averages)
    np.testing.assert_allclose(dense.numpy(), expected, atol=1e-15)


@settings(max_examples=60, deadline=None)
@given(corpora(longest=40), st.integers(1, 12))
def test_prefixes_know_the_slots_in_use(corpus: tuple, step: int) -> None:
    _, slots = distinct_tokens(corpus[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basis_module, "PREFIX_STEP", step)
        parts = list(prefixes(slots))
    assert [t for part, _ in parts for t in range(part.start, part.stop)] == list(range(slots.shape[1]))
    assert len(parts) == max(1, slots.shape[1] // step)
    for part, n_seen in parts:
        assert n_seen == max(len(set(row[: part.stop])) for row in slots.tolist())


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**32))
def test_sub_diagonal_sums_entry_by_entry(length: int, seed: int) -> None:
    matrix = torch.randn(length, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = [sum(float(matrix[t, t - k]) for t in range(k, length)) for k in range(length)]
    np.testing.assert_allclose(sub_diagonal_sums(matrix).numpy(), expected, atol=1e-14)


def test_a_sequence_of_one_token_has_no_attention_to_learn() -> None:
    basis = basis_functions(torch.tensor([[1], [0]]), torch.tensor([[0], [1]]), 2)
    assert not basis.attention.any()
    assert not basis.position.any()


def test_real_sample_agrees_with_the_literal_transcription() -> None:
    corpus = load_corpus(shared_file("data/tinystories-sample.txt"), vocab_size=120, length=24, unknown="map")
    x, y = corpus.inputs[:12], corpus.targets[:12]
    expected = literal.basis(x.numpy(), y.numpy(), corpus.vocab_size)
    for name, tensor in basis_functions(x, y, corpus.vocab_size).items():
        assert relative_error(tensor, expected[name]) < 1e-10, name


@pytest.mark.parametrize(
    ("x", "y", "vocab_size", "message"),
    [
        (torch.zeros(2, 3).long(), torch.zeros(2, 4).long(), 5, r"\(2, 3\) and \(2, 4\)"),
        (torch.zeros(3).long(), torch.zeros(3).long(), 5, "one shape"),
        (torch.zeros(0, 3).long(), torch.zeros(0, 3).long(), 5, "non-empty"),
        (torch.zeros(2, 3), torch.zeros(2, 3), 5, "^inputs must be int64"),
        (torch.zeros(2, 3).long(), torch.zeros(2, 3).int(), 5, "^targets must be int64"),
        (torch.full((2, 3), 5), torch.zeros(2, 3).long(), 5, "^inputs .* allows 0 to 4"),
        (torch.zeros(2, 3).long(), torch.full((2, 3), -1), 5, "^targets hold tokens from -1"),
        (torch.zeros(2, 3).long(), [[0, 0, 0], [0, 0, 0]], 5, "^inputs and targets must be torch tensors"),
        ([[0, 0, 0], [0, 0, 0]], torch.zeros(2, 3).long(), 5, "^inputs and targets must be torch tensors"),
        (torch.zeros(2, 3).long(), torch.zeros(2, 3).long(), 0, "^vocab_size is 0"),
    ],
)
def test_bad_input_is_one_line(x: object, y: object, vocab_size: int, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        basis_functions(x, y, vocab_size)
    assert "\n" not in str(caught.value)


def test_leading_terms_by_name() -> None:
    x, y = torch.randint(5, (2, 4, 6), generator=torch.Generator().manual_seed(0))
    basis = basis_functions(x, y, 5)
    found = [basis.leading_term(name) for name in ("output", "value", "attention", "position")]
    assert all(a is b for a, b in zip(found, (basis.bigram, basis.value, basis.attention, basis.position), strict=True))
    for name in ("bigram", "items"):
        with pytest.raises(InputError, match=f"{name!r}.* output, value, attention or position"):
            basis.leading_term(name)
