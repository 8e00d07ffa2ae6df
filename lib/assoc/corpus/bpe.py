"""Byte pair encoding: the other tokenizer of paper A (Table 2), trained on the corpus itself."""

from collections.abc import Callable, Sequence

from assoc.errors import InputError, whole_number

SPACE = "Ġ"
"""How a byte pair token shows a space in front of it, as in the vocabularies of language models."""


def bpe_tokenizer(texts: Sequence[str], vocab_size: int) -> Callable[[str], list[str]]:
    """A byte-level byte pair encoding of at most `vocab_size` tokens, for `load_corpus(tokenizer=...)`.

    Texts are lower-cased, as for `tokenize`, so that both tokenizers read the same text. Training starts from the bytes
    that occur and merges the most frequent pair of neighbours again and again, never across the start of a word; a word
    keeps the space before it. No token is unknown in the texts it was trained on. Not all tokens need occur in them
    afterwards: those that were only steps to longer ones are left over.

    Args:
        texts: what to train on. vocab_size: the bytes and the merges together.

    Returns:
        text -> list of tokens, with `SPACE` for a space.

    Raises:
        InputError: no text, or fewer tokens than the texts have different bytes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    vocab_size = whole_number("vocab_size", vocab_size, minimum=1)
    if isinstance(texts, str):
        raise InputError("texts is one text: give a list of texts")
    lowered = [text.lower() for text in texts]
    if not any(text.strip() for text in lowered):
        raise InputError("there is no text to train a byte pair encoding on: give at least one with visible characters")
    n_bytes = len(set("".join(lowered).encode()))
    if vocab_size < n_bytes:
        raise InputError(f"vocab_size is {vocab_size}: these texts have {n_bytes} different bytes, so use more")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False)
    tokenizer.train_from_iterator(lowered, trainer)
    return lambda text: tokenizer.encode(text).tokens
