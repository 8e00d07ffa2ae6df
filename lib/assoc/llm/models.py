"""Causal language models of the Hugging Face library, and what both papers' checks read from them.

Weights act on row vectors, as in paper A: a residual x is a row of d numbers, a head has W_Q, W_K, W_V (d x k) and W_O
(k x d), and the score of query x and key y is (x W_Q)(y W_K)'/sqrt(k) = x (W_Q W_K') y'/sqrt(k). What is read here is
the raw weight matrices, as in paper A's analysis: biases, the scale of the norm before attention, and rotary positions
are left out.

The library is imported when a model is loaded, which takes seconds; importing this module does not.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from assoc.corpus.texts import _reach_hub
from assoc.errors import InputError, whole_number
from assoc.progress import progress

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

REASON_LENGTH = 160  # of what the library says, in messages
LONGEST_NAME = 1000  # of a model: more than any path or name of the hub
TOKENS_AT_ONCE = 512  # of one pass through a layer: keeps its MLP's activations near 16 MB at d = 2048


@dataclass(frozen=True)
class Layout:
    """Where a family keeps its layers and attention weights.

    Attributes:
        layers: path of the list of layers, from the model. attention: path of the attention, from a layer.
        norm: path of the norm before attention, from a layer. output: name of the output projection.
        projections: names of query, key and value projections, or of one that holds all three.
        by_head: a fused projection's outputs are [query, key, value] of head 1, then of head 2, ...; otherwise all
            queries, then all keys, then all values.
    """

    layers: str
    attention: str
    norm: str
    output: str
    projections: tuple[str, ...]
    by_head: bool = False


_LLAMA = Layout("model.layers", "self_attn", "input_layernorm", "o_proj", ("q_proj", "k_proj", "v_proj"))
LAYOUTS = {
    "gpt_neox": Layout("gpt_neox.layers", "attention", "input_layernorm", "dense", ("query_key_value",), by_head=True),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "gpt2": Layout("transformer.h", "attn", "ln_1", "c_proj", ("c_attn",)),
}


class Heads(NamedTuple):
    """The attention weights of one layer, on row vectors: queries are x W_Q[h], and so on.

    Heads that share keys and values (grouped-query attention) each have their own copy of them.

    Attributes:
        query, key, value: W_Q, W_K, W_V, (H, d, k). output: W_O, (H, k, d).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


