"""What comes after the leading terms: the next orders in eta, and all orders of feedback from the corpus alone.

The paper stops at the leading term of each weight and bounds the rest (Theorems D.7 and D.10). The terms here are not
in the paper; they follow from its gradients (Lemma D.8) by expanding the softmax and the residual stream further.

Notation beyond `basis`: D = (1/NT) sum_i X_i'X_i, diagonal, the frequencies of the words;
Psi = (1/NT) sum_i X_i'A0'X_i; Phi_k = (1/NT) sum_i (Y_i - U)' A0^k X_i, so that Phi_0 = B' and Phi_1 = Phi;
Z = B o B less the mean of each row, where o multiplies entry by entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor
from torch.nn import functional

from assoc.errors import InputError, learning_rate_above_zero, whole_number
from assoc.leading_terms.basis import attention_and_position, check_tokens
from assoc.leading_terms.theory import step_coefficients

CHUNK_ELEMENTS = 4_000_000  # numbers in the largest temporary array of a chunk of sequences


@dataclass(frozen=True)
class Moments:
    """The statistics that the next orders are made of, all float64.

    Attributes:
        contexts: Phi_0 = B', Phi_1 = Phi, .., Phi_n, each (V, V), row = word predicted. Phi_k sees the prefix through k
            averages.
        frequencies: the diagonal of D, (V,).
        prefixes: Psi, (V, V): how often row's word stands in the prefix of column's word, as a share of the prefix.
    """

    contexts: list[Tensor]
    frequencies: Tensor
    prefixes: Tensor

    @property
    def bigram(self) -> Tensor:
        """B."""
        return self.contexts[0].T

    def check(self, n_averages: int) -> None:
        """Raise InputError unless the contexts reach Phi_n for n = n_averages."""
        if len(self.contexts) <= n_averages:
            raise InputError(f"these moments end at Phi_{len(self.contexts) - 1}: compute them up to {n_averages}")


def moments(inputs: Tensor, targets: Tensor, vocab_size: int, n_averages: int) -> Moments:
    """Phi_0 .. Phi_n for n = `n_averages` (one for each layer is enough), D and Psi of a corpus.

    Args:
        inputs, targets: int64 (N, T). Cost: N T^2 V for each average.
    """
    check_tokens(inputs, targets, vocab_size)
    n = whole_number("n_averages", n_averages, minimum=1)
    length = inputs.shape[1]
    contexts = [torch.zeros(vocab_size, vocab_size, dtype=torch.float64) for _ in range(n + 1)]
    prefixes = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    average = torch.ones(length, length, dtype=torch.float64).tril() / torch.arange(1, length + 1)[:, None]
    size = max(1, CHUNK_ELEMENTS // (length * vocab_size))
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        seen = functional.one_hot(x, vocab_size).double()
        for k, phi in enumerate(contexts):
            phi.index_add_(0, y.flatten(), seen.flatten(0, 1))
            if k == 1:
                prefixes.index_add_(0, x.flatten(), seen.flatten(0, 1))
            if k < n:
                seen = average @ seen
    scale = 1 / inputs.numel()
    # The part of U takes each column's mean away, because the rows of Y - U sum to 0.
    contexts = [(phi * scale).sub_(phi.mean(dim=0) * scale) for phi in contexts]
    return Moments(contexts, inputs.flatten().bincount(minlength=vocab_size).double() * scale, prefixes.T * scale)


def _squares(bigram: Tensor) -> Tensor:
    """Z: the second order of the softmax at uniform, softmax(f) = U + f/V + (f o f - mean)/(2V), of the rows of B."""
    return bigram.square() - bigram.square().mean(dim=1, keepdim=True)


def output_corrections(statistics: Moments, n_layers: int, steps: int, learning_rate: float) -> dict[str, Tensor]:
    """W_O minus its leading term s eta B, complete up to eta^3; (V, V) each, to be added up.

    "damping":    -C(s,2) (eta^2/V) D B: the only term of order eta^2; what is learned needs not be learned again.
    "feedback":   L C(s,3) eta^3 B Phi Phi': the values of L layers feed the output matrix.
    "saturation": C(s,3) (eta^3/V^2) D^2 B - (2 C(s,3) + C(s,2)) (eta^3/(2V)) D Z: the rest of order eta^3.
    """
    whole_number("n_layers", n_layers, minimum=1)
    statistics.check(1)
    step_coefficients(steps, learning_rate)  # checks them
    B, Phi, D = statistics.bigram, statistics.contexts[1], statistics.frequencies[:, None]
    s, eta, V = int(steps), float(learning_rate), len(B)
    squares = 2 * comb(s, 3) + comb(s, 2)  # the sum of j^2 for j < s
    return {
        "damping": -comb(s, 2) * eta**2 / V * D * B,
        "feedback": n_layers * comb(s, 3) * eta**3 * B @ Phi @ Phi.T,
        "saturation": eta**3 * (comb(s, 3) / V**2 * D**2 * B - squares / (2 * V) * D * _squares(B)),
    }


def value_corrections(
    statistics: Moments, n_layers: int, layer: int, steps: int, learning_rate: float
) -> dict[str, Tensor]:
    """V_l minus its leading term C(s,2) eta^2 Phi'B', complete up to eta^4; (V, V) each, to be added up.

    With c = 3 C(s,4) + 2 C(s,3):
    "damping":    -(eta^3/V) ((2 C(s,3) + C(s,2)) Psi B B' + C(s,3) Phi'B'D): the only terms of order eta^3.
    "feedback":   L C(s,4) eta^4 Phi'Phi Phi'B': the output matrix that values have fed feeds the values.
    "layers":     c eta^4 ((l-1) B Phi Phi_2'B' + (L-l) Phi_2'B'B Phi): through the values below and above.
    "saturation": the rest of order eta^4, every part with 1/V or 1/V^2.

    Args:
        layer: l, from 1 to L.
    """
    L, l = whole_number("n_layers", n_layers, minimum=1), whole_number("layer", layer, minimum=1)
    if l > L:
        raise InputError(f"layer is {l}: there are {L}")
    statistics.check(2 if L > 1 else 1)
    c = step_coefficients(steps, 1.0).attention
    B, Phi, D = statistics.bigram, statistics.contexts[1], statistics.frequencies
    s, eta, V, Psi, Z = int(steps), learning_rate_above_zero(learning_rate), len(B), statistics.prefixes, _squares(B)
    squares, cubes = float(2 * comb(s, 3) + comb(s, 2)), float(comb(s, 2) ** 2)  # the sums of j^2 and j^3 for j < s
    value, gram = Phi.T @ B.T, B @ B.T
    layers = torch.zeros_like(B)
    if L > 1:
        above = statistics.contexts[2].T @ B.T
        layers = c * eta**4 * ((l - 1) * value.T @ above + (L - l) * above @ value.T)
    saturation = c / V**2 * (Psi @ (D[:, None] * gram) + Psi @ gram * D) + comb(s, 4) / V**2 * value * D**2
    saturation -= cubes / (2 * V) * Psi @ Z @ B.T
    saturation -= (2 * comb(s, 4) + comb(s, 3)) / (2 * V) * (Phi.T @ Z.T) * D
    return {
        "damping": -(eta**3) / V * (squares * Psi @ gram + comb(s, 3) * value * D),
        "feedback": L * comb(s, 4) * eta**4 * Phi.T @ Phi @ value,
        "layers": layers,
        "saturation": eta**4 * saturation,
    }


def feedback_descent(
    statistics: Moments, n_layers: int, learning_rate: float, steps: int, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """All orders of the feedback: (W_O, [V_1, .., V_L]) after 1, 2, .. s steps, from the corpus statistics alone.

    It is descent of a model whose prediction stays uniform, R = Y - U, and whose attention stays A0: the model without
    saturation and without attention to anything in particular. Its residual stream is h_L = sum_k A0^k X H_k with
    H_0 = I, where a layer makes H_k + H_{k-1} V_l of H_k, and it climbs the gain
    (1/NT) sum_i <Y_i - U, h_L W_O> = sum_k <Phi_k', H_k W_O>. No sequence is looked at: a step costs L^2 V^3.
    """
    L, eta = whole_number("n_layers", n_layers, minimum=1), learning_rate_above_zero(learning_rate)
    statistics.check(L)
    targets = [phi.T.to(dtype) for phi in statistics.contexts[: L + 1]]
    weights = [torch.zeros_like(targets[0]).requires_grad_() for _ in range(L + 1)]
    for _ in range(whole_number("steps", steps, minimum=1)):
        output, *values = weights
        paths: list[Tensor | None] = []  # H_1 .. H_l; H_0 = I is left out
        for value in values:
            longer = [value, *(H @ value for H in paths)]
            paths = [H + K for H, K in zip(paths, longer, strict=False)] + longer[len(paths) :]
        # <Phi_k', H_k W_O> = <H_k, Phi_k' W_O'>
        gain = (targets[0] * output).sum()
        for H, target in zip(paths, targets[1:], strict=True):
            gain = gain + (H * (target @ output.T)).sum()
        shares = torch.autograd.grad(gain, weights)
        with torch.no_grad():
            weights = [(w + eta * share).requires_grad_() for w, share in zip(weights, shares, strict=True)]
        yield weights[0].detach(), [value.detach() for value in weights[1:]]


def summed_feedback(statistics: Moments, n_layers: int, steps: int, learning_rate: float) -> tuple[Tensor, Tensor]:
    """`feedback_descent` in closed form: W_O and V (the same in every layer), exact for one layer.

    With a = eta sqrt(L Phi Phi'):

        W_O = eta B ((1+a)^s - (1-a)^s)/(2a)            -> B sinh(tau a/eta)/(a/eta),
        V   = eta^2 Phi' (((1+a)^s + (1-a)^s)/2 - 1)/a^2 B'  -> Phi' (cosh(tau a/eta) - 1)/(a/eta)^2 B'

    for many small steps, tau = s eta. Its first terms are s eta B + L C(s,3) eta^3 B Phi Phi' and
    C(s,2) eta^2 Phi'B' + L C(s,4) eta^4 Phi'Phi Phi'B'. For L > 1 it leaves out products of the values of two layers.
    """
    whole_number("n_layers", n_layers, minimum=1)
    statistics.check(1)
    step_coefficients(steps, learning_rate)
    s, eta, B = int(steps), float(learning_rate), statistics.bigram
    left, sigma, right = torch.linalg.svd(statistics.contexts[1])
    a2 = n_layers * (eta * sigma) ** 2
    # Sums of C(s,k) a^(k-1) and C(s,k+1) a^(k-1) over odd k: differences of powers would cancel for small a.
    odd, even = torch.zeros_like(a2), torch.zeros_like(a2)
    odd_term, even_term = torch.full_like(a2, s), torch.full_like(a2, comb(s, 2))
    for k in range(1, s + 1, 2):
        odd, even = odd + odd_term, even + even_term
        odd_term = odd_term * a2 * ((s - k) * (s - k - 1) / ((k + 1) * (k + 2)))
        even_term = even_term * a2 * ((s - k - 1) * (s - k - 2) / ((k + 2) * (k + 3)))
    BU = B @ left
    return eta * (BU * odd) @ left.T, eta**2 * (right.T * (sigma * even)) @ BU.T


def feedback_attention(
    inputs: Tensor, targets: Tensor, statistics: Moments, n_layers: int, learning_rate: float, steps: int
) -> list[tuple[Tensor, Tensor]]:
    """W_l and P_l of every layer that the weights of `feedback_descent` write while h_{l-1} is near X, G_l near G_L.

    What arrives at the map of layer l at step j is then (Y - U) W_O'V_l' X', so the formulas of Q and Delta with
    eta sum_j (V_l W_O)' in the place of S Phi give the weights. The leading terms are the case W_O = j eta B,
    V_l = C(j,2) eta^2 Phi'B'. Exact to first order in W_l for one layer; for more it leaves out what the layers below
    and above add to h and G.
    """
    n_layers, steps = whole_number("n_layers", n_layers, minimum=1), whole_number("steps", steps, minimum=1)
    statistics.check(n_layers)
    V = len(statistics.bigram)
    products = [torch.zeros(V, V, dtype=torch.float64) for _ in range(n_layers)]
    for _, (output, values) in zip(
        range(steps - 1), feedback_descent(statistics, n_layers, learning_rate, steps), strict=False
    ):
        for product, value in zip(products, values, strict=True):
            product += learning_rate * (value @ output).T
    return [attention_and_position(inputs, targets, product) for product in products]
