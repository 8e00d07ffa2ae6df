"""Paper A, gradient leading terms: early in training every weight is a composition of three corpus statistics."""

from assoc.leading_terms.ablation import remove_projection
from assoc.leading_terms.basis import (
    AttentionAndPosition,
    BasisFunctions,
    BigramAndContext,
    basis_functions,
    basis_functions_of_batches,
)
from assoc.leading_terms.gradients import Gradients, gradients, softmax_jacobian_product
from assoc.leading_terms.model import AttentionOnlyTransformer, mean_cross_entropy
from assoc.leading_terms.neighbours import BASIS_NAMES, Neighbour, association, neighbours
from assoc.leading_terms.products import loss_and_gradients
from assoc.leading_terms.theory import KINDS, PerKind, bounds_apply, error_bounds, leading_terms, step_coefficients
from assoc.leading_terms.training import Agreement, TrainingHistory, compare_with_leading_terms, cosine, train

__all__ = [
    "BASIS_NAMES",
    "KINDS",
    "Agreement",
    "AttentionAndPosition",
    "AttentionOnlyTransformer",
    "BasisFunctions",
    "BigramAndContext",
    "Gradients",
    "Neighbour",
    "PerKind",
    "TrainingHistory",
    "association",
    "basis_functions",
    "basis_functions_of_batches",
    "bounds_apply",
    "compare_with_leading_terms",
    "cosine",
    "error_bounds",
    "gradients",
    "leading_terms",
    "loss_and_gradients",
    "mean_cross_entropy",
    "neighbours",
    "remove_projection",
    "softmax_jacobian_product",
    "step_coefficients",
    "train",
]
