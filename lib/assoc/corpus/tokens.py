"""From texts to token sequences: the tokenizer, the vocabulary and the cut of paper A's experiments (Section 5.1)."""

import re
from array import array
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import count, groupby
from pathlib import Path

import numpy as np
import torch

from assoc.corpus.texts import load_texts
from assoc.errors import InputError, finite_number, whole_number

UNKNOWN = "<unk>"
_TOKEN = re.compile(r"[^\W\d_]+|\S")


def tokenize(text: str) -> list[str]:
    """Split a text into the tokens of paper A (Section 5.1): lower case; a token is a maximal run of letters, or any
    other single character that is not white space.

    A letter is what Unicode calls one (`str.isalpha`): "é" and "ж" are letters; digits, apostrophes, underscores and
    combining accents are tokens of their own. So `tokenize("Don't, 42!")` is `["don", "'", "t", ",", "4", "2", "!"]`.
    """
    tokens = _TOKEN.findall(text.lower())
    if text.isascii() or all(len(token) == 1 or token.isalpha() for token in tokens):
        return tokens
    # Beyond ASCII the pattern's runs may hold number signs (², ½, Ⅳ), which are no letters: cut these out.
    return [
        piece
        for token in tokens
        for is_word, run in groupby(token, str.isalpha)
        for piece in (["".join(run)] if is_word else run)
    ]


@dataclass(frozen=True)
class CorpusStatistics:
    """Counts of a corpus before any text is dropped or cut.

    Attributes:
        n_texts: texts read.
        n_tokens: tokens in all texts.
        n_types: different tokens.
        longest_text: tokens of the longest text.
        vocabulary_coverage: share of the tokens that are in the vocabulary (`<unk>` not counted), 0 to 1.
        n_long_enough: texts of at least T + 1 tokens.
        n_in_vocabulary: texts, of any length, made of the vocabulary's tokens alone.
    """

    n_texts: int
    n_tokens: int
    n_types: int
    longest_text: int
    vocabulary_coverage: float
    n_long_enough: int
    n_in_vocabulary: int


def word_index(vocabulary: list[str], word: str) -> int:
    """Where a word stands in a vocabulary, in any case; InputError, with the nearest spelling, if it does not."""
    if not isinstance(word, str) or not vocabulary:
        raise InputError(f"cannot look up {word!r} among {len(vocabulary):,} words: give a word and a vocabulary")
    for spelling in (word, word.lower()):
        if spelling in vocabulary:
            return vocabulary.index(spelling)
    nearest = get_close_matches(word.lower(), vocabulary, n=1, cutoff=0.6)
    common = next((known for known in vocabulary if known.isalpha()), vocabulary[0])
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"try a common one, such as '{common}'"
    raise InputError(
        f"'{word}' is not among the {len(vocabulary):,} words of the vocabulary: {hint} (or raise vocab_size)"
    )


