"""Explorers: what a chapter shows for one choice, for the reader to choose anew, with or without a kernel.

Every explorer draws its pictures beforehand and lets the page's own controls choose among them, so that it works on
the built page, which has no kernel, and in Jupyter alike. In Jupyter some have a further box that takes any input.

    widgets.association_explorer(basis, corpus.vocabulary)      paper A: neighbours under the three basis functions
    widgets.gradient_clock(history)                             paper A: weights against leading terms, over s eta
    widgets.removal_explorer(model, basis, inputs, targets, vocabulary, sentence)
                                                                paper A: a leading term taken out of a trained weight
    widgets.limits_explorer(runs)                               paper A: errors, leading terms and bounds, over s eta
    widgets.head_in_motion(history, task, probe)                paper B: both attention maps, over training steps
    widgets.memory_capacity()                                   paper B: recall of n pairs in dimension d
    widgets.bigram_task_explorer(task)                          paper B: sequences with triggers and outputs marked
    widgets.compare_runs(title, guide, runs, panels)            both: the curves of a run under a chosen condition
    widgets.removed_heads(points)                               paper B: induction heads of a model, and it without them
    widgets.three_steps_explorer()                              paper B: Theorem 3, in any order of the steps
    widgets.layer_by_checkpoint(tables, checkpoints)            both: a number per layer and checkpoint
"""

from assoc.widgets.associations import association_explorer, association_table
from assoc.widgets.clock import clock_picture, gradient_clock
from assoc.widgets.explorer import Explorer
from assoc.widgets.head import head_in_motion, head_picture
from assoc.widgets.heads import heads_picture, removed_heads
from assoc.widgets.layers import agreement_tables, layer_by_checkpoint, layer_picture
from assoc.widgets.limits import limits_explorer, limits_picture
from assoc.widgets.memory import capacity_picture, capacity_table, memory_capacity
from assoc.widgets.removal import removal_explorer, removal_picture
from assoc.widgets.runs import Panel, compare_runs, run_picture
from assoc.widgets.sequences import bigram_task_explorer, sequence_picture
from assoc.widgets.three_steps import three_steps_explorer, three_steps_picture

__all__ = [
    "Explorer",
    "Panel",
    "agreement_tables",
    "association_explorer",
    "association_table",
    "bigram_task_explorer",
    "capacity_picture",
    "capacity_table",
    "clock_picture",
    "compare_runs",
    "gradient_clock",
    "head_in_motion",
    "head_picture",
    "heads_picture",
    "layer_by_checkpoint",
    "layer_picture",
    "limits_explorer",
    "limits_picture",
    "memory_capacity",
    "removal_explorer",
    "removal_picture",
    "removed_heads",
    "run_picture",
    "sequence_picture",
    "three_steps_explorer",
    "three_steps_picture",
]
