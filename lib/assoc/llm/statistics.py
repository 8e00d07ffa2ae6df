"""Leading terms of a corpus over a language model's own tokens (paper A, Section 5.2)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from assoc.errors import InputError, whole_number
from assoc.leading_terms.basis import (
    BasisFunctions,
    attention_and_position,
    bigram_frequencies,
    check_tokens,
    context,
)
from assoc.progress import progress

TEXTS_BEFORE_A_BAR = 5_000  # more take over 5 s


@dataclass(frozen=True, eq=False)
class TokenStatistics:
    """The basis functions of a corpus over its most common tokens.

    Attributes:
        tokens: numbers in the model's vocabulary, most common first, int64 (n,): rows and columns of `basis`.
        counts: how often each occurs in the sequences, int64 (n,).
        basis: the statistics over these tokens.
        n_sequences: texts that were long enough, each cut to `length` tokens and the one after.
        n_texts: texts that were given.
        length: T, tokens of a sequence.
        coverage: share of the sequences' tokens that are among `tokens`, 0 to 1.
    """

    tokens: Tensor
    counts: Tensor
    basis: BasisFunctions
    n_sequences: int
    n_texts: int
    length: int
    coverage: float


def token_sequences(texts: Iterable[str], encode: Callable[[str], list[int]], length: int) -> tuple[Tensor, Tensor]:
    """The first `length` tokens of each text and the tokens that follow them, int64 (N, T) each.

    Texts with fewer than `length` + 1 tokens are left out.

    Args:
        texts: any texts. encode: from a text to token numbers. length: T, at least 2.

    Raises:
        InputError: no text is long enough.
    """
    length = whole_number("length", length, minimum=2)
    texts = list(texts)
    bar = progress(texts, "tokens of texts") if len(texts) > TEXTS_BEFORE_A_BAR else texts
    rows = [encode(text)[: length + 1] for text in bar]
    long_enough = [row for row in rows if len(row) == length + 1]
    if not long_enough:
        longest = max(map(len, rows), default=0)
        raise InputError(
            f"length {length:,} needs a text of {length + 1:,} tokens, and the longest of {len(rows):,} has "
            f"{longest:,}: use a smaller length or give longer texts"
        )
    sequences = torch.tensor(long_enough)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def token_statistics(
    texts: Iterable[str], encode: Callable[[str], list[int]], n_tokens: int = 3000, length: int = 128
) -> TokenStatistics:
    """The basis functions of texts over their `n_tokens` most common tokens.

    Args:
        texts: any texts, cut to `length` tokens; shorter ones are left out.
        encode: from a text to token numbers, such as `tokenizer.encode`.
        n_tokens: n, at least 2; of tokens that are equally frequent, those with smaller numbers. If there are fewer
            different tokens, all of them.
        length: T; paper A cuts to 128.

    Raises:
        InputError: a number out of range; no text long enough; fewer than two different tokens.
    """
    n_tokens = whole_number("n_tokens", n_tokens, minimum=2)
    texts = list(texts)
    inputs, targets = token_sequences(texts, encode, length)
    every = torch.cat([inputs, targets[:, -1:]], dim=1)
    distinct, counts = every.unique(return_counts=True)
    if len(distinct) < 2:
        raise InputError("the texts hold a single token again and again: give other texts")
    order = counts.argsort(descending=True, stable=True)[:n_tokens]
    tokens = distinct[order]
    return TokenStatistics(
        tokens=tokens,
        counts=counts[order],
        basis=restricted_basis_functions(inputs, targets, tokens),
        n_sequences=len(inputs),
        n_texts=len(texts),
        length=inputs.shape[1],
        coverage=float(counts[order].sum() / counts.sum()),
    )


def restricted_basis_functions(inputs: Tensor, targets: Tensor, tokens: Tensor) -> BasisFunctions:
    """The statistics of `basis_functions` over some tokens alone; all others are left out of rows and columns.

    The others keep their places: positions, the prefix averages 1/t and the factor 1/(NT) stay those of the whole
    sequences. It is as if the one-hot rows of all other tokens, and Y - U where such a token is to be predicted, were
    zero in the definitions of B, Phi and Q (paper A, Section 4); U holds 1/n. Over all tokens of a corpus it is
    `basis_functions`.

    Args:
        inputs, targets: int64 (N, T).
        tokens: the n different tokens to keep, int64 (n,), in the order of rows and columns.

    Raises:
        InputError: see `basis_functions`; tokens that are not different, or fewer than two.
    """
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 1:
        raise InputError("tokens must be an int64 tensor (n,): convert with torch.as_tensor")
    n = len(tokens)
    if n < 2 or len(tokens.unique()) != n or int(tokens.min()) < 0:
        raise InputError("tokens must be two or more different token numbers, none below 0")
    vocab_size = 1 + max(int(numbers.max()) for numbers in (inputs, targets, tokens) if numbers.numel())
    check_tokens(inputs, targets, vocab_size)
    place = torch.full((vocab_size,), n)
    place[tokens] = torch.arange(n)
    inputs, targets = place[inputs], place[targets]  # all others are token n, which is cut off below

    pairs = bigram_frequencies(inputs, targets, n + 1).to_dense()[:n, :n]
    frequencies, before = pairs.to_sparse(), pairs.t().to_sparse()
    p = pairs.sum(dim=1)

    def bigram_transposed_times(matrix: Tensor) -> Tensor:
        return torch.sparse.mm(before, matrix).sub_((p @ matrix) / n)

    bigram = pairs - p[:, None] / n
    phi = context(inputs, targets, n + 1)[:n, :n]
    phi = phi - phi.mean(dim=0)
    value_transposed = torch.sparse.mm(frequencies, phi)  # B Phi: the part of U drops out, columns of Phi sum to 0
    association = torch.zeros(n + 1, n + 1, dtype=torch.float64)
    association[:n, :n] = bigram_transposed_times(value_transposed)  # S Phi
    attention, position = attention_and_position(inputs, targets, association)
    return BasisFunctions(
        bigram=bigram,
        interchangeability=bigram_transposed_times(bigram),
        context=phi,
        value=value_transposed.t().contiguous(),
        attention=attention[:n, :n].contiguous(),
        position=position,
    )