@dataclass(frozen=True, eq=False)
class TokenSequences:
    """N sequences of T tokens with the token that follows each.

    Attributes:
        inputs: token numbers, int64 (N, T).
        targets: the next tokens, int64 (N, T): `targets[:, :-1]` equals `inputs[:, 1:]`.
        vocabulary: the V words, most frequent first (ties: the one that occurs first); `<unk>`, if any, is last.
        counts: how often each word occurs in all texts read, int64 (V,).
        topics: a label per sequence, or None for a corpus without labels.
        statistics: counts of the whole corpus, before any text was dropped or cut.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    vocabulary: list[str]
    counts: torch.Tensor
    topics: list[str] | None
    statistics: CorpusStatistics

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def vocab_size(self) -> int:
        """V, the number of words in the vocabulary."""
        return len(self.vocabulary)

    @property
    def length(self) -> int:
        """T, the number of tokens of a sequence."""
        return self.inputs.shape[1]

    @property
    def n_texts(self) -> int:
        """Texts read, whether or not they became sequences."""
        return self.statistics.n_texts

    def word(self, index: int) -> str:
        """The word of a token number. Raises InputError outside 0 .. V - 1."""
        return self.vocabulary[whole_number("the token number", index, minimum=0, maximum=self.vocab_size - 1)]

    def index(self, word: str) -> int:
        """The token number of a word, in any case. Raises InputError, with the nearest spelling, for other words."""
        return word_index(self.vocabulary, word)

    def decode(self, tokens: torch.Tensor) -> str:
        """The text of a row of token numbers, words separated by spaces. Raises InputError for anything else."""
        tokens = torch.as_tensor(tokens)
        if tokens.ndim != 1:
            raise InputError(f"tokens must be a row of token numbers, (n,); got {tuple(tokens.shape)}")
        return " ".join(self.word(token) for token in tokens.tolist())

    def select(self, rows: torch.Tensor) -> "TokenSequences":
        """The sequences of the given row numbers, int64 (n,), in that order, or of a mask, bool (N,).

        Vocabulary and counts stay. Raises InputError for rows that are not there, or a mask of another length.
        """
        rows = torch.as_tensor(rows)
        if rows.dtype == torch.bool:
            if rows.shape != (len(self),):
                raise InputError(
                    f"a mask must have one entry for each of {len(self)} sequences; got {tuple(rows.shape)}"
                )
            rows = rows.nonzero().flatten()
        if rows.is_floating_point():
            raise InputError(f"rows must be row numbers or a mask; got {rows.dtype}: convert with .long() or .bool()")
        rows = rows.long()
        if rows.ndim != 1 or not rows.numel() or int(rows.min()) < -len(self) or int(rows.max()) >= len(self):
            raise InputError(f"rows must be one or more row numbers from 0 to {len(self) - 1}")
        topics = None if self.topics is None else [self.topics[row] for row in rows.tolist()]
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows], topics=topics)

    def split(self, fraction: float, generator: torch.Generator) -> tuple["TokenSequences", "TokenSequences"]:
        """Hold out a random `fraction` of the sequences: (the rest, the held out), each in the corpus's order.

        Raises InputError if either part would be empty.
        """
        n_held_out = round(finite_number("fraction", fraction) * len(self))
        if not 0 < n_held_out < len(self):
            raise InputError(
                f"holding out {fraction} of {len(self)} sequences leaves a part empty: give a fraction between 0 and 1"
            )
        order = torch.randperm(len(self), generator=generator)
        return self.select(order[n_held_out:].sort().values), self.select(order[:n_held_out].sort().values)


def load_corpus(
    name_or_path: str | Path = "stories",
    *,
    vocab_size: int = 3000,
    length: int = 200,
    max_sequences: int | None = None,
    unknown: str = "drop",
    max_texts: int | None = None,
    tokenizer: Callable[[str], list[str]] = tokenize,
) -> TokenSequences:
    """Turn a corpus into sequences of T tokens over its V most common tokens (paper A, Section 5.1).

    Each text gives at most one sequence: its first T + 1 tokens x_1 .. x_{T+1}, with inputs x_1 .. x_T and targets
    x_2 .. x_{T+1}. Same arguments, same sequences: nothing here is random.

    Args:
        name_or_path: what to read, see `load_texts`: `"stories"` (embedded), a name of the hub, or a path.
        vocab_size: V, at least 2. The vocabulary is the V most common tokens of all texts read, most frequent first;
            of tokens that are equally frequent, those that occur first.
        length: T, at least 2 (with a single token attention has nothing to choose from).
        max_sequences: keep at most so many sequences, evenly spaced over all: sequence floor(j N / n) for j < n. As
            the stories are ordered by theme, every theme keeps its share.
        unknown: what becomes of tokens outside the vocabulary. `"drop"`, as in the paper: only texts made of the
            vocabulary alone, throughout, are kept. `"map"`: the vocabulary is the V - 1 most common tokens and, last,
            `<unk>`, which replaces all others; every text that is long enough is kept.
        max_texts: read at most so many texts, the first ones, see `load_texts`.
        tokenizer: the function that splits a text into tokens; default: the paper's `tokenize`.

    Raises:
        InputError: see `load_texts`; a number out of range; fewer than V types; no text of T + 1 tokens; no text left.
    """
    vocab_size = whole_number("vocab_size", vocab_size, minimum=2)
    length = whole_number("length", length, minimum=2)
    if max_sequences is not None:
        max_sequences = whole_number("max_sequences", max_sequences, minimum=1)
    if unknown not in ("drop", "map"):
        raise InputError(
            f"unknown is {unknown!r}: use 'drop' (keep texts inside the vocabulary) or 'map' (to {UNKNOWN})"
        )

    texts = load_texts(name_or_path, max_texts)
    ranks, starts, types, counts = _rank_tokens(texts.texts, tokenizer)
    n_tokens_per_text = np.diff(starts)
    n_words = vocab_size if unknown == "drop" else vocab_size - 1
    if n_words > len(types):
        largest = len(types) + vocab_size - n_words
        raise InputError(
            f"vocab_size {vocab_size:,} is more than the corpus has: the texts read ({len(texts):,}) hold "
            f"{len(types):,} different tokens, "
            + (f"so use vocab_size {largest:,} or less" if largest > 1 else "so give a text with more words")
        )
    long_enough = n_tokens_per_text > length
    if not long_enough.any():
        longest = int(n_tokens_per_text.max())
        raise InputError(
            f"length {length:,} needs a text of {length + 1:,} tokens, and the longest text ({len(texts):,} read) has "
            f"{longest:,}: " + (f"use length {longest - 1:,} or less" if longest > 2 else "give longer texts")
        )
    n_outside_before = np.append(0, np.cumsum(ranks >= n_words))
    in_vocabulary = np.diff(n_outside_before[starts]) == 0
    kept = np.flatnonzero(long_enough & in_vocabulary if unknown == "drop" else long_enough)
    if not len(kept):
        raise InputError(
            f"no text of at least {length + 1:,} tokens ({long_enough.sum():,} read) is made of the {vocab_size:,} "
            f"most common tokens alone: use a larger vocab_size (up to {len(types):,}), or unknown 'map', which turns "
            f"the other tokens into {UNKNOWN}"
        )
    if max_sequences is not None and max_sequences < len(kept):
        kept = kept[np.arange(max_sequences) * len(kept) // max_sequences]

    rows = torch.from_numpy(np.minimum(ranks[starts[kept, None] + np.arange(length + 1)], vocab_size - 1))
    vocabulary, word_counts = types[:n_words], counts[:n_words]
    if unknown == "map":
        vocabulary, word_counts = [*vocabulary, UNKNOWN], np.append(word_counts, counts[n_words:].sum())
    return TokenSequences(
        inputs=rows[:, :-1].contiguous(),
        targets=rows[:, 1:].contiguous(),
        vocabulary=vocabulary,
        counts=torch.from_numpy(word_counts.copy()),
        topics=None if texts.topics is None else [texts.topics[text] for text in kept],
        statistics=CorpusStatistics(
            n_texts=len(texts),
            n_tokens=len(ranks),
            n_types=len(types),
            longest_text=int(n_tokens_per_text.max()),
            vocabulary_coverage=float(counts[:n_words].sum() / len(ranks)),
            n_long_enough=int(long_enough.sum()),
            n_in_vocabulary=int(in_vocabulary.sum()),
        ),
    )


def _rank_tokens(
    texts: list[str], tokenizer: Callable[[str], list[str]]
) -> tuple[np.ndarray, np.ndarray, list[str], np.ndarray]:
    """Number the tokens of all texts by falling frequency, so that a vocabulary of V words is the numbers below V.

    Returns the ranks of all tokens in one row, int64; where each text starts in it (one more than texts); the types by
    rank; and how often each occurs.
    """
    order_of_appearance: defaultdict[str, int] = defaultdict(count().__next__)
    tokens = array("q")
    ends = [0]
    for text in texts:
        tokens.extend(map(order_of_appearance.__getitem__, tokenizer(text)))
        ends.append(len(tokens))
    appearance = np.array(tokens)
    counts = np.bincount(appearance)
    by_frequency = np.argsort(-counts, kind="stable")  # stable: equally frequent types stay in order of appearance
    rank = np.empty_like(by_frequency)
    rank[by_frequency] = np.arange(len(rank))
    types = list(order_of_appearance)
    return rank[appearance], np.array(ends), [types[i] for i in by_frequency], counts[by_frequency]
