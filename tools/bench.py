"""Measure the library beside the literal formulas and write book/results/benchmark.json: `make bench`, 3 minutes.

    python tools/bench.py [--output FILE] [--clock wall | cpu]

Each measurement is a process of its own, so that the peak of its memory is its own too. The literal form computes the
same by dense one-hot matrices, or by a loop over sequences; its time grows in proportion to the number of sequences, so
it is measured on a few of them. The floor is the time that the operations of our form would take, as they are counted,
at the rates that this machine reached in the same run. Each case also says how far both forms agree, on those few.
"""

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from assoc import __version__
from assoc.corpus import load_corpus
from assoc.files import check_writable, write_json
from assoc.induction import BigramTask
from assoc.leading_terms import AttentionOnlyTransformer, basis_functions, loss_and_gradients
from assoc.leading_terms.basis import distinct_tokens
from assoc.leading_terms.products import (
    Size,
    best_form,
    loss_and_gradients_plain,
    loss_and_gradients_through_products,
)
from assoc.llm.covariance import covariance_cosine, prepare_term
from assoc.progress import progress
from assoc.seeds import seeded

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "book" / "results" / "benchmark.json"

N, T, V, L = 2048, 200, 3000, 3  # the paper's batch, length, vocabulary and depth
FEW = 8  # sequences of the literal forms
TOKENS, WIDTH, LAYERS = 3000, 512, 24  # of the covariance comparison; Pythia-1.4B has 24 layers
BATCH, LENGTH, WORDS = 512, 256, 65  # of the bigram task, the sizes of paper B
LITERAL_BATCH = 32
NAMES = ("bigram", "interchangeability", "context", "value", "attention", "position")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
now = CLOCKS["wall"]


# --- what is measured: functions of the tokens that return what to time


def model_for(vocab_size: int, length: int) -> AttentionOnlyTransformer:
    """A float32 model of L layers with random weights, too small to matter."""
    model = AttentionOnlyTransformer(vocab_size, length, L, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=1e-3, generator=seeded(0))
    return model


def literal_basis(inputs: Tensor, targets: Tensor, vocab_size: int) -> tuple[dict[str, Tensor], float, float]:
    """Sequence by sequence with one-hot matrices, float64; also the seconds for sequences and for V x V products."""
    length = inputs.shape[1]
    A0 = torch.ones(length, length, dtype=torch.float64).tril() / torch.arange(1, length + 1)[:, None]
    B, Phi, Q = (torch.zeros(vocab_size, vocab_size, dtype=torch.float64) for _ in range(3))
    Delta = torch.zeros(length, dtype=torch.float64)
    marks = [now()]
    for x, y in zip(inputs, targets, strict=True):
        X = functional.one_hot(x, vocab_size).double()
        R = functional.one_hot(y, vocab_size).double() - 1 / vocab_size
        B += X.T @ R / inputs.numel()
        Phi += R.T @ (A0 @ X) / inputs.numel()
    marks.append(now())
    S = B.T @ B
    value, association = Phi.T @ B.T, S @ Phi
    marks.append(now())
    for x, y in zip(inputs, targets, strict=True):
        X = functional.one_hot(x, vocab_size).double()
        R = functional.one_hot(y, vocab_size).double() - 1 / vocab_size
        g = R @ association @ X.T
        Qi = A0 * (g - (A0 * g).sum(dim=1, keepdim=True))
        Q += X.T @ Qi @ X / inputs.numel()
        Delta += torch.stack([Qi.diagonal(-k).sum() for k in range(length)]) / inputs.numel()
    marks.append(now())
    found = dict(zip(NAMES, (B, S, Phi, value, Q, Delta), strict=True))
    return found, marks[1] - marks[0] + marks[3] - marks[2], marks[2] - marks[1]


def covariance_matrices() -> tuple[Tensor, Tensor]:
    generator = seeded(0)
    return (
        torch.randn(TOKENS, WIDTH, generator=generator),
        torch.randn(TOKENS, TOKENS, generator=generator, dtype=torch.float64),
    )


