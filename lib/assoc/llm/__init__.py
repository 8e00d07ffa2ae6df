"""Checks of both papers in language models of the Hugging Face library."""

from assoc.llm.covariance import (
    LayerAgreement,
    PreparedTerm,
    PreparedTerms,
    attention_covariance_cosine,
    compare_layers,
    covariance_cosine,
    head_covariance_cosines,
    prepare_term,
    prepare_terms,
)
from assoc.llm.models import LAYOUTS, Heads, LanguageModel, Residuals, as_language_model, load_model
from assoc.llm.smollm2 import smollm2_path
from assoc.llm.statistics import TokenStatistics, token_statistics

__all__ = [
    "LAYOUTS",
    "Heads",
    "LanguageModel",
    "LayerAgreement",
    "PreparedTerm",
    "PreparedTerms",
    "Residuals",
    "TokenStatistics",
    "as_language_model",
    "attention_covariance_cosine",
    "compare_layers",
    "covariance_cosine",
    "head_covariance_cosines",
    "load_model",
    "prepare_term",
    "prepare_terms",
    "smollm2_path",
    "token_statistics",
]
