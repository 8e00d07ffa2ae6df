"""Paper A's training run at its own sizes, in few large steps (Section 5.1, Table 1 and Figure 4).

The paper takes 3,200 mini-batch steps of eta = 0.005 (Table 1) or 0.05 (Figure 4). What counts is training time s eta:
s eta = 16 is all of Table 1, s eta = 48 the first 30 epochs of Figure 4, where every matrix still agrees to 0.9. Full
batches and steps of size 1 or 2 come as far in a few dozen steps of a minute each.
"""

from pathlib import Path
from typing import Any

import torch

from assoc.leading_terms.ablation import frequency_terms
from assoc.leading_terms.basis import basis_functions
from assoc.leading_terms.conditions import all_leading_terms, clock, lowest_cosines
from assoc.leading_terms.limits import some_stories
from assoc.leading_terms.model import AttentionOnlyTransformer
from assoc.leading_terms.theory import KINDS, step_coefficients
from assoc.leading_terms.training import cosine, train
from assoc.sweeps import Sweep

CHECKPOINTS = Path("_build/reproduce/3a-paper-scale")  # a run that was stopped goes on from its last step


def paper_scale_run(
    seed: int,
    *,
    n_sequences: int,
    learning_rate: float,
    steps: int,
    marks: list[int],
    vocab_size: int = 3000,
    length: int = 200,
    n_layers: int = 3,
    checkpoints: Path = CHECKPOINTS,
) -> dict[str, Any]:
    """Full-batch descent from zero on a random choice of stories, against the leading terms of the same sequences.

    Args:
        seed: of the choice. n_sequences: N. learning_rate: eta. steps: s.
        marks: steps, ascending, at which agreement beyond word frequencies is looked at; each costs one gradient more.
        vocab_size, length, n_layers: V, T, L; the paper's by default.
        checkpoints: folder of the run's state, which is removed at the end.

    Returns:
        times: s eta of each record. loss: in nats. cosines: for each record, kind of weight -> its layers' cosines.
        coefficients: kind -> the last coefficients over the predicted ones, layer by layer.
        beyond: for each mark, its s eta and kind -> the lowest cosine beyond word frequencies.
        frequencies: kind -> cosine of what word frequencies alone give with the leading term.
        clock: theta per unit of s eta. coverage: share of tokens that are in the vocabulary.
    """
    chosen = some_stories(vocab_size, length, n_sequences, seed)
    inputs, targets, V = chosen.inputs, chosen.targets, chosen.vocab_size
    basis = basis_functions(inputs, targets, V)
    terms, by_frequency = all_leading_terms(basis), frequency_terms(basis, inputs, targets)
    model = AttentionOnlyTransformer(V, length, n_layers, dtype=torch.float32)
    path = checkpoints / f"{seed}-{n_sequences}-{learning_rate:g}-{V}-{length}-{n_layers}.pt"
    beyond = []
    for mark in [*(mark for mark in marks if mark < steps), steps]:
        history = train(model, inputs, targets, learning_rate, mark, basis=basis, checkpoint=path)
        beyond.append({"time": mark * learning_rate, **lowest_cosines(model, terms, by_frequency)})
    predicted = step_coefficients(steps, learning_rate)
    path.unlink(missing_ok=True)
    return {
        "times": history.training_time,
        "loss": history.loss,
        "cosines": [
            {kind: [a.cosine for a in record if a.kind == kind] for kind in KINDS} for record in history.agreements
        ],
        "coefficients": {
            kind: [a.coefficient / getattr(predicted, kind) for a in history.agreements[-1] if a.kind == kind]
            for kind in KINDS
        },
        "beyond": beyond,
        "frequencies": {kind: cosine(by_frequency[kind], terms[kind]) for kind in KINDS},
        "clock": clock(basis, n_layers),
        "coverage": chosen.statistics.vocabulary_coverage,
    }


PAPER_SCALE = [
    Sweep(
        name="3a-paper-scale",
        shows="three layers over 3,000 words and 200 positions against their leading terms, to s eta = 48",
        function=paper_scale_run,
        points=[{"seed": 0, "n_sequences": 512, "learning_rate": 2.0, "steps": 24, "marks": [4, 8, 12]}],
        seconds=900,
    )
]
