"""How transformers learn associations: the library behind the book.

`assoc.corpus` turns text into token sequences, `assoc.leading_terms` is paper A (gradient leading terms),
`assoc.induction` is paper B (birth of a transformer). `python -m assoc --help` offers the same from the shell.
"""

__version__ = "0.1.0"
