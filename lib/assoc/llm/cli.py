"""`python -m assoc llm ...`: both papers' checks in language models, from the shell."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from assoc import __version__
from assoc.corpus import CORPUS_NAMES, load_texts
from assoc.errors import InputError, whole_number
from assoc.files import check_writable, write_json
from assoc.llm.covariance import LayerAgreement, PreparedTerms, compare_layers, prepare_terms
from assoc.llm.heads import (
    HeadName,
    HeadScores,
    ablated,
    copy_losses,
    head_scores,
    random_heads,
    repeated_blocks,
    sequence_losses,
)
from assoc.llm.models import LanguageModel, load_model
from assoc.llm.removal import ordinary_tokens
from assoc.llm.smollm2 import fetch_smollm2, smollm2_path
from assoc.llm.statistics import TokenStatistics, token_statistics
from assoc.seeds import seeded
from assoc.sweeps import rounded

FETCHED = {"smollm2": (fetch_smollm2, smollm2_path)}  # models by short name: how to fetch, where they are then
COLUMNS = {
    "embedding": "embedding",
    "without_mlp": "no MLP",
    "attention": "attention Q",
    "attention_transposed": "attention Q'",
    "head_spread": "head spread",
}


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `llm` with its tasks; a task adds itself to `tasks` with a function that takes the options."""
    parser = subparsers.add_parser(
        "llm",
        help="check both papers in language models: GPT-NeoX (Pythia), Llama, Mistral, GPT-2",
        description="Check both papers in language models of the families GPT-NeoX (Pythia), Llama, Mistral and GPT-2.",
    )
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    register_fetch(tasks)
    register_leading_terms(tasks)
    register_heads(tasks)


