"""The Trainer of Hugging Face over texts that are read and tokenized in Python, item by item."""

import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

READ_S, FORWARD_S = 0.005, 0.012


class Texts(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(READ_S)
        words = f"sample number {index} of a text that is long enough".split()
        ids = [sum(map(ord, word)) % 1000 for word in words]
        return {"ids": torch.tensor(ids), "labels": torch.tensor(index % 2)}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 2)

    def forward(self, ids, labels):
        time.sleep(FORWARD_S)
        logits = self.out(self.words(ids).mean(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(Net(), arguments, train_dataset=Texts()).train()


if __name__ == "__main__":
    main()
