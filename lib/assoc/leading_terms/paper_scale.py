"""Paper A's training run at its own sizes, in few large steps (Section 5.1, Table 1 and Figure 4).

The paper takes 3,200 mini-batch steps of eta = 0.005 (Table 1) or 0.05 (Figure 4). What counts is training time s eta:
s eta = 16 is all of Table 1, s eta = 48 the first 30 epochs of Figure 4, where every matrix still agrees to 0.9, and
s eta = 160 its end. Full batches and steps of size 1 or 2 come as far in a few dozen steps of a minute each.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assoc.files import write_json
from assoc.leading_terms.ablation import frequency_terms
from assoc.leading_terms.basis import basis_functions
from assoc.leading_terms.conditions import all_leading_terms, clock, lowest_cosines
from assoc.leading_terms.limits import some_stories
from assoc.leading_terms.model import AttentionOnlyTransformer
from assoc.leading_terms.theory import KINDS, PerKind
from assoc.leading_terms.training import cosine, train
from assoc.sweeps import Sweep, rounded

TINYSTORIES_SAMPLE = "tinystories-sample.txt"  # the reader's: TinyStories, separated by <|endoftext|>
CHECKPOINTS = Path("_build/reproduce/3a-paper-scale")  # a run that was stopped goes on from its last step


def frequency_entropy(tokens: Tensor, vocab_size: int) -> float:
    """Entropy of word frequencies in nats: the loss of a model that knows nothing else. tokens: int64, any shape."""
    return float(torch.special.entr(tokens.flatten().bincount(minlength=vocab_size).double() / tokens.numel()).sum())


def coefficients_of_rates(rates: Sequence[float]) -> PerKind:
    """`step_coefficients` for steps of unequal size: what each step adds to a weight is of the weights before it.

    W_O grows by eta, V_l by eta times W_O's coefficient, W_l and P_l by eta times the product of both.
    """
    output = value = attention = 0.0
    for rate in rates:
        attention += rate * output * value
        value += rate * output
        output += rate
    return PerKind(output, value, attention, attention)


def paper_scale_run(
    seed: int,
    *,
    n_sequences: int,
    learning_rate: float,
    steps: int,
    marks: Sequence[int],
    later: Sequence[tuple[float, int]] = (),
    corpus: str = "stories",
    vocab_size: int = 3000,
    length: int = 200,
    n_layers: int = 3,
    checkpoints: Path = CHECKPOINTS,
) -> dict[str, Any]:
    """Full-batch descent from zero on a random choice of stories, against the leading terms of the same sequences.

    Args:
        seed: of the choice. n_sequences: N. learning_rate: eta. steps: s.
        marks: steps, ascending, at which agreement beyond word frequencies is looked at; each costs one gradient more.
        later: what follows these steps: pairs of a learning rate and a number of steps. `marks` count through.
        corpus: name or path of the texts.
        vocab_size, length, n_layers: V, T, L; the paper's by default.
        checkpoints: folder of the run's state, which is removed at the end.

    Returns:
        times: s eta of each record. loss: in nats. cosines: for each record, kind of weight -> its layers' cosines.
        coefficients: kind -> the last coefficients over the predicted ones, layer by layer.
        beyond: for each mark, its s eta and kind -> the lowest cosine beyond word frequencies.
        frequencies: kind -> cosine of what word frequencies alone give with the leading term.
        frequency_entropy: of the targets, in nats: the loss of a model that knows how frequent words are.
        clock: theta per unit of s eta. coverage: share of tokens that are in the vocabulary.
    """
    chosen = some_stories(vocab_size, length, n_sequences, seed, corpus)
    inputs, targets, V = chosen.inputs, chosen.targets, chosen.vocab_size
    basis = basis_functions(inputs, targets, V)
    terms, by_frequency = all_leading_terms(basis), frequency_terms(basis, inputs, targets)
    model = AttentionOnlyTransformer(V, length, n_layers, dtype=torch.float32)
    name = f"{Path(corpus).stem}-{seed}-{n_sequences}-{V}-{length}-{n_layers}"
    phases = [(learning_rate, steps), *later]
    seen = checkpoints / f"{name}.json"  # a checkpoint cannot go back to a mark it has passed
    beyond = json.loads(seen.read_text()) if seen.exists() else []
    paths, times, losses, records = [seen], [], [], []
    done, time = 0, 0.0
    for number, (rate, n_steps) in enumerate(phases):
        paths.append(checkpoints / f"{name}-{number}-{rate:g}.pt")
        looks = [mark - done for mark in marks if done < mark < done + n_steps]
        for look in [*looks, n_steps]:
            is_new = time + look * rate not in [record["time"] for record in beyond]
            if is_new or look == n_steps:
                history = train(model, inputs, targets, rate, look, basis=basis, checkpoint=paths[-1])
            if is_new:
                beyond.append({"time": time + look * rate, **lowest_cosines(model, terms, by_frequency)})
                write_json(seen, rounded(beyond))
        new = slice(1 if number else 0, None)  # a phase begins where the one before it ended
        times += [time + past for past in history.training_time[new]]
        losses += history.loss[new]
        records += history.agreements[new]
        done, time = done + n_steps, time + n_steps * rate
    predicted = coefficients_of_rates([rate for rate, n_steps in phases for _ in range(n_steps)])
    for path in paths:
        path.unlink(missing_ok=True)
    return {
        "times": times,
        "loss": losses,
        "cosines": [{kind: [a.cosine for a in record if a.kind == kind] for kind in KINDS} for record in records],
        "coefficients": {
            kind: [a.coefficient / getattr(predicted, kind) for a in records[-1] if a.kind == kind] for kind in KINDS
        },
        "beyond": beyond,
        "frequencies": {kind: cosine(by_frequency[kind], terms[kind]) for kind in KINDS},
        "frequency_entropy": frequency_entropy(targets, V),
        "clock": clock(basis, n_layers),
        "coverage": chosen.statistics.vocabulary_coverage,
    }


PAPER_SCALE = [
    Sweep(
        name="3a-paper-scale",
        shows="three layers over 3,000 words and 200 positions against their leading terms, to s eta = 48 and 82",
        function=paper_scale_run,
        points=[
            {"seed": 0, "n_sequences": 512, "learning_rate": 2.0, "steps": 24, "marks": [4, 8, 12]},
            {
                "seed": 0,
                "n_sequences": 256,
                "learning_rate": 2.0,
                "steps": 20,
                "marks": [4, 8, 28],
                "later": [[1.0, 30], [0.5, 24]],
            },
        ],
        seconds=1500,
    ),
    Sweep(
        name="3a-tinystories",
        shows="three layers over 3,000 words and 200 positions of real TinyStories, to s eta = 16 (Table 1)",
        function=paper_scale_run,
        points=[
            {
                "seed": 0,
                "n_sequences": 256,
                "learning_rate": 2.0,
                "steps": 8,
                "marks": [4],
                "corpus": TINYSTORIES_SAMPLE,
            }
        ],
        seconds=250,
        needs=TINYSTORIES_SAMPLE,
    ),
]