def literal_covariance(embeddings: Tensor, term: Tensor) -> float:
    """Both covariances over tokens as n x n matrices."""

    def covariance(matrix: Tensor) -> Tensor:
        C = matrix.double() - matrix.double().mean(dim=1, keepdim=True)
        return C @ C.T / (matrix.shape[1] - 1)

    a, b = covariance(embeddings), covariance(functional.normalize(term, dim=1))
    return float((a * b).sum() / (a.norm() * b.norm()))


def covariances_of_layers(embeddings: Tensor, term: Tensor) -> list[float]:
    """The leading term is prepared once for all layers (here the same embeddings again and again)."""
    prepared = prepare_term(term)
    return [covariance_cosine(embeddings, prepared) for _ in range(LAYERS)]


def bigram_task() -> BigramTask:
    generator = seeded(0)
    unigram, bigram = torch.rand(WORDS, generator=generator), torch.rand(WORDS, WORDS, generator=generator)
    return BigramTask(unigram / unigram.sum(), bigram / bigram.sum(dim=1, keepdim=True), length=LENGTH, n_triggers=5)


def literal_sample(task: BigramTask, batch_size: int) -> np.ndarray:
    """One sequence after the other, one token after the other, each drawn from its distribution."""
    random = np.random.default_rng(0)
    unigram, bigram = task.unigram.numpy(), task.bigram.numpy()
    sequences = np.empty((batch_size, task.length + 1), dtype=np.int64)
    for sequence in sequences:
        outputs = {int(trigger): int(random.integers(WORDS)) for trigger in task.fixed_triggers}
        sequence[0] = random.choice(WORDS, p=unigram)
        for t in range(task.length):
            token = int(sequence[t])
            sequence[t + 1] = outputs[token] if token in outputs else random.choice(WORDS, p=bigram[token])
    return sequences


# --- how it is measured


def median_seconds(function: Callable[[], Any], repeats: int, warm_up: bool = True) -> float:
    """Median time of some calls, after one that is not counted."""
    if warm_up:
        function()
    times = []
    for _ in range(repeats):
        start = now()
        function()
        times.append(now() - start)
    return statistics.median(times)


def step_seconds(inputs: Tensor, targets: Tensor, vocab_size: int, repeats: int = 1) -> float:
    """A training step's loss and gradients, by the form that the library chooses."""
    model = model_for(vocab_size, inputs.shape[1])
    loss_and_gradients(model, inputs[:2], targets[:2])
    return median_seconds(lambda: loss_and_gradients(model, inputs, targets), repeats, warm_up=repeats > 1)