def register_fetch(tasks: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `llm fetch`."""
    fetch = tasks.add_parser("fetch", help="fetch a small trained model into the cache")
    fetch.add_argument("name", metavar="|".join(FETCHED), help="smollm2: SmolLM2-135M-Instruct, 93 MB")
    fetch.set_defaults(run=run_fetch)


def register_leading_terms(tasks: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `llm leading-terms`."""
    compare = tasks.add_parser(
        "leading-terms",
        help="compare a model, layer by layer, with the leading terms of a corpus (paper A, Figures 6 to 8)",
        description="Compare the covariances of a model's embeddings and attention scores, layer by layer, with those "
        "of the leading terms of a corpus over the model's own tokens (paper A, Section 5.2).",
    )
    add_model_arguments(compare)
    names = f"{', '.join(CORPUS_NAMES)}, or the path of a text file or of a folder of .txt files"
    compare.add_argument("--corpus", default="stories", metavar="NAME_OR_PATH", help=f"{names} (default: stories)")
    compare.add_argument("--max-texts", type=int, metavar="N", help="read the first N texts (all)")
    compare.add_argument("--tokens", type=int, default=3000, metavar="N", help="most common tokens (%(default)s)")
    compare.add_argument("--length", type=int, default=128, metavar="T", help="cut texts to T tokens (%(default)s)")
    compare.add_argument(
        "--centre-tokens", action="store_true", help="take away what all tokens share, which the paper's measure keeps"
    )
    compare.add_argument("--output", default="results/llm-leading-terms.json", metavar="FILE", help="(%(default)s)")
    compare.set_defaults(run=run_leading_terms)


def register_heads(tasks: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `llm heads`."""
    heads = tasks.add_parser(
        "heads",
        help="find the induction heads of a model, and remove them (paper B)",
        description="Find the induction and previous-token heads of a model on random blocks of tokens that are "
        "repeated once, and see what the model loses without the best of them.",
    )
    add_model_arguments(heads)
    heads.add_argument("--block-length", type=int, default=40, metavar="L", help="tokens of a block (%(default)s)")
    heads.add_argument("--blocks", type=int, default=4, metavar="N", help="how many (%(default)s)")
    heads.add_argument("--top", type=int, default=8, metavar="K", help="heads shown, and removed (%(default)s)")
    heads.add_argument("--seed", type=int, default=0, help="of the blocks and of random heads (%(default)s)")
    heads.add_argument("--output", default="results/llm-heads.json", metavar="FILE", help="(%(default)s)")
    heads.set_defaults(run=run_heads)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--model` and `--revisions`, which `models_from_options` reads."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME|FOLDER|FILE.gguf",
        help=f"a name of the Hugging Face hub, a folder of a saved model, a .gguf file, or {', '.join(FETCHED)}",
    )
    parser.add_argument(
        "--revisions",
        metavar="R1,R2,...",
        help="checkpoints: revisions of the hub (step0,step1,...), or subfolders of the folder (default: just one)",
    )


def revisions_from_options(options: argparse.Namespace) -> list[str | None]:
    """The checkpoints asked for, in order; [None] if none was named."""
    if options.revisions is None:
        return [None]
    revisions = [revision.strip() for revision in options.revisions.split(",")]
    if "" in revisions or len(set(revisions)) < len(revisions):
        raise InputError(f"--revisions is {options.revisions!r}: give different names, separated by commas")
    folder = Path(options.model)
    if folder.is_dir():  # before the first of them takes its time
        for revision in revisions:
            if not (folder / revision).is_dir():
                raise InputError(f"folder '{folder}' has no checkpoint '{revision}': give some of its subfolders")
    return list(revisions)


def model_from_options(options: argparse.Namespace, revision: str | None = None) -> LanguageModel:
    """The model of `--model` at one of its checkpoints. Raises InputError like `load_model`."""
    source = FETCHED[options.model][1]() if options.model in FETCHED else options.model
    return load_model(source, revision=revision)


def run_fetch(options: argparse.Namespace) -> None:
    """Fetch a model and print where it is."""
    if options.name not in FETCHED:
        raise InputError(f"cannot fetch '{options.name}': choose from {', '.join(FETCHED)}")
    print(FETCHED[options.name][0]())


def run_leading_terms(options: argparse.Namespace) -> None:
    """Compare every checkpoint with the leading terms, print a table for each, write all as JSON."""
    output = check_writable(options.output)
    whole_number("tokens", options.tokens, minimum=2)
    whole_number("length", options.length, minimum=2)
    revisions = revisions_from_options(options)
    texts = load_texts(options.corpus, options.max_texts).texts
    started = time.perf_counter()
    model = model_from_options(options, revisions[0])
    statistics, terms = _statistics(model, texts, options)
    print(f"{describe(statistics)}\n{describe_control(terms)}", flush=True)
    tokenized_by = model.name
    checkpoints = []
    for revision in revisions:
        if revision != revisions[0]:
            model = model_from_options(options, revision)
        layers = list(compare_layers(model, statistics.tokens, terms))
        print(f"\n{model.name}\n{table(layers)}", flush=True)
        checkpoints.append({"revision": revision, "layers": [as_record(layer) for layer in layers]})
    write_json(
        output,
        {
            "command": options.command_line,
            "version": __version__,
            "seed": None,  # nothing here is random
            "seconds": round(time.perf_counter() - started, 1),
            "model": options.model,
            "tokenized_by": tokenized_by,
            "n_sequences": statistics.n_sequences,
            "n_tokens": len(statistics.tokens),
            "length": statistics.length,
            "coverage": rounded(statistics.coverage),
            "centre_tokens": options.centre_tokens,
            "all_tokens_the_same": None if options.centre_tokens else rounded(controls(terms)),
            "checkpoints": checkpoints,
        },
    )
    print(f"wrote {output}")


def run_heads(options: argparse.Namespace) -> None:
    """Score the heads of every checkpoint, remove the best and as many random ones, print, write all as JSON."""
    output = check_writable(options.output)
    whole_number("block-length", options.block_length, minimum=2)
    whole_number("blocks", options.blocks, minimum=1)
    whole_number("top", options.top, minimum=1)
    seeded(options.seed)
    started = time.perf_counter()
    checkpoints = []
    for revision in revisions_from_options(options):
        model = model_from_options(options, revision)
        generator = seeded(options.seed)  # the same blocks for every checkpoint
        blocks = repeated_blocks(ordinary_tokens(model), options.block_length, options.blocks, generator)
        scores = head_scores(model, blocks)
        best = {name: scores.best(name, options.top) for name in ("induction", "previous_token")}
        removed = {"none": [], "induction": best["induction"], "previous_token": best["previous_token"]}
        removed["random"] = random_heads(model, options.top, generator, without=best["induction"])
        losses = {}
        for name, heads in removed.items():
            with ablated(model, heads):
                first, second = copy_losses(sequence_losses(model, blocks))
            losses[name] = {"first": round(float(first.mean()), 4), "second": round(float(second.mean()), 4)}
        print(f"\n{model.name}\n{heads_table(scores, best, losses)}", flush=True)
        checkpoints.append(
            {
                "revision": revision,
                "losses": losses,
                "removed": {name: [list(head) for head in heads] for name, heads in removed.items()},
                "induction": scores.induction.mean(0).tolist(),
                "previous_token": scores.previous_token.mean(0).tolist(),
            }
        )
    write_json(
        output,
        {
            "command": options.command_line,
            "version": __version__,
            "seed": options.seed,
            "seconds": round(time.perf_counter() - started, 1),
            "model": options.model,
            "block_length": options.block_length,
            "blocks": options.blocks,
            "checkpoints": checkpoints,
        },
    )
    print(f"wrote {output}")


def heads_table(
    scores: HeadScores, best: Mapping[str, Sequence[HeadName]], losses: Mapping[str, Mapping[str, float]]
) -> str:
    """The best heads as layer.head with their scores, and the losses on both copies without each set of heads."""
    lines = []
    for name, heads in best.items():
        mean = getattr(scores, name).mean(0)
        shown = ", ".join(f"{layer}.{head} {float(mean[layer, head]):.2f}" for layer, head in heads)
        lines.append(f"{name.replace('_', '-')} heads: {shown}")
    lines.append(f"{'heads removed':>15}  first copy  second copy  gain")
    for name, loss in losses.items():
        first, second = loss["first"], loss["second"]
        lines.append(f"{name.replace('_', '-'):>15}  {first:10.2f}  {second:11.2f}  {first - second:4.2f}")
    return "\n".join(lines)


def _statistics(
    model: LanguageModel, texts: Sequence[str], options: argparse.Namespace
) -> tuple[TokenStatistics, PreparedTerms]:
    """The statistics over the first checkpoint's tokens, which serve all of them: they have one tokenizer."""
    statistics = token_statistics(texts, model.encode, options.tokens, options.length)
    terms = prepare_terms(statistics.basis.value, statistics.basis.attention, centre_tokens=options.centre_tokens)
    return statistics, terms


def describe(statistics: TokenStatistics) -> str:
    """What the statistics were computed from, in one line."""
    return (
        f"{statistics.n_sequences:,} of {statistics.n_texts:,} texts hold {statistics.length} tokens and one more; "
        f"the {len(statistics.tokens):,} most common tokens make up {statistics.coverage:.1%} of them"
    )


def controls(terms: PreparedTerms) -> dict[str, float]:
    """For each leading term, the cosine of a model in which all tokens look the same."""
    return {
        "embedding": terms.value.constant_cosine,
        "attention": terms.attention.constant_cosine,
        "attention_transposed": terms.attention_transposed.constant_cosine,
    }


def describe_control(terms: PreparedTerms) -> str:
    """In one line, what agreement means nothing."""
    if terms.value.centre_tokens:
        return "without the mean over tokens: a model in which all tokens look the same has no covariance at all"
    embedding, attention, transposed = controls(terms).values()
    return (
        f"a model in which all tokens look the same would have {embedding:.4f} (embedding), {attention:.4f} "
        f"(attention Q) and {transposed:.4f} (attention Q')"
    )


def as_record(layer: LayerAgreement) -> dict[str, object]:
    """A layer's cosines for JSON, six digits each; a cosine that is not defined becomes None."""
    return rounded(asdict(layer) | {"head_spread": layer.head_spread})


def table(layers: Sequence[LayerAgreement]) -> str:
    """One line a layer: cosines with the value term and with the attention term, and the spread of the heads."""
    lines = ["layer  " + "  ".join(f"{title:>12}" for title in COLUMNS.values())]
    lines += [
        f"{layer.layer:5d}  " + "  ".join(f"{getattr(layer, name):12.4f}" for name in COLUMNS) for layer in layers
    ]
    return "\n".join(lines)
