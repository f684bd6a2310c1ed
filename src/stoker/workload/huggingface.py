"""Models of transformers by name, with configurations from the table below, a folder, or the download cache."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from stoker.errors import InputError
from stoker.packages import optional

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}

# Name on the hub -> class of the configuration in transformers, and the values that differ from its defaults.
_KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base-uncased": ("BertConfig", {}),
    "bert-base-cased": ("BertConfig", {"vocab_size": 28996}),
    "bert-large-uncased": ("BertConfig", _LARGE),
    "bert-large-cased": ("BertConfig", {**_LARGE, "vocab_size": 28996}),
    "roberta-base": ("RobertaConfig", _ROBERTA),
    "roberta-large": ("RobertaConfig", {**_ROBERTA, **_LARGE}),
    "distilbert-base-uncased": ("DistilBertConfig", {}),
    "distilbert-base-cased": ("DistilBertConfig", {"vocab_size": 28996}),
    "gpt2": ("GPT2Config", {"pad_token_id": 50256}),
    "gpt2-medium": ("GPT2Config", {"pad_token_id": 50256, "n_embd": 1024, "n_layer": 24, "n_head": 16}),
}
_SHORT = {"bert": "bert-base-uncased", "roberta": "roberta-base", "distilbert": "distilbert-base-uncased"}
_OWNERS = ("google-bert/", "FacebookAI/", "distilbert/", "openai-community/")


@dataclass(frozen=True)
class HfFacts:
    """What a configuration says about its model."""

    family: Literal["text", "image"]
    classes: int
    image_size: int | None
    pad_id: int | None
    max_tokens: int | None
    vocabulary: int | None


def names() -> list[str]:
    return [*_KNOWN, *_SHORT]


def facts(name: str) -> HfFacts:
    config, family = _config(name)
    size = getattr(config, "image_size", None) or 224
    pad_id = getattr(config, "pad_token_id", None)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in ("roberta", "camembert", "xlm-roberta"):
        positions -= (pad_id or 0) + 1  # RoBERTa's positions start after the padding id
    return HfFacts(
        family=family,
        classes=config.num_labels,
        image_size=(size if isinstance(size, int) else max(size)) if family == "image" else None,
        pad_id=pad_id if family == "text" else None,
        max_tokens=positions if family == "text" else None,
        vocabulary=getattr(config, "vocab_size", None) if family == "text" else None,
    )


def build(name: str, classes: int | None) -> nn.Module:
    """A classifier with random weights. Nothing is downloaded, and only code of transformers itself runs."""
    transformers = optional("transformers", extra="hf")
    config, family = _config(name)
    if classes is not None:
        config.num_labels = classes
    kind = "AutoModelForSequenceClassification" if family == "text" else "AutoModelForImageClassification"
    model: nn.Module = getattr(transformers, kind).from_config(config, trust_remote_code=False)
    return model


def _config(name: str) -> tuple[Any, Literal["text", "image"]]:
    transformers = optional("transformers", extra="hf")
    config = _known_config(transformers, name) or _local_config(transformers, name)
    if type(config) in transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0  # without one, decoders refuse batches of several texts
        return config, "text"
    if type(config) in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        return config, "image"
    raise InputError(
        f"hf/{name} is a {config.model_type} model, which transformers has no text or image classifier for; "
        "write a workload function for it"
    )


def _known_config(transformers: Any, name: str) -> Any:
    for owner in _OWNERS:
        name = name.removeprefix(owner)
    known = _KNOWN.get(_SHORT.get(name, name))
    if known is None:
        return None
    make: Callable[..., Any] = getattr(transformers, known[0])
    return make(**known[1])


def _local_config(transformers: Any, name: str) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if Path(name).is_dir():
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"the folder {name} holds no configuration that transformers can use: {reason}") from None
        raise InputError(unknown(name)) from None


def unknown(name: str) -> str:
    """The error sentence for a name that is neither in the table nor cached."""
    from difflib import get_close_matches

    near = get_close_matches(name, names(), n=3, cutoff=0.5) or list(_KNOWN)[:4]
    return (
        f"no configuration of hf/{name} is built in, in a folder or in the cache of earlier downloads; "
        f"near it are: {', '.join(f'hf/{known}' for known in near)}"
    )
