"""The byte pair encoding, against a literal one: count pairs, merge the most frequent, begin again."""

from collections import Counter
from itertools import pairwise

import pytest

from assoc.corpus import load_corpus, load_texts
from assoc.corpus.bpe import SPACE, bpe_tokenizer
from assoc.errors import InputError

TEXTS = ["the hen the hen the pen", "then the ten men", "Hen and pen"]


def words_of(text: str) -> list[str]:
    """Words with the space before them, of a text of lower-case words and single spaces."""
    first, *others = text.lower().split(" ")
    return [first, *(SPACE + word for word in others)]


def merge(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def literal_merges(texts: list[str], n_merges: int) -> list[list[tuple[str, str]]]:
    """After each merge, the pairs that were the most frequent then; stops where the choice is not unique."""
    words = [list(word) for text in texts for word in words_of(text)]
    merges = []
    for _ in range(n_merges):
        counts = Counter(pair for word in words for pair in pairwise(word))
        (pair, count), (_, second) = counts.most_common(2)
        if count == second:
            break
        merges.append(pair)
        words = [merge(word, pair) for word in words]
    return merges


def test_first_merges_are_those_of_a_literal_count() -> None:
    texts = ["ab ab ab abc abc xab y", "xabc abab"]
    merges = literal_merges(texts, 10)
    assert merges[0] == ("a", "b")
    assert len(merges) >= 2
    n_bytes = len(set("".join(texts).replace(" ", SPACE)))
    for n_merges in range(len(merges) + 1):
        encode = bpe_tokenizer(texts, n_bytes + n_merges)
        for text in texts:
            expected = []
            for word in words_of(text):
                symbols = list(word)
                for pair in merges[:n_merges]:
                    symbols = merge(symbols, pair)
                expected += symbols
            assert encode(text) == expected, n_merges


def test_tokens_spell_the_lower_cased_text() -> None:
    encode = bpe_tokenizer(TEXTS, 30)
    for text in TEXTS:
        assert "".join(encode(text)).replace(SPACE, " ") == text.lower()


def test_same_texts_give_the_same_tokens() -> None:
    texts = load_texts("stories", 200).texts
    one, other = (bpe_tokenizer(texts, 300) for _ in range(2))
    assert all(one(text) == other(text) for text in texts[:50])


def test_no_token_of_the_corpus_is_unknown() -> None:
    texts = load_texts("stories").texts
    encode = bpe_tokenizer(texts, 500)
    types = {token for text in texts for token in encode(text)}
    assert 450 < len(types) <= 500
    corpus = load_corpus("stories", vocab_size=len(types), length=64, tokenizer=encode)
    assert corpus.statistics.vocabulary_coverage == 1.0
    assert set(corpus.vocabulary) == types
    assert (
        corpus.decode(corpus.inputs[0]).replace(" ", "").replace(SPACE, " ").startswith("once upon a time, there was")
    )


@pytest.mark.parametrize(
    ("texts", "size", "needle"), [([], 50, "no text"), (["  "], 50, "no text"), (["abc"], 2, "3 different bytes")]
)
def test_what_cannot_be_trained_on(texts: list[str], size: int, needle: str) -> None:
    with pytest.raises(InputError, match=needle):
        bpe_tokenizer(texts, size)
