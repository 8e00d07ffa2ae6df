"""`python -m assoc corpus`, and the arguments by which other commands choose their corpus."""

import argparse
import json
from dataclasses import asdict

from assoc.corpus.texts import CORPUS_NAMES, HUB_MAX_TEXTS
from assoc.corpus.tokens import TokenSequences, load_corpus
from assoc.files import write_atomically


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `corpus`."""
    parser = subparsers.add_parser(
        "corpus",
        help="count the texts, tokens and sequences of a corpus",
        description="Count the texts, tokens and sequences of a corpus.",
    )
    add_corpus_arguments(parser, positional=True)
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print the counts as JSON, or write them to FILE"
    )
    parser.set_defaults(run=run)


def add_corpus_arguments(parser: argparse.ArgumentParser, *, positional: bool = False) -> None:
    """Add the arguments that `corpus_from_options` reads: the corpus (`--corpus NAME_OR_PATH`, or positional),
    `--vocab-size`, `--length`, `--max-sequences`, `--unknown` and `--max-texts`, with the defaults of paper A.

    A command with defaults of its own sets them afterwards: `parser.set_defaults(vocab_size=600, length=64)`.
    """
    names = f"{', '.join(CORPUS_NAMES)}, or the path of a text file or of a folder of .txt files"
    which = {"default": "stories", "metavar": "NAME_OR_PATH", "help": f"{names} (default: stories)"}
    if positional:
        parser.add_argument("corpus", nargs="?", **which)
    else:
        parser.add_argument("--corpus", **which)
    parser.add_argument("--vocab-size", type=int, default=3000, metavar="V", help="most common tokens (%(default)s)")
    parser.add_argument("--length", type=int, default=200, metavar="T", help="tokens of a sequence (%(default)s)")
    parser.add_argument("--max-sequences", type=int, metavar="N", help="keep N evenly spaced sequences (all)")
    parser.add_argument(
        "--unknown",
        default="drop",
        metavar="drop|map",
        help="drop texts with tokens outside the vocabulary, or map these to <unk> (%(default)s)",
    )
    parser.add_argument(
        "--max-texts", type=int, metavar="N", help=f"read the first N texts (all; {HUB_MAX_TEXTS} from the hub)"
    )


def corpus_from_options(options: argparse.Namespace) -> TokenSequences:
    """Load the corpus that the arguments of `add_corpus_arguments` name. Raises InputError like `load_corpus`."""
    return load_corpus(
        options.corpus,
        vocab_size=options.vocab_size,
        length=options.length,
        max_sequences=options.max_sequences,
        unknown=options.unknown,
        max_texts=options.max_texts,
    )


def run(options: argparse.Namespace) -> None:
    """Print the counts of the corpus, or write them as JSON."""
    corpus = corpus_from_options(options)
    statistics = corpus.statistics
    n_topics = len(set(corpus.topics)) if corpus.topics else 0
    if options.json is None:
        rows = [
            ("texts", f"{statistics.n_texts:,}"),
            ("tokens", f"{statistics.n_tokens:,}"),
            ("types", f"{statistics.n_types:,}"),
            ("longest text, in tokens", f"{statistics.longest_text:,}"),
            (f"tokens in the vocabulary (V = {corpus.vocab_size:,})", f"{statistics.vocabulary_coverage:.2%}"),
            (f"texts of at least T + 1 = {corpus.length + 1:,} tokens", f"{statistics.n_long_enough:,}"),
            ("texts wholly in the vocabulary", f"{statistics.n_in_vocabulary:,}"),
            ("sequences kept", f"{len(corpus):,}"),
            ("topics", f"{n_topics:,}" if n_topics else "none"),
        ]
        width = max(len(label) for label, _ in rows)
        print("\n".join(f"{label:<{width}}  {value:>9}" for label, value in rows))
        return
    counts = {
        "corpus": str(options.corpus),
        "vocab_size": corpus.vocab_size,
        "length": corpus.length,
        "unknown": options.unknown,
        **asdict(statistics),
        "n_sequences": len(corpus),
        "n_topics": n_topics,
    }
    content = json.dumps(counts, indent=2) + "\n"
    if options.json == "-":
        print(content, end="")
        return
    print(f"wrote {write_atomically(options.json, content)}")