class Residuals(NamedTuple):
    """Residuals of n tokens around one layer, each (n, d).

    Attributes:
        layer: counted from 0.
        before: E_pre, what enters the layer.
        after_attention: E_attn, what enters plus the attention's output.
        after: E_post, what leaves the layer, with the MLP.
    """

    layer: int
    before: Tensor
    after_attention: Tensor
    after: Tensor


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model, with its weights head by head and its residuals layer by layer.

    Layers and heads are counted from 0.

    Attributes:
        name: where it came from, with the revision.
        model: the library's model. One that `load_model` made is in evaluation mode and takes no gradients, and it
            computes attention eagerly, so that `model(tokens, output_attentions=True)` gives attention maps.
        tokenizer: its tokenizer, or None if it came without one.
        layout: where its family keeps its weights.
        n_layers, n_heads: L and H. n_key_value_heads: H, or fewer if heads share keys and values.
        dim: d, the width of the residual. head_dim: k, the width of a head.
        vocab_size: V, rows of the embedding.
    """

    name: str
    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase | None"
    layout: Layout
    n_layers: int = field(init=False)
    n_heads: int = field(init=False)
    n_key_value_heads: int = field(init=False)
    dim: int = field(init=False)
    head_dim: int = field(init=False)
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        config = self.model.config
        n_heads, dim = config.num_attention_heads, config.hidden_size
        sizes = {
            "n_layers": config.num_hidden_layers,
            "n_heads": n_heads,
            "n_key_value_heads": getattr(config, "num_key_value_heads", None) or n_heads,
            "dim": dim,
            "head_dim": getattr(config, "head_dim", None) or dim // n_heads,
            "vocab_size": self.embedding.shape[0],
        }
        for name, size in sizes.items():
            object.__setattr__(self, name, size)

    def __repr__(self) -> str:
        sizes = f"{self.n_layers} layers, {self.n_heads} heads, d = {self.dim}, V = {self.vocab_size:,}"
        return f"LanguageModel({self.name}: {sizes})"

    @property
    def embedding(self) -> Tensor:
        """w_E, (V, d)."""
        return self.model.get_input_embeddings().weight.detach()

    @property
    def unembedding(self) -> Tensor:
        """W_U, (V, d): the logit of token v is the normed last residual times row v."""
        return self.model.get_output_embeddings().weight.detach()

    def layer_module(self, layer: int) -> nn.Module:
        """The library's module of a layer: residuals in, residuals out."""
        if not 0 <= whole_number("layer", layer, minimum=0) < self.n_layers:
            raise InputError(f"{self.name} has no layer {layer}: layers are counted from 0 to {self.n_layers - 1}")
        return self.model.get_submodule(self.layout.layers)[layer]

    def attention_module(self, layer: int) -> nn.Module:
        """The library's module of a layer's attention, whose first output is added to the residual."""
        return self.layer_module(layer).get_submodule(self.layout.attention)

    def attention_norm(self, layer: int) -> nn.Module:
        """The norm between the residual and the attention of a layer."""
        return self.layer_module(layer).get_submodule(self.layout.norm)

    def output_projection(self, layer: int) -> nn.Module:
        """The module that applies W_O: its input (..., H k) is the heads' outputs side by side."""
        return self.attention_module(layer).get_submodule(self.layout.output)

    def heads(self, layer: int) -> Heads:
        """W_Q, W_K, W_V and W_O of every head of a layer."""
        attention, d = self.attention_module(layer), self.dim
        projections = [_matrix(attention.get_submodule(name)) for name in self.layout.projections]
        if len(projections) == 3:
            query, key, value = projections
        elif self.layout.by_head:
            query, key, value = projections[0].view(d, self.n_heads, 3, self.head_dim).unbind(2)
        else:
            query, key, value = projections[0].chunk(3, dim=1)
        shared_by = self.n_heads // self.n_key_value_heads

        def by_head(matrix: Tensor) -> Tensor:
            return matrix.reshape(d, -1, self.head_dim).transpose(0, 1)

        return Heads(
            query=by_head(query),
            key=by_head(key).repeat_interleave(shared_by, dim=0),
            value=by_head(value).repeat_interleave(shared_by, dim=0),
            output=_matrix(self.output_projection(layer)).view(self.n_heads, self.head_dim, d),
        )

    def query_key(self, layer: int, head: int) -> Tensor:
        """W_Q W_K' of a head, (d, d): query x and key y score x (W_Q W_K') y'/sqrt(k)."""
        heads = self.heads(layer)
        head = self._head(head)
        return heads.query[head] @ heads.key[head].T

    def mean_query_key(self, layer: int) -> Tensor:
        """The mean of W_Q W_K' over the heads of a layer, (d, d): A_emb of paper A (Section 5.2)."""
        heads = self.heads(layer)
        queries, keys = (matrices.transpose(0, 1).reshape(self.dim, -1) for matrices in (heads.query, heads.key))
        return queries @ keys.T / self.n_heads

    def output_value(self, layer: int, head: int) -> Tensor:
        """W_V W_O of a head, (d, d): attending to y adds y (W_V W_O). (As columns: the transpose of W_OV.)"""
        heads = self.heads(layer)
        head = self._head(head)
        return heads.value[head] @ heads.output[head]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones at its start or end. Raises InputError without a tokenizer."""
        # The library would warn on stderr of texts that are longer than the model's window; callers cut them.
        return self._tokenizer().encode(text, add_special_tokens=False, verbose=False)

    def words(self, tokens: Tensor) -> list[str]:
        """The text of each token on its own, for tables and figures. Raises InputError without a tokenizer."""
        tokenizer = self._tokenizer()
        return [tokenizer.decode([token]) for token in tokens.tolist()]

    def _tokenizer(self) -> "PreTrainedTokenizerBase":
        if self.tokenizer is None:
            raise InputError(f"{self.name} came without a tokenizer: save one into its folder, or pass one")
        return self.tokenizer

    @torch.no_grad()
    def single_token_residuals(self, tokens: Tensor) -> Iterator[Residuals]:
        """Residuals around each layer, from the first to the last, of tokens that are each fed alone (paper A, 5.2).

        A token alone attends to itself only. One layer is computed at a time, so that memory holds 3 n d numbers.

        Args:
            tokens: int64 (n,).

        Raises:
            InputError: not tokens of this model.
        """
        if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 1 or not len(tokens):
            raise InputError("tokens must be an int64 tensor (n,) with n >= 1")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.vocab_size:
            raise InputError(
                f"tokens run from {int(tokens.min())} to {int(tokens.max())}; {self.name} knows 0 to "
                f"{self.vocab_size - 1}"
            )
        residual, _ = self._entry(tokens)
        _, settings = self._entry(tokens[:1])  # masks and positions of one token, which serve any number of them
        description = f"{len(tokens)} tokens, layer by layer"
        for layer in progress(range(self.n_layers), description):
            attended, after = torch.empty_like(residual), torch.empty_like(residual)
            for start in range(0, len(tokens), TOKENS_AT_ONCE):
                rows = slice(start, start + TOKENS_AT_ONCE)
                attended[rows], after[rows] = self._through(layer, residual[rows], settings)
            yield Residuals(layer, residual, residual + attended, after)
            residual = after

    def _entry(self, tokens: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """What enters the first layer for single tokens, (n, d), and the other arguments with which it is called."""
        seen: list[tuple[Tensor, dict[str, Any]]] = []

        def stop(_: nn.Module, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
            settings = dict(settings)
            hidden = arguments[0] if arguments else settings.pop("hidden_states")
            seen.append((hidden[:, 0], settings))
            raise _ReachedFirstLayerError

        hook = self.layer_module(0).register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(tokens[:, None], use_cache=False)
        except _ReachedFirstLayerError:
            pass
        finally:
            hook.remove()
        return seen[0]

    def _through(self, layer: int, residual: Tensor, settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The attention's output and the layer's, both (n, d), for single tokens' residuals (n, d)."""
        outputs: list[Tensor] = []

        def keep(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            outputs.append(_first(output))

        hook = self.attention_module(layer).register_forward_hook(keep)
        try:
            after = _first(self.layer_module(layer)(residual[:, None], **settings))
        finally:
            hook.remove()
        return outputs[0][:, 0], after[:, 0]

    def _head(self, head: int) -> int:
        if not 0 <= whole_number("head", head, minimum=0) < self.n_heads:
            raise InputError(f"{self.name} has no head {head}: heads are counted from 0 to {self.n_heads - 1}")
        return head


class _ReachedFirstLayerError(Exception):
    """Ends a forward pass that is wanted for its embeddings alone."""


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _matrix(module: nn.Module) -> Tensor:
    """The matrix that a module applies to rows, x W: GPT-2 stores it like this, the others its transpose."""
    weight = module.weight.detach()
    return weight.T if isinstance(module, nn.Linear) else weight


def as_language_model(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | None" = None, name: str = "model"
) -> LanguageModel:
    """A model at hand, such as one that is being trained; its later weights are seen too.

    Raises InputError if it is not a causal language model of a family in LAYOUTS.
    """
    if getattr(model, "config", None) is None:
        raise InputError(f"{name} is a {type(model).__name__}: give a causal language model of transformers")
    layout = _check_family(name, model.config)
    if model.get_output_embeddings() is None:
        raise InputError(f"{name} is a {type(model).__name__}, which predicts no tokens: give a ..ForCausalLM")
    return LanguageModel(name, model, tokenizer, layout)


def load_model(source: str | Path, *, revision: str | None = None, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """Load a causal language model of a family in LAYOUTS: GPT-NeoX (such as Pythia), Llama, Mistral or GPT-2.

    Args:
        source: a folder that a model was saved to; a `.gguf` file (half a minute); or a name of the Hugging Face hub,
            such as "EleutherAI/pythia-70m". What was fetched from the hub before is read from its cache, offline.
        revision: a branch, tag or commit of the hub, such as "step512"; in a folder, the subfolder of that name.
        dtype: of the weights.

    Raises:
        InputError: nothing there; not a causal language model, or of another family; weights missing or not finite;
            the hub, or the library for GGUF files, can't be reached.
    """
    if not str(source).strip() or len(str(source)) > LONGEST_NAME:
        raise InputError(
            f"no model has the name '{str(source)[:80]}': give a folder, a .gguf file or a name of the hub"
        )
    path = Path(source)
    name = f"{source}" if revision is None else f"{source} at {revision}"
    with _quiet_library():
        if path.suffix == ".gguf":
            return _load_gguf(path, revision, dtype)
        if path.is_dir():
            if revision is not None:
                path = path / revision
                if not path.is_dir():
                    raise InputError(f"folder '{source}' has no checkpoint '{revision}': give one of its subfolders")
            if not (path / "config.json").is_file():
                raise InputError(f"folder '{path}' has no config.json: give a folder made by save_pretrained")
            return _load_local(name, path, dtype)
        if path.exists():
            raise InputError(f"'{source}' is neither a folder nor a .gguf file: give the folder of a saved model")
        if path.is_absolute() or str(source).startswith("."):
            raise InputError(f"there is no folder '{source}': give the folder of a saved model")
        return _load_from_hub(name, str(source), revision, dtype)


@contextlib.contextmanager
def _quiet_library() -> Iterator[None]:
    """Without the library's own bars and warnings: what matters of them is checked and raised here.

    And without its telemetry, for which it asks the hub even where it was told to read files at hand alone.
    """
    from huggingface_hub import constants
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    telemetry_off, constants.HF_HUB_DISABLE_TELEMETRY = constants.HF_HUB_DISABLE_TELEMETRY, True
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        constants.HF_HUB_DISABLE_TELEMETRY = telemetry_off
        if bars:
            logging.enable_progress_bar()


def _load_gguf(path: Path, revision: str | None, dtype: torch.dtype) -> LanguageModel:
    if revision is not None:
        raise InputError(f"a GGUF file is a single checkpoint: leave out the revision ({revision})")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(f"cannot read '{path}' ({error.strerror}): give a .gguf file that is there") from error
    if magic != b"GGUF":
        raise InputError(f"'{path}' is not a GGUF file: fetch or convert it again")
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError:
        raise InputError("GGUF files need the libraries gguf and accelerate: pip install gguf accelerate") from None
    return _load_local(str(path), path.parent, dtype, gguf_file=path.name)


def _load_local(name: str, folder: Path, dtype: torch.dtype, **settings: Any) -> LanguageModel:
    try:
        return _load(name, str(folder), dtype, local_files_only=True, **settings)
    except _NotAtHandError as error:
        reason = " ".join(str(error).split())[:REASON_LENGTH]
        raise InputError(f"{name}: configuration or weights are missing or broken ({reason}): save it again") from error


def _load_from_hub(name: str, source: str, revision: str | None, dtype: torch.dtype) -> LanguageModel:
    """From the hub's cache if it is there in full, otherwise from the hub."""
    settings: dict[str, Any] = {} if revision is None else {"revision": revision}
    with contextlib.suppress(_NotAtHandError):
        return _load(name, source, dtype, local_files_only=True, **settings)
    instead = "or give the folder of a saved model, or a .gguf file"
    try:
        _reach_hub()
        return _load(name, source, dtype, **settings)
    except (_NotAtHandError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"there is no folder '{source}', and the Hugging Face hub gave no {name} ({_reason(error)}): check name, "
            f"revision and network, {instead}"
        ) from error


class _NotAtHandError(Exception):
    """A file of the model could not be found or fetched."""


def _reason(error: Exception) -> str:
    """What the library says, as the part of a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:REASON_LENGTH]


def _load(name: str, source: str, dtype: torch.dtype, **settings: Any) -> LanguageModel:
    """Configuration, tokenizer and weights, each checked."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(source, **settings)
    except OSError as error:
        raise _NotAtHandError(str(error)) from error
    except MemoryError:
        raise
    except Exception as error:  # no or an unknown "model_type", sizes that do not fit, a GGUF file that breaks off, ..
        raise InputError(
            f"{name}: cannot read its configuration ({_reason(error)}): give a causal language model, or save it again"
        ) from error
    layout = _check_family(name, config)
    steps = ("tokenizer", "weights")
    tokenizer, model, missing, unused = None, None, set(), set()
    for step in progress(steps, f"reading {name}"):
        if step == "tokenizer":
            tokenizer = _tokenizer(source, settings)
            continue
        try:
            model, found = AutoModelForCausalLM.from_pretrained(
                source, config=config, dtype=dtype, attn_implementation="eager", output_loading_info=True, **settings
            )
            missing, unused = found["missing_keys"], found["unexpected_keys"]
        except OSError as error:
            raise _NotAtHandError(str(error)) from error
        except MemoryError:
            raise
        except Exception as error:  # whatever the library or the file formats may raise
            raise InputError(
                f"{name}: its weights cannot be read or do not fit its configuration ({_reason(error)}): save it again"
            ) from error
    if missing:
        raise InputError(f"{name}: {len(missing)} weights are missing, such as {min(missing)}: fetch or save it again")
    further = f"{layout.layers}.{config.num_hidden_layers}."
    if any(weight.startswith(further) for weight in unused):
        raise InputError(
            f"{name}: its configuration has {config.num_hidden_layers} layers, its weights have more: save it again"
        )
    for weight_name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise InputError(f"{name}: the weight {weight_name} is not finite: take another checkpoint")
    return LanguageModel(name, model.eval().requires_grad_(False), tokenizer, layout)


def _check_family(name: str, config: "PretrainedConfig") -> Layout:
    given = config.architectures or []
    architectures = [str(made_for) for made_for in given] if isinstance(given, list | tuple) else [str(given)]
    if architectures and not any(made_for.endswith(("ForCausalLM", "LMHeadModel")) for made_for in architectures):
        raise InputError(f"{name} is a {architectures[0]}, not a causal language model: give one that predicts tokens")
    if config.model_type not in LAYOUTS:
        raise InputError(f"{name} is of the family {config.model_type}: give a model of {', '.join(LAYOUTS)}")
    if config.num_hidden_layers < 1:
        raise InputError(f"{name} has {config.num_hidden_layers} layers: give a model with at least one")
    return LAYOUTS[config.model_type]


def _tokenizer(source: str, settings: dict[str, Any]) -> "PreTrainedTokenizerBase | None":
    """The tokenizer that came with a model, or None: weights can be read without one."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **settings)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return None
    # Where no tokenizer was saved, the library makes one that knows its special tokens alone.
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_ids) else None
