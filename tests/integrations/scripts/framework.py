"""One loop under a framework: python framework.py NAME WORKERS. The delays are planted."""

import json
import sys
from time import perf_counter, sleep

import torch
from torch.utils.data import DataLoader, Dataset

ITEM_S, STEP_S, BATCH, COUNT = 0.01, 0.02, 4, 64
ITEMS, FORWARDS = [], []
"""What each item that this process loaded and each forward pass took, by this script's own clock."""


class Items(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        began = perf_counter()
        sleep(ITEM_S)
        item = {"x": torch.full((8,), float(index)), "labels": torch.tensor(index % 2)}
        ITEMS.append(perf_counter() - began)
        return item


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x, labels):
        began = perf_counter()
        sleep(STEP_S)
        logits = self.layer(x)
        result = {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
        FORWARDS.append(perf_counter() - began)
        return result


def huggingface(workers, callbacks):
    import tempfile

    from transformers import Trainer, TrainingArguments

    if callbacks:
        from stoker.integrations.transformers import watch_callback

        callbacks = [watch_callback()]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=2 * BATCH,
        num_train_epochs=1,
        eval_strategy="steps",
        eval_steps=8,
        dataloader_num_workers=workers,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(Net(), arguments, train_dataset=Items(), eval_dataset=Items(), callbacks=callbacks)
    return trainer.train().training_loss, callbacks


def lightning(workers, callbacks, namespace="lightning"):
    import importlib

    framework = importlib.import_module(namespace)
    if callbacks:
        from stoker.integrations.lightning import watch_callback

        callbacks = [watch_callback()]

    class Module(framework.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def validation_step(self, batch, index):
            self.log("loss", self.net(**batch)["loss"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.001)

    framework.seed_everything(0)
    trainer = framework.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    train = DataLoader(Items(), BATCH, shuffle=True, num_workers=workers)
    trainer.fit(Module(), train, DataLoader(Items(), 2 * BATCH, num_workers=workers))
    return trainer.callback_metrics["loss"].item(), callbacks


def accelerate(workers, callbacks):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    loader = DataLoader(Items(), BATCH, shuffle=True, num_workers=workers)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        loss = net(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
    return loss.item(), callbacks


def main():
    name, workers, *rest = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loss, callbacks = {
        "huggingface": huggingface,
        "lightning": lightning,
        "pytorch_lightning": lambda *given: lightning(*given, namespace="pytorch_lightning"),
        "accelerate": accelerate,
    }[name](int(workers), rest == ["callback"] or None)
    steps = len(callbacks[0].watched.log.processes[0].training.steps) if callbacks else None
    print(json.dumps({"loss": loss, "steps": steps, "items": ITEMS, "forwards": FORWARDS}))


if __name__ == "__main__":
    main()
