"""Checkpoints of a training run: a run that was killed goes on where it was, with the same numbers."""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assoc import distributed
from assoc.errors import InputError
from assoc.files import check_writable, write_atomically
from assoc.leading_terms.model import AttentionOnlyTransformer

FORMAT = 1  # of the file; another number is not read


def run_identity(
    model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor, **settings: float | int | bool | None
) -> dict[str, Any]:
    """What must agree for a run to be the same: sizes, type of numbers, settings, and a hash of the data."""
    digest = hashlib.sha256()
    for tokens in (inputs, targets):
        digest.update(tokens.cpu().contiguous().numpy().tobytes())
    return {
        "vocab_size": model.vocab_size,
        "length": model.length,
        "n_layers": model.n_layers,
        "dtype": str(model.output.dtype),
        "sequences": len(inputs),
        "data": digest.hexdigest(),
        **settings,
    }


def save(path: Path, identity: dict[str, Any], model: AttentionOnlyTransformer, state: dict[str, Any]) -> None:
    """Write model and state to a temporary file, then rename it; of several processes, number 0 does it.

    Args:
        state: lists, dicts, numbers, texts and tensors.

    Raises:
        InputError: the place cannot be written to, or is full.
    """
    if distributed.number() == 0:
        buffer = io.BytesIO()
        weights = {name: weight.detach().cpu() for name, weight in model.state_dict().items()}
        torch.save({"format": FORMAT, "identity": identity, "weights": weights, "state": state}, buffer)
        write_atomically(path, buffer.getbuffer())
    distributed.wait_for_all()


def load(path: Path, identity: dict[str, Any], model: AttentionOnlyTransformer) -> dict[str, Any] | None:
    """Put the weights of a checkpoint into the model and return its state; None if there is no file yet.

    Raises:
        InputError: the file is no checkpoint, or that of another run; the place cannot be written to.
    """
    check_writable(path)
    distributed.wait_for_all()
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise InputError(f"it has format {content['format']}, this version reads {FORMAT}")
        found, weights, state = content["identity"], content["weights"], content["state"]
        if not isinstance(found, dict) or not {"step", "history", "batches"} <= state.keys():
            raise InputError("it does not hold the state of a run")
    except Exception as error:  # torch, pickle and zipfile have no common class for what is wrong with a file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"'{path}' is not a checkpoint ({reason}): choose another file, or remove it") from error
    differing = sorted(key for key in identity.keys() | found.keys() if identity.get(key) != found.get(key))
    if differing:
        raise InputError(
            f"'{path}' is the checkpoint of another run (it differs in {', '.join(differing)}): choose another file, "
            "or remove it to start anew"
        )
    try:
        model.load_state_dict(weights)
    except Exception as error:
        raise InputError(f"'{path}' does not hold the weights of this model: remove it to start anew") from error
    return state
