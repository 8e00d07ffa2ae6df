"""Checks of both papers in language models of the Hugging Face library."""
