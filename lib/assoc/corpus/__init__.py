"""From text to token sequences: the data that both papers' chapters start from.

`load_corpus` gives the inputs and next tokens of paper A, `load_texts` the raw texts. The embedded corpus `"stories"`
needs no network; `"tinystories"`, `"shakespeare"`, `"openwebtext"` and `"fineweb"` come from the Hugging Face hub; any
text file or folder of `.txt` files works by its path.
"""

from assoc.corpus.texts import CORPUS_NAMES, END_OF_TEXT, Texts, load_texts
from assoc.corpus.tokens import UNKNOWN, CorpusStatistics, TokenSequences, load_corpus, tokenize

__all__ = [
    "CORPUS_NAMES",
    "END_OF_TEXT",
    "UNKNOWN",
    "CorpusStatistics",
    "Texts",
    "TokenSequences",
    "load_corpus",
    "load_texts",
    "tokenize",
]
