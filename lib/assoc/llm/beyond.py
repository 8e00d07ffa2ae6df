"""What the covariance comparison of paper A (Section 5.2) sees: what all tokens share, and what is left beyond it.

A covariance is C C' of *token features* C, one row a token: a residual minus its row's mean, or scores in the form of
`score_features`. Three levels tell what a cosine with the covariance D D' of a statistic means:

- the cosine of C C' with 1 1', what all tokens share (`shared_cosine`);
- the cosine to expect if the statistic knew nothing of which token is which (`chance_cosine`), or if the features
  were random numbers (`random_cosine`);
- the cosine beyond a part that is taken away on both sides (`Yardstick`): the mean over all tokens, or the mean over
  tokens that are about equally frequent.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from assoc.checks import check_numbers, check_whole
from assoc.errors import InputError, whole_number
from assoc.llm.covariance import centre_rows, prepare_term


def residual_features(residuals: Tensor) -> Tensor:
    """C with C C' = cov(residuals) up to a factor: residuals (n, d) minus each row's mean, (n, d) float64.

    Raises InputError for anything but a table of finite numbers.
    """
    check_numbers("residuals", residuals, (None, None))
    return centre_rows(residuals)


def score_features(embeddings: Tensor, query_key: Tensor) -> Tensor:
    """C (n, d) with C C' = cov(E A E') up to a factor, for E (n, d) and A = query_key (d, d), float64.

    The scores minus their rows' means are E A Ec', with Ec = E minus its mean over tokens. With Ec = Z R, where the
    columns of Z are orthonormal, E A R' has the same covariance.

    Raises InputError for shapes that do not fit, or numbers that are not finite.
    """
    check_numbers("embeddings", embeddings, (None, None))
    check_numbers("query_key", query_key, (embeddings.shape[1], embeddings.shape[1]))
    E, A = embeddings.detach().double(), query_key.detach().double()
    return E @ A @ torch.linalg.qr(E - E.mean(dim=0), mode="r").R.T


def minus_group_means(features: Tensor, groups: Tensor) -> Tensor:
    """Features (n, k) minus the mean over the tokens of the same group; groups int64 (n,), counted from 0.

    Raises InputError for shapes that do not fit, or numbers that are not finite.
    """
    check_numbers("features", features, (None, None))
    check_whole("groups", groups, (len(features),))
    sums = features.new_zeros(int(groups.max()) + 1, features.shape[1]).index_add_(0, groups, features)
    return features - (sums / groups.bincount()[:, None].clamp_min(1))[groups]


def frequency_groups(counts: Tensor, size: int = 50) -> Tensor:
    """Groups of `size` tokens of about equal frequency, most frequent first (the last may be smaller), int64 (n,).

    Args:
        counts: how often each token occurs, (n,).

    Raises:
        InputError: no counts, or a size that is not at least 2.
    """
    size = whole_number("size", size, minimum=2)
    if counts.ndim != 1 or not len(counts):
        raise InputError("counts must be one number a token, (n,)")
    rank = torch.empty(len(counts), dtype=torch.int64)
    rank[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts))
    return rank // size


@dataclass(frozen=True, eq=False)
class Yardstick:
    """A statistic of tokens by tokens, prepared to be compared with the covariances of features.

    Attributes:
        features: D, (n, n) float64, rows scaled to norm 1 and minus their means, minus what is taken away.
        norm: |D D'|. groups: whose means are taken away on both sides, int64 (n,); None: nothing.
    """

    features: Tensor
    norm: float
    groups: Tensor | None = None

    def cosine(self, features: Tensor) -> float:
        """|C'D|^2/(|C C'| |D D'|), 0 to 1, for C (n, k) minus the means of its groups; nan if C is zero.

        Raises InputError for another number of rows, or features that are not finite and float64.
        """
        C = self._centred(features)
        norm = float((C.T @ C).norm()) * self.norm
        return float((C.T @ self.features).square().sum()) / norm if norm else math.nan

    def chance(self, features: Tensor) -> float:
        """What `cosine` is on average if the statistic's tokens are shuffled (within the whole, not within groups).

        Over all permutations of n tokens <G, pi H pi'> is on average tr G tr H/n + g h/(n (n - 1)), where g and h are
        the sums of what lies off the diagonals of G = C C' and H = D D'. Raises InputError as `cosine`.
        """
        C = self._centred(features)
        n, D = len(C), self.features
        if n < 2:
            raise InputError("a single token cannot be shuffled: give features of at least two")
        traces = [float(M.square().sum()) for M in (C, D)]
        others = [float(M.sum(dim=0).square().sum()) - trace for M, trace in zip((C, D), traces, strict=True)]
        norm = float((C.T @ C).norm()) * self.norm
        average = traces[0] * traces[1] / n + others[0] * others[1] / (n * (n - 1))
        return average / norm if norm else math.nan

    def _centred(self, features: Tensor) -> Tensor:
        check_numbers("features", features, (len(self.features), None), dtype=self.features.dtype)
        return features if self.groups is None else minus_group_means(features, self.groups)


def yardstick(statistic: Tensor, groups: Tensor | None = None) -> Yardstick:
    """Prepare a statistic, (n, n); groups of zeros take away what all tokens share. Takes 2 to 4 n^3 operations.

    Raises:
        InputError: not a square matrix of finite numbers, or groups that do not fit.
    """
    prepared = prepare_term(statistic)
    if groups is None:
        return Yardstick(prepared.centred, prepared.norm)
    if groups.shape != (len(statistic),) or groups.dtype != torch.int64 or int(groups.min()) < 0:
        raise InputError(f"groups must be int64 ({len(statistic)},), counted from 0")
    D = minus_group_means(prepared.centred, groups)
    return Yardstick(D, float((D @ D.T).norm()), groups)


def all_tokens(n: int) -> Tensor:
    """One group of all n tokens: a yardstick with it does not see what all of them share."""
    return torch.zeros(whole_number("n", n, minimum=1), dtype=torch.int64)


def shared_cosine(features: Tensor) -> float:
    """Cosine of C C' with 1 1': |sum of C's rows|^2/(n |C C'|), 1 if all tokens have the same features; nan if C is
    zero. Raises InputError for anything but a table of finite numbers."""
    check_numbers("features", features, (None, None))
    norm = float((features.T @ features).norm())
    return float(features.sum(dim=0).square().sum()) / (len(features) * norm) if norm else math.nan


def random_cosine(term: Yardstick, width: int) -> float:
    """The cosine to expect of features that are n x width independent Gaussian numbers, rows minus their means.

    With m = width - 1 degrees of freedom, C C' is on average m I and |C C'|^2 on average n m (n + m + 1) (a Wishart
    matrix), so the cosine is close to sqrt(m/(n (n + m + 1))) |D|^2/|D D'|. Never 0: a covariance is positive.

    Args:
        term: without groups. width: d, at least 2.
    """
    n, m = len(term.features), whole_number("width", width, minimum=2) - 1
    return math.sqrt(m / (n * (n + m + 1))) * float(term.features.square().sum()) / term.norm
