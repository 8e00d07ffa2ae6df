"""How much of what is known about a corpus its basis functions recover: word classes, and the themes of its stories.

Paper A shows lists of neighbours (Figure 5). Here the same tables are scored against labels: do the words that a basis
function ties together belong to one class (colours, animals, ..) or to one theme (pond, castle, ..), and do they tell
the theme of a story that was held out?
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from assoc.checks import check_numbers, check_whole
from assoc.errors import InputError, finite_number, whole_number
from assoc.leading_terms.basis import BasisFunctions, check_tokens, context

WORD_CLASSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "colours": ("red", "blue", "green", "yellow", "white", "black", "brown", "pink", "gold", "gray"),
        "animals": ("dog", "cat", "fish", "bird", "duck", "frog", "horse", "cow", "bear", "rabbit"),
        "feelings": ("happy", "sad", "angry", "scared", "tired", "hungry", "afraid", "brave", "sorry", "glad"),
        "past verbs": ("ran", "saw", "took", "went", "looked", "found", "made", "came", "walked", "jumped"),
        "family": ("mom", "dad", "grandma", "grandpa", "brother", "sister", "mother", "uncle", "aunt", "baby"),
        "places": ("garden", "kitchen", "school", "house", "pond", "sea", "beach", "farm", "river", "field"),
        "pronouns": ("he", "she", "it", "they", "i", "you", "we", "him", "them", "her"),
        "numbers": ("one", "two", "three", "four", "five", "six", "nine", "ten"),
        "prepositions": ("in", "on", "under", "into", "over", "behind", "at", "from", "with", "by"),
        "food": ("bread", "cake", "apple", "milk", "soup", "cheese", "honey", "cookies", "eggs", "berries"),
        "names": ("tom", "mia", "ben", "lily", "sara", "max", "anna", "leo", "sam", "noah"),
        "body": ("hand", "head", "eyes", "nose", "foot", "face", "arms", "ears", "legs", "mouth"),
    }
)
"""Word classes put together by hand, from the words that the embedded stories use often; no word is in two classes."""


def labelled_words(vocabulary: Sequence[str], classes: Mapping[str, Sequence[str]]) -> tuple[Tensor, Tensor]:
    """Token numbers and class numbers of the words of `classes` that the vocabulary has, int64 (n,) each.

    Raises:
        InputError: no classes, a word is in two of them, or one keeps fewer than two words.
    """
    if not classes:
        raise InputError("there are no classes: give at least one, of two words or more")
    place = {word: token for token, word in enumerate(vocabulary)}
    words = [(word, label) for label, members in enumerate(classes.values()) for word in members]
    if len({word for word, _ in words}) < len(words):
        raise InputError("a word is in two classes: keep it in one")
    found = [(place[word], label) for word, label in words if word in place]
    for label, name in enumerate(classes):
        if sum(label == other for _, other in found) < 2:
            raise InputError(f"fewer than two words of class {name!r} are in the vocabulary: raise vocab_size")
    tokens, labels = torch.tensor(found).unbind(dim=1)
    return tokens, labels


# The same statistics against another guess


@dataclass(frozen=True)
class FrequencyBasis:
    """The three basis functions against the guess "each word by its frequency" instead of "all words alike".

    It can stand for `BasisFunctions` in `neighbours` and `association`, which read these three tables, all (V, V)
    float64. Rows and columns of each sum to 0.
    """

    bigram: Tensor
    interchangeability: Tensor
    context: Tensor


def _rank_one_part(inputs: Tensor, targets: Tensor, vocab_size: int, skip: int = 0) -> Tensor:
    """(q - u) m' over the positions t > skip: q their share of each target, m = (1/NT) sum_i sum_t (A0 X_i)[t]."""
    n_sequences, length = inputs.shape
    q = targets[:, skip:].flatten().bincount(minlength=vocab_size).double() / targets[:, skip:].numel()
    weights = 1 / torch.arange(1, length + 1, dtype=torch.float64)
    weights[:skip] = 0
    weights = weights.flip(0).cumsum(0).flip(0)  # position k is in the prefixes t = k .. T, with weight 1/t in each
    m = torch.zeros(vocab_size, dtype=torch.float64).scatter_add_(0, inputs.flatten(), weights.repeat(n_sequences))
    return (q - 1 / vocab_size)[:, None] * m / inputs.numel()


def context_against_frequencies(inputs: Tensor, targets: Tensor, vocab_size: int, skip: int = 0) -> Tensor:
    """Phi_q = (1/NT) sum_i sum_{t > skip} (Y_i[t] - q)' (A0 X_i)[t], (V, V): context against the frequencies q of the
    targets at these positions, without the first `skip` predictions of each sequence.

    Raises:
        InputError: tokens that do not fit, or no position left.
    """
    phi = context(inputs, targets, vocab_size)
    length = inputs.shape[1]
    skip = whole_number("skip", skip, minimum=0, maximum=length - 1)  # so that a position is left
    if skip:
        phi -= context(inputs[:, :skip], targets[:, :skip], vocab_size) * (skip / length)
    return phi - _rank_one_part(inputs, targets, vocab_size, skip)


