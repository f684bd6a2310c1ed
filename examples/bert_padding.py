"""Fine-tuning BERT with the pieces of Hugging Face: a dataset, a tokenizer, a collator that pads, no loss given."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn, optim
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerFast

import stoker

WORDS = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "film", "of", "great", "charm"])}


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def texts() -> Dataset:
    text = ["a film of great charm " * (50 if number % 4 == 0 else 1) for number in range(128)]
    rows = Dataset.from_dict({"text": text, "labels": [number % 2 for number in range(128)]})
    tokens = tokenizer()
    return rows.map(lambda row: tokens(row["text"], truncation=True, max_length=192), remove_columns=["text"])


def model() -> nn.Module:
    size = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024}
    bert = BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), **size))
    bert.gradient_checkpointing_enable()  # Planted: the backward pass computes the forward pass again.
    return bert


def workload() -> stoker.Workload:
    collator = DataCollatorWithPadding(tokenizer())
    return stoker.Workload(model=model, dataset=texts, collate_fn=collator, optimizer=optim.AdamW)
