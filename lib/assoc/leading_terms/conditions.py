"""What does the agreement depend on? One short training run under a condition that is chosen (paper A, Section 5.1)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from assoc.corpus import TokenSequences, load_corpus, load_texts
from assoc.corpus.bpe import bpe_tokenizer
from assoc.errors import InputError, finite_number, learning_rate_above_zero, whole_number
from assoc.leading_terms.ablation import ablate, every_weight, frequency_terms, remove_projection
from assoc.leading_terms.basis import BasisFunctions, basis_functions
from assoc.leading_terms.model import AttentionOnlyTransformer, gaussian_start
from assoc.leading_terms.theory import KINDS, step_coefficients
from assoc.leading_terms.training import cosine, train
from assoc.seeds import seeded


@lru_cache(maxsize=4)
def stories(vocab_size: int, length: int, tokenizer: str = "words") -> TokenSequences:
    """The embedded stories cut to sequences: over words, rare ones as `<unk>`, or over byte pairs.

    Raises:
        InputError: another tokenizer, or sizes that `load_corpus` or `bpe_tokenizer` refuse.
    """
    if tokenizer == "words":
        return load_corpus("stories", vocab_size=vocab_size, length=length, unknown="map")
    if tokenizer != "bpe":
        raise InputError(f"no tokenizer {tokenizer!r}: choose words or bpe")
    texts = load_texts("stories").texts
    encode = bpe_tokenizer(texts, vocab_size)
    n_types = len({token for text in texts for token in encode(text)})
    return load_corpus("stories", vocab_size=n_types, length=length, tokenizer=encode)


def two_halves(corpus: TokenSequences, n_sequences: int, seed: int) -> tuple[TokenSequences, TokenSequences]:
    """Two disjoint random choices of n sequences. Raises InputError if the corpus has fewer than 2 n."""
    n_sequences = whole_number("n_sequences", n_sequences, minimum=1)
    if 2 * n_sequences > len(corpus):
        raise InputError(f"n_sequences is {n_sequences}: two choices need at most {len(corpus) // 2} each")
    order = torch.randperm(len(corpus), generator=seeded(seed))
    return corpus.select(order[:n_sequences]), corpus.select(order[n_sequences : 2 * n_sequences])


def lowest_cosines(
    model: AttentionOnlyTransformer, terms: dict[str, Tensor], without: dict[str, Tensor] | None = None
) -> dict[str, float]:
    """Kind of weight -> the lowest cosine of a layer's weight with its term; nan if a weight is zero.

    Args:
        terms: kind -> leading term.
        without: kind -> a term whose projection is taken from both first: with `frequency_terms`, what is compared is
            the agreement beyond word frequencies.
    """
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for (kind, _), weight in every_weight(model).items():
        term = terms[kind]
        if without is not None:
            weight, term = (remove_projection(tensor, without[kind]) for tensor in (weight, term))
        found[kind].append(cosine(weight, term))
    return {kind: float(torch.tensor(values, dtype=torch.float64).amin()) for kind, values in found.items()}


def all_leading_terms(basis: BasisFunctions) -> dict[str, Tensor]:
    """Kind of weight -> its leading term, without the coefficient."""
    return {kind: basis.leading_term(kind) for kind in KINDS}


def started_cosines(
    start: dict[tuple[str, int], Tensor], basis: BasisFunctions, steps: int, learning_rate: float
) -> dict[str, float]:
    """Kind of weight -> the lowest cosine of start + leading term with the leading term, over layers.

    This is what a start from elsewhere than zero costs if training adds the leading term to it and nothing else. For a
    start of norm |S|, orthogonal to a term K with coefficient c, it is 1/sqrt(1 + (|S|/(c |K|))^2).
    """
    coefficients = step_coefficients(steps, learning_rate)
    lowest = dict.fromkeys(KINDS, 1.0)
    for (kind, _), weight in start.items():
        term = getattr(coefficients, kind) * basis.leading_term(kind)
        lowest[kind] = min(lowest[kind], cosine(weight + term, term))
    return lowest


def clock(basis: BasisFunctions, n_layers: int) -> float:
    """sqrt(L) |Phi| with the spectral norm: times s eta it is theta, the clock of chapter 3A."""
    return whole_number("n_layers", n_layers, minimum=1) ** 0.5 * float(torch.linalg.matrix_norm(basis.context, ord=2))


def agreement_under(
    seed: int,
    *,
    vocab_size: int = 300,
    length: int = 64,
    n_sequences: int = 128,
    tokenizer: str = "words",
    n_layers: int = 3,
    learning_rate: float = 2.0,
    steps: int = 8,
    record_every: int = 4,
    batch_size: int | None = None,
    start: float = 0.0,
    positions: bool = True,
) -> dict[str, Any]:
    """Train under one condition and compare with leading terms: of the data trained on, and of other data.

    Args:
        seed: chooses the stories, the start and the batches.
        vocab_size, length, n_sequences, tokenizer: the data, see `stories`.
        n_layers, learning_rate, steps, batch_size: the run; None for full batches.
        record_every: steps between comparisons.
        start: v of `gaussian_start`; 0 for the paper's zero start.
        positions: whether the position vectors are trained; they stay zero otherwise.

    Returns:
        times: s eta of each record. loss: after it, of the whole data or of the next batch.
        cosine, beyond, other: for each record, kind of weight -> the lowest cosine over layers; with the leading terms
            of all the data trained on, the same beyond word frequencies, and with the leading terms of as many other
            stories.
        started: for each record, `started_cosines`.
        frequencies: kind -> cosine of the terms that word frequencies give with the leading terms: the level to beat.
        sample: kind -> cosine of the leading terms of the two halves.
        clock: theta per unit of s eta.
    """
    learning_rate_above_zero(learning_rate)
    record_every = whole_number("record_every", record_every, minimum=1)
    steps = whole_number("steps", steps, minimum=record_every)
    data, others = two_halves(stories(vocab_size, length, tokenizer), n_sequences, seed)
    V = data.vocab_size
    basis, other_basis = (basis_functions(half.inputs, half.targets, V) for half in (data, others))
    terms, other_terms = all_leading_terms(basis), all_leading_terms(other_basis)
    by_frequency = frequency_terms(basis, data.inputs, data.targets)
    generator = seeded(seed)
    model = gaussian_start(AttentionOnlyTransformer(V, length, n_layers, dtype=torch.float32), start, generator)
    if not positions:
        model.position.requires_grad_(False)
    first = every_weight(model)
    records: dict[str, list] = {name: [] for name in ("times", "loss", "cosine", "beyond", "other", "started")}
    for done in range(record_every, steps + 1, record_every):
        history = train(
            model,
            data.inputs,
            data.targets,
            learning_rate,
            record_every,
            batch_size=batch_size,
            generator=generator,
            record_every=record_every,
            show_progress=False,
        )
        records["times"].append(done * learning_rate)
        records["loss"].append(history.loss[-1])
        records["cosine"].append(lowest_cosines(model, terms))
        records["beyond"].append(lowest_cosines(model, terms, without=by_frequency))
        records["other"].append(lowest_cosines(model, other_terms))
        records["started"].append(started_cosines(first, basis, done, learning_rate))
    return {
        **records,
        "frequencies": {kind: cosine(by_frequency[kind], terms[kind]) for kind in KINDS},
        "sample": {kind: cosine(other_terms[kind], terms[kind]) for kind in KINDS},
        "clock": clock(basis, n_layers),
    }


def removal_after_training(
    seed: int,
    *,
    tokenizer: str = "words",
    vocab_size: int = 400,
    length: int = 64,
    n_sequences: int = 128,
    n_layers: int = 3,
    theta_step: float = 0.036,
    marks: Sequence[int] = (50, 83, 150),
) -> dict[str, Any]:
    """Table 3 on the stories: train from zero with full batches, and take leading terms out of the weights on the way.

    Corpora differ in how fast things happen in them; so the size of the steps is given on chapter 3A's clock,
    theta = sqrt(L) |Phi| s eta, on which the paper's Figure 4 and Table 3 end at about 5.4.

    Args:
        seed: chooses the stories, and draws the controls.
        tokenizer, vocab_size, length, n_sequences, n_layers: the data and the model.
        theta_step: theta of one step. marks: after how many steps the weights are looked at, ascending.

    Returns:
        learning_rate: eta = theta_step/(sqrt(L) |Phi|).
        theta, times: theta and s eta at each mark. ablations: what `ablate` returns there.
        entropy: of the targets' word frequencies, in nats.
        vocab_size: V, for byte pairs the number of tokens that occur.
        frequencies: kind -> cosine of the terms that word frequencies give with the leading terms.
    """
    theta_step = finite_number("theta_step", theta_step, minimum=0)
    if not marks or list(marks) != sorted(set(marks)) or marks[0] < 1:
        raise InputError(f"marks are {list(marks)}: give one or more numbers of steps, ascending, from 1")
    data, _ = two_halves(stories(vocab_size, length, tokenizer), n_sequences, seed)
    V = data.vocab_size
    basis = basis_functions(data.inputs, data.targets, V)
    by_frequency = frequency_terms(basis, data.inputs, data.targets)
    model = AttentionOnlyTransformer(V, length, n_layers, dtype=torch.float32)
    learning_rate = theta_step / clock(basis, n_layers)
    ablations = []
    for begin, end in zip((0, *marks), marks, strict=False):
        steps = end - begin
        train(model, data.inputs, data.targets, learning_rate, steps, record_every=steps, show_progress=False)
        ablations.append(ablate(model, basis, data.inputs, data.targets, seeded(seed)))
    shares = data.targets.flatten().bincount(minlength=V).double() / data.targets.numel()
    return {
        "learning_rate": learning_rate,
        "theta": [mark * theta_step for mark in marks],
        "times": [mark * learning_rate for mark in marks],
        "ablations": ablations,
        "entropy": float(torch.special.entr(shares).sum()),
        "vocab_size": V,
        "frequencies": {kind: cosine(by_frequency[kind], basis.leading_term(kind)) for kind in KINDS},
    }


def yardstick_agreement(
    seed: int, *, tokenizer: str = "words", vocab_size: int = 3000, length: int = 200, n_sequences: int = 800
) -> dict[str, Any]:
    """How well a sample of stories knows the leading terms: two disjoint samples of n stories compared, no training.

    If their cosine is 1 - e, each is about e/2 from the terms of all stories, and e falls like 1/n. The paper compares
    a model trained on all stories with the leading terms of one batch of 2,048.

    Returns:
        cosine: kind -> cosine of the two samples' leading terms. vocab_size: V, for byte pairs the tokens that occur.
        n_sequences: n.
    """
    samples = two_halves(stories(vocab_size, length, tokenizer), n_sequences, seed)
    V = samples[0].vocab_size
    one, other = (all_leading_terms(basis_functions(sample.inputs, sample.targets, V)) for sample in samples)
    return {
        "cosine": {kind: cosine(one[kind], other[kind]) for kind in KINDS},
        "vocab_size": V,
        "n_sequences": n_sequences,
    }