def against_frequencies(basis: BasisFunctions, inputs: Tensor, targets: Tensor) -> FrequencyBasis:
    """Basis functions with the frequencies q of the targets in place of U = 1/V.

    With p the frequencies of the inputs, u = (1/V, .., 1/V) and m = (1/NT) sum_i sum_t (A0 X_i)[t], the mean share of
    each word in a prefix:

        B_q   = (1/NT) sum_i X_i'(Y_i - 1 q')     = B - p (q - u)',
        Phi_q = (1/NT) sum_i (Y_i - 1 q')' A0 X_i = Phi - (q - u) m',    S_q = B_q' B_q.

    B_q[i, j] = P(i, j) - P(i) P(j): what the pair exceeds independent words by. The paper's U comes from the model at
    its start, which takes all words for equally likely; it leaves the frequencies of the words inside B, S and Phi.

    Args:
        basis: `basis_functions(inputs, targets, V)` of the same data. inputs, targets: int64 (N, T).
    """
    vocab_size = len(basis.bigram)
    check_tokens(inputs, targets, vocab_size)
    p, q = (tokens.flatten().bincount(minlength=vocab_size).double() / tokens.numel() for tokens in (inputs, targets))
    bigram = basis.bigram - p[:, None] * (q - 1 / vocab_size)
    return FrequencyBasis(
        bigram=bigram,
        interchangeability=bigram.T @ bigram,
        context=basis.context - _rank_one_part(inputs, targets, vocab_size),
    )


# Words


class ClassAgreement(NamedTuple):
    """How well strengths between words agree with their classes, 0 to 1."""

    nearest: float  # share of the words whose strongest neighbour is of their own class
    precision: float  # mean average precision: 1 if every word's own class comes before all other words


def class_agreement(strengths: Tensor, labels: Tensor) -> ClassAgreement:
    """Leave-one-out agreement of a table of associations with classes.

    Every word ranks all the others by its row of strengths. Its average precision is the mean, over the words of its
    class, of (words of its class up to this rank)/(this rank). Ties go to the earlier word.

    Args:
        strengths: (n, n), row i ranks the words j; the diagonal is not looked at. labels: int64 (n,), each of at least
            two words.

    Raises:
        InputError: sizes that do not fit, strengths that are not finite, or a class of a single word.
    """
    n_words = len(labels)
    check_numbers("strengths", strengths, (n_words, n_words))
    same = labels[:, None] == labels
    if n_words < 2 or (same.sum(dim=1) < 2).any():
        raise InputError("every class needs at least two words")
    itself = torch.eye(n_words, dtype=torch.bool)
    order = strengths.masked_fill(itself, -torch.inf).argsort(dim=1, descending=True, stable=True)
    order = order[order != torch.arange(n_words)[:, None]].view(n_words, n_words - 1)
    hits = same.gather(1, order).double()
    precision = hits.cumsum(dim=1) / torch.arange(1, n_words)
    return ClassAgreement(
        nearest=float(hits[:, 0].mean()), precision=float(((precision * hits).sum(dim=1) / hits.sum(dim=1)).mean())
    )


def chance_agreement(labels: Tensor) -> ClassAgreement:
    """What `class_agreement` gives on average when every order of the other words is equally likely, exactly.

    For a word with r others of its class among m other words: nearest r/m; average precision
    (H + (r - 1)(m - H)/(m - 1))/m with H = 1 + 1/2 + .. + 1/m (rank k holds a word of the class with probability r/m,
    and then each earlier rank does with probability (r - 1)/(m - 1)).
    """
    others = len(labels) - 1
    r = (labels[:, None] == labels).sum(dim=1).double() - 1
    if others < 1 or (r < 1).any():
        raise InputError("every class needs at least two words")
    harmonic = float((1 / torch.arange(1, others + 1, dtype=torch.float64)).sum())
    precision = (harmonic + (r - 1) * (others - harmonic) / max(others - 1, 1)) / others
    return ClassAgreement(nearest=float((r / others).mean()), precision=float(precision.mean()))


