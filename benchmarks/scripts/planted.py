"""A loop with planted delays, timed by the script's own clock: python planted.py FRAMEWORK WORKERS[:METHOD] OUTPUT

FRAMEWORK is plain, huggingface, lightning or accelerate. What the loop waited, what its steps and items took, the CPU
time of its thread and the losses go to the file OUTPUT. Lines that end in `traceml` are what that tool needs in a
script; they do nothing unless it is run under it.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep, thread_time

import torch
from torch.utils.data import DataLoader, Dataset

ITEM_S, STEP_S, BATCH, BATCHES = 0.005, 0.02, 4, 60
LOSSES = []


class Items(Dataset):
    """Each item holds how long it took."""

    def __len__(self):
        return BATCH * BATCHES

    def __getitem__(self, index):
        began = perf_counter()
        sleep(ITEM_S)
        x = torch.full((8,), index / len(self))
        return {"x": x, "labels": torch.tensor(index % 2), "took": torch.tensor(perf_counter() - began).double()}


class Timed:
    """A loader, and when its batches were asked for and were there."""

    def __init__(self, loader):
        self.loader, self.dataset, self.batch_size = loader, loader.dataset, loader.batch_size
        self.waits, self.steps, self.items, self.cpu = [], [], [], []

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        batches, got, cpu = iter(self.loader), None, thread_time()
        while True:
            asked = perf_counter()
            if got is not None:
                self.steps.append(asked - got)
            batch = next(batches, None)
            if batch is None:
                return
            got = perf_counter()
            self.waits.append(got - asked)
            self.items += batch["took"].tolist()
            before, cpu = cpu, thread_time()
            self.cpu.append(cpu - before)
            yield batch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x, labels, took=None):
        sleep(STEP_S)
        logits = self.layer(x)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        LOSSES.append(loss.item())
        return {"loss": loss, "logits": logits}


def loader_of(workers, method):
    return DataLoader(Items(), BATCH, shuffle=True, num_workers=workers, multiprocessing_context=method)


def plain(workers, method):
    traceml = traced()  # traceml
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    loader = Timed(loader_of(workers, method))
    for batch in loader:
        with traceml.trace_step(net):  # traceml
            optimizer.zero_grad()
            net(**batch)["loss"].backward()
            optimizer.step()
    return loader


def accelerate(workers, method):
    from accelerate import Accelerator

    traceml = traced()  # traceml
    accelerator = Accelerator(cpu=True)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    net, optimizer, prepared = accelerator.prepare(net, optimizer, loader_of(workers, method))
    loader = Timed(prepared)
    for batch in loader:
        with traceml.trace_step(net):  # traceml
            optimizer.zero_grad()
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
    return loader


def huggingface(workers, method):
    from transformers import Trainer, TrainingArguments

    class Own(Trainer):
        def get_train_dataloader(self):
            self.timed = Timed(super().get_train_dataloader())
            return self.timed

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        dataloader_num_workers=workers,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=0,
    )
    trainer = Own(Net(), arguments, train_dataset=Items())
    trainer.train()
    return trainer.timed


def lightning(workers, method):
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.001)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = framework.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    loader = Timed(loader_of(workers, method))
    trainer.fit(Module(), loader)
    return loader


def traced():
    """TraceML under its launcher; otherwise something that does nothing."""
    if os.environ.get("PLANTED_TRACEML"):
        import traceml_ai

        traceml_ai.init()
        return traceml_ai
    from contextlib import nullcontext
    from types import SimpleNamespace

    return SimpleNamespace(trace_step=nullcontext)


def main():
    framework, asked, output = sys.argv[1:]
    workers, _, method = asked.partition(":")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = globals()[framework](int(workers), method or None)
    found = {name: getattr(loader, name) for name in ("waits", "steps", "items", "cpu")}
    Path(output).write_text(json.dumps({**found, "losses": LOSSES}), encoding="utf-8")


if __name__ == "__main__":
    main()
