"""Paper B, "Birth of a Transformer: A Memory Viewpoint" (Bietti et al., NeurIPS 2023), as a library.

`BigramTask` makes the data, `AssociativeTransformer` is the model whose weights are associative memories,
`train_induction` trains it and watches the induction head form, `memory_recall` and its neighbours read the weights.
"""

from assoc.induction.gradients import (
    class_means,
    filtered_memory,
    lemma1_gradient,
    lemma2_gradient,
    noisy_inputs,
)
from assoc.induction.memory import (
    after_trigger_attention,
    capacity,
    feed_forward_kl,
    ideal_memories,
    install_ideal_memories,
    memory_recall,
    memory_tables,
    outer_product_memory,
    previous_token_attention,
    recalls,
)
from assoc.induction.model import (
    AssociativeTransformer,
    FullTransformer,
    OneLayerTransformer,
    Trace,
    causal_attention,
)
from assoc.induction.task import Batch, BigramTask, Sequences, induction_predictions
from assoc.induction.training import InductionHistory, train_induction

__all__ = [
    "AssociativeTransformer",
    "Batch",
    "BigramTask",
    "FullTransformer",
    "InductionHistory",
    "OneLayerTransformer",
    "Sequences",
    "Trace",
    "after_trigger_attention",
    "capacity",
    "causal_attention",
    "class_means",
    "feed_forward_kl",
    "filtered_memory",
    "ideal_memories",
    "induction_predictions",
    "install_ideal_memories",
    "lemma1_gradient",
    "lemma2_gradient",
    "memory_recall",
    "memory_tables",
    "noisy_inputs",
    "outer_product_memory",
    "previous_token_attention",
    "recalls",
    "train_induction",
]
