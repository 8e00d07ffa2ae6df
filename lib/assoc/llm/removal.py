"""What a language model loses without some of its heads, and what its heads do: the measurements of chapter 6B.

The functions return plain numbers and lists, for result files.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from assoc.corpus import load_texts
from assoc.errors import InputError
from assoc.llm.heads import (
    HeadName,
    ablated,
    attention_by_distance,
    attention_of,
    composition_recall,
    copy_losses,
    copying,
    distance_scores,
    head_means,
    head_scores,
    previous_token_score,
    random_heads,
    repeated_blocks,
    residuals_of,
    sequence_losses,
)
from assoc.llm.models import LanguageModel, load_model
from assoc.llm.smollm2 import smollm2_path
from assoc.progress import progress
from assoc.seeds import seeded

COUNTS = (1, 2, 4, 8, 16)
SHOWN = 8  # heads removed where losses are kept by position


def ordinary_tokens(model: LanguageModel) -> Tensor:
    """The model's tokens without special ones, such as marks for the start of a text: int64 (n,)."""
    special = [] if model.tokenizer is None else model.tokenizer.all_special_ids
    known = torch.ones(model.vocab_size, dtype=torch.bool)
    known[[number for number in special if number < model.vocab_size]] = False
    return known.nonzero()[:, 0]


def story_tokens(model: LanguageModel, length: int, n_texts: int, generator: torch.Generator) -> Tensor:
    """The first tokens of random stories of the embedded corpus, (n_texts, length): ordinary text, for comparison.

    Raises:
        InputError: the model has no tokenizer, or no stories are that long.
    """
    texts = load_texts("stories").texts
    rows = []
    for place in torch.randperm(len(texts), generator=generator).tolist():
        row = model.encode(texts[place])[:length]
        if len(row) == length:
            rows.append(row)
        if len(rows) == n_texts:
            return torch.tensor(rows)
    raise InputError(f"only {len(rows)} stories have {length} tokens: ask for shorter or fewer ones")


