"""`python -m assoc induction`: train on the bigram task, print how the memories form, write the history as JSON."""

import argparse

import torch

from assoc import __version__
from assoc.corpus import CORPUS_NAMES, load_texts
from assoc.errors import InputError
from assoc.files import check_writable, write_json
from assoc.induction.model import AssociativeTransformer, FullTransformer, OneLayerTransformer, TokenModel
from assoc.induction.task import BigramTask
from assoc.induction.training import InductionHistory, train_induction
from assoc.seeds import seeded

MODELS = {"associative": AssociativeTransformer, "one-layer": OneLayerTransformer, "full": FullTransformer}
TABLE_ROWS = 12
NO_SETTINGS = ("run", "command", "command_line")  # what the parser adds to the options


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `induction`."""
    parser = subparsers.add_parser(
        "induction",
        help="train the two-layer transformer of paper B and watch the induction head form",
        description="Train the two-layer transformer of paper B on the bigram task with triggers, over the characters "
        "of a corpus, and watch the induction head form.",
    )
    names = ", ".join(CORPUS_NAMES)
    add = parser.add_argument
    add(
        "--corpus",
        "--text",
        default="stories",
        metavar="NAME_OR_PATH",
        help=f"{names}, or the path of a text file or of a folder of .txt files (default: stories)",
    )
    add("--triggers", default="fixed", metavar="fixed|random", help="the same in all sequences, or drawn anew (fixed)")
    add("--n-triggers", type=int, default=5, metavar="K", help="triggers of a sequence (%(default)s)")
    add("--trigger-offset", type=int, default=0, metavar="N", help="skip the N most frequent tokens (%(default)s)")
    add("--outputs", default="uniform", metavar="uniform|bigram", help="where outputs are drawn from (uniform)")
    add("--model", default="associative", metavar="|".join(MODELS), help="%(default)s is the paper's simplified model")
    add("--feed-forward", action="store_true", help="add the feed-forward matrix W_F")
    add("--dim", type=int, default=128, metavar="D", help="width of the model (%(default)s)")
    add("--length", type=int, default=64, metavar="T", help="tokens of a sequence (%(default)s)")
    add("--steps", type=int, default=600, help="updates (%(default)s)")
    add("--batch-size", type=int, default=128, metavar="B", help="sequences of an update (%(default)s)")
    add("--learning-rate", type=float, default=0.2, metavar="ETA", help="of SGD with momentum 0.9 (%(default)s)")
    add(
        "--frozen-until",
        action="append",
        default=[],
        metavar="NAME=STEP",
        help="keep a matrix as it is until that step, for example output2=200; may be given several times",
    )
    add("--loss-on", default="repeated", metavar="repeated|all", help="positions in the loss (%(default)s)")
    add("--evaluate-every", type=int, default=10, metavar="N", help="steps from one probe to the next (%(default)s)")
    add("--seed", type=int, default=0, help="of the weights and of all sequences (%(default)s)")
    add("--output", default="results/induction.json", metavar="FILE", help="history as JSON (%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, print a table, write the history."""
    output = check_writable(options.output)
    frozen_until = dict(_name_and_step(text) for text in options.frozen_until)
    generator = seeded(options.seed)
    task = BigramTask.from_text(
        load_texts(options.corpus).texts,
        length=options.length,
        n_triggers=options.n_triggers,
        triggers=options.triggers,
        outputs=options.outputs,
        trigger_offset=options.trigger_offset,
    )
    model = _make_model(options, task, generator)
    history = train_induction(
        model,
        task,
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        frozen_until=frozen_until,
        loss_on=options.loss_on,
        generator=generator,
        evaluate_every=options.evaluate_every,
    )
    print(f"{task}\n\n{table(history)}\n")
    print(f"in-context accuracy {history.in_context_accuracy[-1]:.3f}, best possible 1, without context ", end="")
    print(f"{history.bigram_accuracy:.3f}; {history.seconds[-1]:.0f} s")
    origin = {
        "command": options.command_line,
        "version": __version__,
        "seed": options.seed,
        "settings": {name: value for name, value in vars(options).items() if name not in NO_SETTINGS},
    }
    write_json(output, origin | history.to_dict())
    print(f"wrote {output}")


def table(history: InductionHistory, n_rows: int = TABLE_ROWS) -> str:
    """About n_rows evenly spaced probes of a history, first and last included, as a table of text."""
    columns = {"accuracy": history.in_context_accuracy, "loss": history.in_context_loss, "global": history.global_loss}
    columns |= history.recall
    if history.feed_forward_kl:
        columns["W_F KL"] = history.feed_forward_kl
    last = len(history.steps) - 1
    rows = sorted({round(last * i / max(1, n_rows - 1)) for i in range(n_rows)})
    widths = [max(8, len(name)) for name in columns]
    lines = ["  step  " + "  ".join(f"{name:>{width}}" for name, width in zip(columns, widths, strict=True))]
    for row in rows:
        values = (f"{values[row]:{width}.3f}" for values, width in zip(columns.values(), widths, strict=True))
        lines.append(f"{history.steps[row]:6d}  " + "  ".join(values))
    return "\n".join(lines)


def _make_model(options: argparse.Namespace, task: BigramTask, generator: torch.Generator) -> TokenModel:
    if options.model not in MODELS:
        raise InputError(f"model is {options.model!r}: choose one of {', '.join(MODELS)}")
    arguments = (task.vocab_size, options.length, options.dim)
    if options.model == "full":
        if options.feed_forward:
            raise InputError("the full model always has feed-forward layers: leave out --feed-forward")
        return FullTransformer(*arguments, generator=generator)
    return MODELS[options.model](*arguments, options.feed_forward, generator=generator)


def _name_and_step(text: str) -> tuple[str, int]:
    name, _, step = text.partition("=")
    if not name or not step.isdecimal() or len(step) > 18:
        raise InputError(f"--frozen-until is {text[:80]!r}: write NAME=STEP, for example output2=200")
    return name, int(step)