def topical_words(
    inputs: Tensor, labels: Tensor, vocab_size: int, minimum: int = 10, share: float = 0.5, per_theme: int = 3
) -> tuple[Tensor, Tensor]:
    """Words that belong to a theme: at least `share` of their occurrences, `minimum` in all, lie in its stories.

    Themes with fewer than `per_theme` such words are left out.

    Args:
        inputs: int64 (N, T). labels: theme number of each sequence, int64 (N,).

    Returns:
        Token numbers and theme numbers, int64 (n,) each, by token number.

    Raises:
        InputError: tokens or labels that do not fit, or numbers out of range.
    """
    vocab_size = whole_number("vocab_size", vocab_size, minimum=1)
    check_whole("inputs", inputs, (None, None), below=vocab_size)
    check_whole("labels", labels, (len(inputs),))
    minimum = whole_number("minimum", minimum, minimum=0)
    share = finite_number("share", share, minimum=0, maximum=1)
    per_theme = whole_number("per_theme", per_theme, minimum=0)
    n_themes = int(labels.max()) + 1
    pairs = labels[:, None] * vocab_size + inputs
    counts = pairs.flatten().bincount(minlength=n_themes * vocab_size).view(n_themes, vocab_size)
    total = counts.sum(dim=0)
    most, theme = counts.max(dim=0)
    belongs = (total >= minimum) & (most >= share * total) & (total > 0)
    enough = theme[belongs].bincount(minlength=n_themes) >= per_theme
    tokens = (belongs & enough[theme]).nonzero().flatten()
    return tokens, theme[tokens]


# Stories


def hold_out(labels: Tensor, per_label: int, generator: torch.Generator) -> Tensor:
    """A random choice of `per_label` sequences of every label, bool (N,): True where held out.

    Raises:
        InputError: a label has no more than `per_label` sequences.
    """
    check_whole("labels", labels, (None,))
    per_label = whole_number("per_label", per_label, minimum=1)
    smallest = int(labels.unique(return_counts=True)[1].min())
    if per_label >= smallest:
        raise InputError(f"hold out 1 to {smallest - 1} sequences of each label (the rarest has {smallest})")
    order = torch.rand(len(labels), generator=generator).argsort()
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        held[order[labels[order] == label][:per_label]] = True
    return held


def word_shares(inputs: Tensor, vocab_size: int) -> Tensor:
    """Share of each word in each sequence, (N, V) float64: a bag of words; rows sum to 1.

    Raises InputError for tokens that are not int64 (N, T) from 0 to V - 1.
    """
    vocab_size = whole_number("vocab_size", vocab_size, minimum=1)
    check_whole("inputs", inputs, (None, None), below=vocab_size)
    ones = torch.ones_like(inputs, dtype=torch.float64)
    return torch.zeros(len(inputs), vocab_size, dtype=torch.float64).scatter_add_(1, inputs, ones) / inputs.shape[1]


def evened(table: Tensor, frequencies: Tensor) -> Tensor:
    """Rows of a table scaled to length 1/sqrt(frequency of the row's word), (V, K); rows of unused words are 0.

    A word that occurs n times by chance varies by about sqrt(n). So scaled, every word adds as much noise to the
    average over a story as any other; without it, the few most frequent words drown the rest.

    Raises InputError for sizes that differ, or numbers that are not finite.
    """
    check_numbers("table", table, (None, None))
    check_numbers("frequencies", frequencies, (len(table),))
    lengths = table.norm(dim=1) * frequencies.sqrt()
    return torch.where(lengths[:, None] > 0, table / lengths[:, None], 0.0)


def theme_ranks(training: Tensor, training_labels: Tensor, held_out: Tensor, labels: Tensor) -> Tensor:
    """Where the true theme of each held-out story comes when themes are ranked by nearness, int64 (n,); 0 is first.

    All vectors are centred on the mean of the training stories and scaled to length 1; the centroid of a theme is the
    mean of its training stories; nearness is the cosine with it. A tie counts for the true theme.

    Args:
        training: one row a story, (N, K). training_labels: int64 (N,). held_out: (n, K). labels: int64 (n,).

    Raises:
        InputError: sizes that do not fit, numbers that are not finite, or a theme of a held-out story has no training
            story.
    """
    check_numbers("training", training, (None, None))
    check_numbers("held_out", held_out, (None, training.shape[1]), dtype=training.dtype)
    check_whole("training_labels", training_labels, (len(training),))
    check_whole("labels", labels, (len(held_out),))
    themes, slots = training_labels.unique(return_inverse=True)
    slot = torch.searchsorted(themes, labels).clamp(max=len(themes) - 1)
    if not torch.equal(themes[slot], labels):
        raise InputError("a held-out story has a theme without training stories: train on at least one of each")
    mean = training.mean(dim=0)
    unit = torch.nn.functional.normalize
    centroids = torch.zeros(len(themes), training.shape[1], dtype=training.dtype)
    centroids.index_add_(0, slots, unit(training - mean, eps=1e-300))
    nearness = unit(held_out - mean, eps=1e-300) @ unit(centroids, eps=1e-300).T
    return (nearness > nearness.gather(1, slot[:, None])).sum(dim=1)


# What averages cannot see


def shuffle_words(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same sequences with the T + 1 tokens of each in a random order of its own: (inputs, targets), (N, T).

    Raises InputError for inputs and targets that are not int64 (N, T) both.
    """
    check_whole("inputs", inputs, (None, None))
    check_whole("targets", targets, inputs.shape)
    tokens = torch.cat([inputs, targets[:, -1:]], dim=1)
    tokens = tokens.gather(1, torch.rand(tokens.shape, generator=generator).argsort(dim=1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