def study_removal(
    model: LanguageModel,
    seed: int,
    *,
    block_length: int = 40,
    n_blocks: int = 2,
    n_texts: int = 1,
    n_draws: int = 2,
    counts: Sequence[int] = COUNTS,
) -> dict[str, Any]:
    """Scores of all heads; losses without the best induction heads, previous-token heads, and as many random ones.

    Heads are ranked on blocks of their own, and losses measured on others. Everything random comes from the seed.

    Returns:
        "induction", "previous_token": scores (layers, heads), means over the blocks that rank. "induction_heads",
        "previous_token_heads": the best as [layer, head], the very best first. "removed": a row for each set of heads:
        "set" ("none", "induction", "induction by mean", "previous-token", "random", "same layers"), how many ("n"),
        mean losses "first" and "second" on the copies and "text" on stories, in nats, and "induction_score", the mean
        score that the 3 best induction heads have then. "by_position": set -> mean loss of each next token in a
        repeated block, with SHOWN heads removed (of the previous-token heads one).
    """
    generator = seeded(seed)
    words = ordinary_tokens(model)
    ranked = head_scores(model, repeated_blocks(words, block_length, n_blocks + 1, generator))
    blocks = repeated_blocks(words, block_length, n_blocks, generator)
    texts = story_tokens(model, 2 * block_length, n_texts, generator)
    n_best = min(max(counts), model.n_layers * model.n_heads // 2)
    inducing, previous = (ranked.best(name, n_best) for name in ("induction", "previous_token"))
    means = head_means(model, torch.cat([blocks, texts]))

    plans: list[tuple[str, list[HeadName], Tensor | None]] = [("none", [], None)]
    for n in counts:
        best = inducing[:n]
        plans += [("induction", best, None), ("induction by mean", best, means), ("previous-token", previous[:n], None)]
        for _ in range(n_draws):
            plans.append(("random", random_heads(model, len(best), generator, without=best), None))
            same = random_heads(model, len(best), generator, without=best, like=best)
            plans.append(("same layers", same, None))
    removed, by_position = [], {}
    for name, heads, instead in progress(plans, "removing heads"):
        with ablated(model, heads, instead):
            seen = head_scores(model, blocks)
            of_text = sequence_losses(model, texts)
        first, second = copy_losses(seen.losses)
        left = sum(float(seen.induction.mean(0)[head]) for head in inducing[:3]) / 3
        row = {"set": name, "n": len(heads), "first": float(first.mean()), "second": float(second.mean())}
        removed.append(row | {"text": float(of_text.mean()), "induction_score": left})
        if len(heads) == {"none": 0, "previous-token": 1}.get(name, SHOWN) and name not in by_position:
            by_position[name] = _table(seen.losses.mean(0))
    return {
        "induction": _table(ranked.induction.mean(0)),
        "previous_token": _table(ranked.previous_token.mean(0)),
        "induction_heads": [list(head) for head in inducing],
        "previous_token_heads": [list(head) for head in previous],
        "removed": removed,
        "by_position": by_position,
    }


def study_readings(
    model: LanguageModel,
    seed: int,
    *,
    block_length: int = 40,
    n_blocks: int = 2,
    n_single: int = 1,
    n_heads: int = 3,
    shown_length: int = 14,
) -> dict[str, Any]:
    """Where paper B's three memories are in a language model, head by head.

    Args:
        n_single: blocks on which each head is removed on its own. n_heads: best induction heads whose keys are read.
        shown_length: tokens of the block whose attention maps are kept.

    Returns:
        Tables (layers, heads): "induction", "previous_token"; "by_distance", the previous-token score of attention by
        `distance_scores` alone, for rotary models; "copying" and "copying_in_place", mean ranks of `copying` for
        embeddings and for residuals, with "top" and "top_in_place"; "single", what the loss on the second copy gains
        when that head alone is removed. "composition": for each of the best induction heads its "head" and the "recall"
        table of `composition_recall`. "distance": scores by distance of the best previous-token heads. "shown": tokens
        and attention maps of the best induction and the best previous-token head on one short block.
    """
    generator = seeded(seed)
    words = ordinary_tokens(model)
    blocks = repeated_blocks(words, block_length, n_blocks, generator)
    seen = head_scores(model, blocks)
    inducing, previous = (seen.best(name, n_heads) for name in ("induction", "previous_token"))
    result: dict[str, Any] = {
        "induction": _table(seen.induction.mean(0)),
        "previous_token": _table(seen.previous_token.mean(0)),
        "composition": [
            {"head": list(head), "recall": _table(composition_recall(model, blocks, head))}
            for head in inducing
            if head[0] > 0
        ],
    }
    if hasattr(model.model.base_model, "rotary_emb"):
        scores = distance_scores(model, blocks)
        result["by_distance"] = _table(previous_token_score(attention_by_distance(scores)))
        result["distance"] = [{"head": list(head), "scores": _table(scores[head][:shown_length])} for head in previous]
    result |= _copying_tables(model, blocks)
    few = blocks[:n_single]
    base = copy_losses(sequence_losses(model, few)).second.mean()
    single = torch.zeros(model.n_layers, model.n_heads)
    for place in progress(range(single.numel()), "heads removed one by one"):
        head = (place // model.n_heads, place % model.n_heads)
        with ablated(model, [head]):
            single[head] = copy_losses(sequence_losses(model, few)).second.mean() - base
    result["single"] = _table(single)
    shown = repeated_blocks(words, shown_length, 1, generator)
    maps = attention_of(model, shown, [inducing[0], previous[0]])[0]
    result["shown"] = {"tokens": shown[0].tolist(), "attention": _table(maps)}
    result["shown"]["heads"] = [list(inducing[0]), list(previous[0])]
    return result


def _copying_tables(model: LanguageModel, blocks: Tensor) -> dict[str, list[list[float]]]:
    """`copying` of all heads for the tokens of the first copies, as embeddings and in place."""
    length = blocks.shape[1] // 2
    tokens, entering = blocks[:, 1:length].flatten(), residuals_of(model, blocks)
    tables: dict[str, list[list[float]]] = {name: [] for name in ("copying", "top", "copying_in_place", "top_in_place")}
    for layer in progress(range(model.n_layers), "copying, layer by layer"):
        plain = copying(model, layer, tokens)
        placed = copying(model, layer, tokens, entering[layer][:, 1:length].flatten(0, 1))
        found = {"copying": plain.rank, "top": plain.top}
        found |= {"copying_in_place": placed.rank, "top_in_place": placed.top}
        for name, values in found.items():
            tables[name].append(_table(values))
    return tables


def _table(values: Tensor) -> list[Any]:
    """The numbers to three decimals, which keeps result files small."""
    return values.double().mul(1000).round().div(1000).tolist()


def smollm2_removal(seed: int) -> dict[str, Any]:
    """`study_removal` of SmolLM2-135M-Instruct, which has to be on this machine (`smollm2_path`)."""
    return study_removal(load_model(smollm2_path()), seed)


def smollm2_readings(seed: int) -> dict[str, Any]:
    """`study_readings` of SmolLM2-135M-Instruct, with the words of the tokens shown."""
    model = load_model(smollm2_path())
    found = study_readings(model, seed)
    found["shown"]["words"] = model.words(torch.tensor(found["shown"].pop("tokens")))
    return found


LOSSES = ("first", "second", "text", "induction_score")


def losses_without(points: Sequence[Mapping[str, Any]], heads: str, n: int) -> dict[str, Tensor]:
    """What `study_removal` measured without n heads of a set, over all its points: each of LOSSES, (draws,).

    Raises:
        InputError: no such set, or not with so many heads.
    """
    rows = [row for point in points for row in point["removed"] if (row["set"], row["n"]) == (heads, n)]
    if not rows:
        raise InputError(f"there is no set {heads!r} with {n} heads in these points")
    return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in LOSSES}