def measure(name: str, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """One measurement; runs in a process of its own."""
    few = inputs[:FEW], targets[:FEW]
    if name == "rates":
        return rates()
    if name == "growth":
        return growth(inputs, targets)
    if name.startswith("error of "):
        return {"error": error_of(name.removeprefix("error of "), inputs, targets)}
    if name == "basis":
        seconds = median_seconds(lambda: basis_functions(inputs, targets, V), 3)
    elif name == "literal basis":
        _, by_sequence, once = literal_basis(*few, V)
        seconds = once + by_sequence * N / FEW
    elif name.startswith("step "):
        n = int(name.split()[1])
        seconds = step_seconds(inputs[:n], targets[:n], V)
    elif name == "literal step":
        model = model_for(V, T)
        loss_and_gradients_plain(model, few[0][:1], few[1][:1])
        seconds = median_seconds(lambda: loss_and_gradients_plain(model, *few), 1, warm_up=False) / FEW
    elif name == "covariance":
        matrices = covariance_matrices()
        seconds = median_seconds(lambda: covariances_of_layers(*matrices), 1, warm_up=False)
    elif name == "literal covariance":
        matrices = covariance_matrices()
        seconds = median_seconds(lambda: literal_covariance(*matrices), 2)
    elif name == "sampling":
        task, generator = bigram_task(), seeded(1)
        seconds = median_seconds(lambda: task.sample(BATCH, generator), 5)
    else:
        task = bigram_task()
        seconds = median_seconds(lambda: literal_sample(task, LITERAL_BATCH), 1, warm_up=False) * BATCH / LITERAL_BATCH
    return {"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def relative_error(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """The largest Frobenius norm of a difference over that of what is expected, in float64."""
    pairs = zip(found, expected, strict=True)
    return max(float((ours.double() - theirs.double()).norm() / theirs.double().norm()) for ours, theirs in pairs)


def error_of(name: str, inputs: Tensor, targets: Tensor) -> float:
    """How far our form is from the literal one on a few sequences.

    A training step is compared in float32, by the form of products chosen for many sequences, with the plain form in
    float64.
    """
    few = inputs[:FEW], targets[:FEW]
    if name == "basis":
        found, _, _ = literal_basis(*few, V)
        ours = dict(basis_functions(*few, V).items())
        return relative_error((ours[key] for key in NAMES), (found[key] for key in NAMES))
    if name == "step":
        model = model_for(V, T)
        form = best_form(model, inputs[:256]) or (False,) * L
        loss_and_gradients_through_products(model, *few, form)
        gradients = [weight.grad for weight in model.parameters()]
        model.zero_grad(set_to_none=True)
        loss_and_gradients_plain(model.double(), *few)
        return relative_error(gradients, [weight.grad for weight in model.parameters()])
    matrices = covariance_matrices()
    return abs(covariance_cosine(*matrices) / literal_covariance(*matrices) - 1)


def rates() -> dict[str, float]:
    """What this machine does in a second: multiply-adds in large products, entries added or looked up, draws."""
    found = {}
    for bits, dtype in ((32, torch.float32), (64, torch.float64)):
        a = torch.rand(2000, 2000, dtype=dtype)
        found[f"multiply_adds_{bits}"] = 2000**3 / median_seconds(lambda a=a: a @ a, 3)
    count = 4_000_000
    table, values = torch.zeros(V * V, dtype=torch.float64), torch.rand(count, dtype=torch.float64)
    index = torch.randint(V * V, (count,), generator=seeded(0))
    found["scatter_adds"] = count / median_seconds(lambda: table.scatter_add_(0, index, values), 3)
    found["look_ups"] = count / median_seconds(lambda: table[index], 3)
    found["additions"] = V * V / median_seconds(lambda: table.add_(1.0), 3)
    small, index = table[:4000], index % 4000
    found["look_ups_in_cache"] = count / median_seconds(lambda: small[index], 3)
    found["draws"] = count / median_seconds(lambda: torch.randint(WORDS, (count,), generator=seeded(0)), 3)
    return found


# --- what it should take


PASSES = 14  # over V x V numbers: sums set to zero, counts made frequencies, means taken away, a transpose


def basis_floor(inputs: Tensor, targets: Tensor, vocab_size: int, rate: dict[str, float]) -> float:
    """Blocks over pairs of distinct words: multiplied, added to V x V matrices; scores looked up; products with B.

    The three products with B add a row of V numbers for each pair of words that occurs.
    """
    U, P = ((distinct_tokens(tokens)[1].amax(dim=1) + 1).double() for tokens in (inputs, targets))
    length = inputs.shape[1]
    n_pairs = len((inputs * vocab_size + targets).unique())
    rows = 3 * n_pairs * vocab_size + PASSES * vocab_size**2
    return float(
        rows / rate["additions"]
        + (U * P + U * U).sum() / rate["scatter_adds"]
        + length * U.sum() / rate["look_ups"]
        + length * (U * P + U * U).sum() / rate["multiply_adds_64"]
    )


def step_floor(inputs: Tensor, vocab_size: int, rate: dict[str, float]) -> float:
    """Operations of the form that the library chooses, three times: forward, and back to either factor of products."""
    U = round(float((distinct_tokens(inputs)[1].amax(dim=1) + 1).double().mean()))
    size = Size(*inputs.shape, vocab_size, L, U)
    form = best_form(AttentionOnlyTransformer(vocab_size, inputs.shape[1], L, dtype=torch.float32), inputs)
    operations = size.plain_operations() if form is None else size.product_operations(form)
    return 3 * operations / rate["multiply_adds_32"]


def covariance_floor(rate: dict[str, float]) -> float:
    """|D'D| once, |C'D| and |C'C| for each layer, of n x n and n x d matrices."""
    return TOKENS * (TOKENS**2 + LAYERS * (TOKENS * WIDTH + WIDTH**2)) / rate["multiply_adds_64"]


def sampling_floor(rate: dict[str, float]) -> float:
    """Two draws a token, and three tables looked up: the share of a column, its alias, the trigger's output."""
    return BATCH * LENGTH * (2 / rate["draws"] + 3 / rate["look_ups_in_cache"])


# --- growth


def growth_points(inputs: Tensor, targets: Tensor) -> Iterator[tuple[str, str, int, Tensor, Tensor, int]]:
    """What grows, along which size, its value, and the tokens; words beyond a smaller vocabulary become its last."""
    bases = {
        "basis functions": ((1024, T, V), {"N": (256, 512, 1024, 2048), "T": (50, 100, 200), "V": (750, 1500, 3000)}),
        "training step": ((128, 64, 500), {"N": (64, 128, 256, 512), "T": (32, 64, 128), "V": (250, 500, 1000)}),
    }
    for what, (base, axes) in bases.items():
        for axis, values in axes.items():
            for value in values:
                n, length, vocab_size = (
                    value if name == axis else size for name, size in zip("NTV", base, strict=True)
                )
                x, y = (tokens[:n, :length].clamp(max=vocab_size - 1).contiguous() for tokens in (inputs, targets))
                yield what, axis, value, x, y, vocab_size


def growth(inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """Seconds of either form of work along each size."""
    found: dict[str, Any] = {}
    for what, axis, value, x, y, vocab_size in growth_points(inputs, targets):
        if what == "basis functions":
            seconds = median_seconds(lambda x=x, y=y, v=vocab_size: basis_functions(x, y, v), 3)
        else:
            seconds = step_seconds(x, y, vocab_size, repeats=3)
        found.setdefault(what, {}).setdefault(axis, []).append({"value": value, "seconds": seconds})
    return found


# --- all of it


@dataclass(frozen=True)
class Case:
    """A line of the table: our form and the literal one, by the names that `measure` knows."""

    what: str
    ours: str
    literal: str
    times: float = 1  # what the literal time is multiplied by
    measured_on: str = ""  # how much of the work the literal form did
    error: str | None = None  # what to compare, as `error_of` names it; None where both forms draw at random


CASES = (
    Case(f"basis functions, N = {N:,}, T = {T}, V = {V:,}", "basis", "literal basis", 1, f"{FEW} sequences", "basis"),
    Case(
        f"training step, 256 sequences, T = {T}, V = {V:,}, L = {L}",
        "step 256",
        "literal step",
        256,
        f"{FEW} sequences",
        "step",
    ),
    Case(f"training step, {N:,} sequences, the same", f"step {N}", "literal step", N, f"{FEW} sequences", "step"),
    Case(
        f"covariance comparison of {LAYERS} layers, n = {TOKENS:,}, d = {WIDTH}",
        "covariance",
        "literal covariance",
        LAYERS,
        "one layer",
        "covariance",
    ),
    Case(
        f"bigram task, {BATCH} sequences of {LENGTH}", "sampling", "literal sampling", 1, f"{LITERAL_BATCH} sequences"
    ),
)


def in_a_process(name: str, tokens: Path, clock: str) -> dict[str, Any]:
    """`measure(name)` in a fresh process."""
    command = [sys.executable, __file__, "--measure", name, "--tokens", str(tokens), "--clock", clock]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"the measurement {name!r} failed:\n{run.stderr}")
    return json.loads(run.stdout)


def measurements() -> list[str]:
    """What the cases need, each once."""
    errors = [f"error of {case.error}" for case in CASES if case.error]
    return list(dict.fromkeys([*(name for case in CASES for name in (case.ours, case.literal)), *errors]))


def floors(inputs: Tensor, targets: Tensor, rate: dict[str, float]) -> dict[str, float]:
    """Seconds that the operations of each measurement of ours would take."""
    return {
        "basis": basis_floor(inputs, targets, V, rate),
        "step 256": step_floor(inputs[:256], V, rate),
        f"step {N}": step_floor(inputs, V, rate),
        "covariance": covariance_floor(rate),
        "sampling": sampling_floor(rate),
    }


def bench(clock: str) -> dict[str, Any]:
    """All measurements, as the file holds them."""
    corpus = load_corpus("stories", vocab_size=V, length=T, unknown="map")
    chosen = torch.randperm(len(corpus), generator=seeded(0))[:N]
    inputs, targets = corpus.inputs[chosen], corpus.targets[chosen]
    names = ["rates", *measurements(), "growth"]
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.pt"
        torch.save((inputs, targets), tokens)
        found = {name: in_a_process(name, tokens, clock) for name in progress(names, "benchmark")}
    rate = found["rates"]
    floor = floors(inputs, targets, rate)
    cases = []
    for case in CASES:
        ours, literal = found[case.ours], found[case.literal]
        cases.append(
            {
                "what": case.what,
                "seconds": ours["seconds"],
                "peak_bytes": ours["peak_bytes"],
                "literal_seconds": literal["seconds"] * case.times,
                "literal_peak_bytes": literal["peak_bytes"],
                "literal_measured_on": case.measured_on,
                "floor_seconds": floor[case.ours],
                "error": found[f"error of {case.error}"]["error"] if case.error else None,
            }
        )
    for what, axis, value, x, y, vocab_size in growth_points(inputs, targets):
        counted = basis_floor(x, y, vocab_size, rate) if what == "basis functions" else step_floor(x, vocab_size, rate)
        next(point for point in found["growth"][what][axis] if point["value"] == value)["floor_seconds"] = counted
    return {"rates": rate, "cases": cases, "growth": found["growth"]}


def table(content: dict[str, Any]) -> str:
    """The cases as lines of text."""
    header = f"{'':58} {'ours':>9} {'literal':>10} {'ratio':>7} {'floor':>9} {'MB':>6} {'literal':>7}"
    lines = [
        f"{case['what']:58} {case['seconds']:>7.3f} s {case['literal_seconds']:>8.1f} s "
        f"{case['literal_seconds'] / case['seconds']:>6.1f}x {case['floor_seconds']:>7.3f} s "
        f"{case['peak_bytes'] / 1e6:>6.0f} {case['literal_peak_bytes'] / 1e6:>7.0f}"
        for case in content["cases"]
    ]
    return "\n".join([header, *lines])


def rounded(value: Any) -> Any:
    """Times and rates to three digits: more are not repeatable."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=str(OUTPUT), metavar="FILE", help="the result file")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a busy machine")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        global now
        now = CLOCKS[options.clock]
        print(json.dumps(measure(options.measure, *torch.load(options.tokens, weights_only=True))))
        return 0
    check_writable(options.output)
    start = time.perf_counter()
    content = bench(options.clock)
    made_by = {
        "command": shlex.join(["python", "tools/bench.py", *(arguments or sys.argv[1:])]),
        "version": __version__,
        "torch": torch.__version__,
        "clock": options.clock,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - start),
    }
    print(table(content))
    print(f"{made_by['seconds']} s; written to {write_json(options.output, made_by | rounded(content))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
