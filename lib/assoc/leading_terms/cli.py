"""`python -m assoc basis | neighbours | train`: paper A from the shell."""

import argparse
import io
import time

import numpy as np
import torch

from assoc import __version__, distributed
from assoc.corpus.cli import add_corpus_arguments, corpus_from_options
from assoc.errors import InputError
from assoc.files import check_writable, write_atomically, write_json
from assoc.leading_terms.basis import BasisFunctions, basis_functions, basis_functions_of_batches
from assoc.leading_terms.model import AttentionOnlyTransformer
from assoc.leading_terms.neighbours import BASIS_NAMES, neighbours
from assoc.leading_terms.theory import KINDS, step_coefficients
from assoc.leading_terms.training import TrainingHistory, train
from assoc.seeds import seeded


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `basis`, `neighbours` and `train`."""
    basis = subparsers.add_parser("basis", help="compute the three basis functions and the leading terms of a corpus")
    add_corpus_arguments(basis)
    basis.add_argument("--output", metavar="FILE.npz", help="write all six tensors and the vocabulary to this file")
    basis.set_defaults(run=run_basis)

    near = subparsers.add_parser("neighbours", help="the words that each basis function ties to a word")
    near.add_argument("word", metavar="WORD")
    add_corpus_arguments(near)
    near.add_argument("--top", type=int, default=10, help="how many neighbours (%(default)s)")
    near.set_defaults(run=run_neighbours)

    training = subparsers.add_parser(
        "train",
        help="train an attention-only transformer against its leading terms",
        description="Train an attention-only transformer against its leading terms. To share the work among K "
        "processes: torchrun --nproc-per-node K -m assoc train ...",
    )
    add_corpus_arguments(training)
    training.set_defaults(vocab_size=500, length=64, max_sequences=512, unknown="map")
    training.add_argument("--layers", type=int, default=3, metavar="L", help="layers (%(default)s)")
    training.add_argument("--learning-rate", type=float, default=1.0, metavar="ETA", help="step size (%(default)s)")
    training.add_argument("--steps", type=int, default=32, metavar="S", help="steps (%(default)s)")
    training.add_argument("--batch-size", type=int, metavar="N", help="sequences a step (all of them)")
    training.add_argument("--record-every", type=int, default=1, metavar="K", help="steps a record (%(default)s)")
    training.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(%(default)s)")
    training.add_argument("--seed", type=int, default=0, help="of the shuffles of mini-batches (%(default)s)")
    training.add_argument("--output", default="results/train.json", metavar="FILE", help="history (%(default)s)")
    training.add_argument(
        "--checkpoint", metavar="FILE", help="keep the run's state here; the same command goes on from it"
    )
    training.add_argument(
        "--checkpoint-every", type=int, default=1, metavar="K", help="steps a checkpoint (%(default)s)"
    )
    training.set_defaults(run=run_train)


def _basis(options: argparse.Namespace) -> tuple[list[str], BasisFunctions, float]:
    corpus = corpus_from_options(options)
    start = time.perf_counter()
    basis = basis_functions(corpus.inputs, corpus.targets, corpus.vocab_size)
    return corpus.vocabulary, basis, time.perf_counter() - start


def run_basis(options: argparse.Namespace) -> None:
    """Print shape and norm of each tensor, and write them where asked."""
    if options.output is not None:
        if not options.output.endswith(".npz"):
            raise InputError(f"--output must end in .npz; got {options.output!r}")
        check_writable(options.output)
    vocabulary, basis, seconds = _basis(options)
    for name, tensor in basis.items():
        print(f"{name:<19} {'x'.join(map(str, tensor.shape)):>9}   norm {float(tensor.norm()):.4e}")
    print(f"computed in {seconds:.1f} s")
    if options.output is not None:
        buffer = io.BytesIO()
        np.savez(buffer, vocabulary=np.array(vocabulary), **{name: tensor.numpy() for name, tensor in basis.items()})
        print(f"written to {write_atomically(options.output, buffer.getvalue())}")


def run_neighbours(options: argparse.Namespace) -> None:
    """Print the strongest neighbours of a word under each basis function, raw and normalised."""
    vocabulary, basis, _ = _basis(options)
    for name in BASIS_NAMES:
        for normalised in (False, True):
            found = neighbours(basis, vocabulary, options.word, name, options.top, normalised)
            words = " ".join(n.word for n in found) or "(none)"
            print(f"{name:<19} {'normalised' if normalised else 'raw':<11} {words}")


def summary(history: TrainingHistory) -> str:
    """A line for the loss, then one for each weight: its last cosine and its coefficient over the predicted one."""
    predicted = step_coefficients(history.steps[-1], history.learning_rate)
    lines = [
        f"s eta = {history.training_time[-1]:g}: loss {history.loss[0]:.3f} -> {history.loss[-1]:.3f}",
        f"{'weight':<12} {'cosine':>8}   coefficient / predicted",
    ]
    for agreement in history.agreements[-1]:
        name = agreement.kind if agreement.kind == "output" else f"{agreement.kind} {agreement.layer}"
        expected = getattr(predicted, agreement.kind)
        ratio = f"{agreement.coefficient / expected:.3f}" if expected else "not moved yet"
        lines.append(f"{name:<12} {agreement.cosine:>8.5f}   {ratio}")
    return "\n".join(lines)


def run_train(options: argparse.Namespace) -> None:
    """Train, print the agreement at the end, write the history with what made it.

    Under torchrun all processes train together; the first one speaks and writes.
    """
    with distributed.processes():
        _run_train(options)


def _run_train(options: argparse.Namespace) -> None:
    is_first = distributed.number() == 0
    check_writable(options.output)
    generator = seeded(options.seed)
    corpus = corpus_from_options(options)
    inputs, targets = corpus.inputs, corpus.targets
    own = distributed.share(len(inputs))
    model = AttentionOnlyTransformer(
        corpus.vocab_size, inputs.shape[1], options.layers, dtype=getattr(torch, options.dtype)
    )
    start = time.perf_counter()
    history = train(
        model,
        inputs,
        targets,
        options.learning_rate,
        options.steps,
        batch_size=options.batch_size,
        generator=generator,
        basis=basis_functions_of_batches(
            [(inputs[own], targets[own])], corpus.vocab_size, inputs.shape[1], over_processes=True
        ),
        record_every=options.record_every,
        show_progress=is_first,
        checkpoint=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
    )
    if not is_first:
        return
    seconds = time.perf_counter() - start
    print(summary(history))
    made_by = {
        "command": options.command_line,
        "version": __version__,
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "processes": distributed.count(),
        "sequences": len(inputs),
        "kinds": list(KINDS),
    }
    print(f"{seconds:.1f} s; history written to {write_json(options.output, made_by | history.as_dict())}")
