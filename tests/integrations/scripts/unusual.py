"""What training scripts do, the usual and the odd. Prints what must not change."""

import os
import random
import subprocess
import sys
import traceback
import zlib
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info


class Items(Dataset):
    """Random items: those of a worker depend on its seed."""

    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = random.random() + float(np.random.rand()) + torch.rand(()).item()
        return torch.full((4,), index + noise), index % 2


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        information = get_worker_info()
        first, step = (0, 1) if information is None else (information.id, information.num_workers)
        for index in range(first, self.count, step):
            yield torch.full((4,), float(index)), index % 2


class Broken(Items):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError(f"item {index} is broken")
        return super().__getitem__(index)


class Batched(Items):
    def __getitems__(self, indices):
        assert type(self) is Batched
        return [self[index] for index in indices]


class WorkerInfo(Items):
    def __getitem__(self, index):
        information = get_worker_info()
        same = information is None or information.dataset is self
        return torch.tensor(float(same)), int(information.id if information else -1)


class Typed(dict):
    """A batch of a type of the user's own."""


def typed(samples):
    return Typed(x=torch.stack([each for each, _ in samples]), kind=type(samples).__name__)


def uneven(samples):
    return torch.stack([torch.zeros(index + 1) for index, _ in enumerate(samples)])


def digest(*things):
    return zlib.crc32(repr(things).encode())


def model():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    return net, torch.optim.Adam(net.parameters(), 0.01)


def train(loader, epochs=2):
    net, optimizer = model()
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def training(workers, **options):
    torch.manual_seed(0)
    loader = DataLoader(Items(), 4, shuffle=True, num_workers=workers, **options)
    print("losses", workers, sorted(options), train(loader), torch.initial_seed(), torch.rand(2).tolist())


def iterables():
    for workers in (0, 2):
        loader = DataLoader(Stream(22), 4, num_workers=workers)
        print("stream", workers, [x[:, 0].tolist() for x, _ in loader], train(loader))


def lengths():
    loader = DataLoader(Items(), 5)
    iterator = iter(loader)
    print("len", len(loader), len(iterator), type(iterator).__name__, iter(iterator) is iterator, sorted(vars(loader)))
    next(iterator)
    print("yielded", iterator._num_yielded, "left", sum(1 for _ in iterator))
    try:
        next(iterator)
    except StopIteration as error:
        print("stopped", error.args, next(iterator, "default"))


def nested():
    outer, inner = DataLoader(Items(8), 4), DataLoader(Items(6), 3, num_workers=1)
    print("nested", [(i, len(x), [len(z) for z, _ in inner]) for i, (x, _) in enumerate(outer)])
    print("zipped", [digest(a[1].tolist(), b[1].tolist()) for a, b in zip(outer, inner, strict=True)])


def abandoned():
    for workers in (0, 2):
        loader = DataLoader(Items(), 2, num_workers=workers)
        for _ in range(3):
            for _, y in loader:
                print("abandoned", workers, y.tolist())
                break


def remade():
    for epoch in range(3):
        torch.manual_seed(epoch)
        loader = DataLoader(Items(8), 4, shuffle=True, num_workers=epoch % 2)
        print("remade", [y.tolist() for _, y in loader])


def failing():
    for workers in (0, 1):
        for name, loader in (
            ("item", DataLoader(Broken(), 4, num_workers=workers)),
            ("collate", DataLoader(Items(), 4, num_workers=workers, collate_fn=uneven)),
            ("subset", DataLoader(Subset(Broken(), range(8)), 4, num_workers=workers)),
        ):
            seen = 0
            try:
                for _ in loader:
                    seen += 1
            except (ValueError, RuntimeError) as error:
                print("failing", name, workers, seen, type(error).__name__, "at" in str(error))
                traceback.print_exc()
                traceback.clear_frames(error.__traceback__)  # or else torch takes 5 s to end the worker


def kinds():
    batch = next(iter(DataLoader(Items(4), 4, collate_fn=typed)))
    print("kinds", type(batch).__name__, batch["kind"], sorted(batch))
    for workers in (0, 1):
        print("batched", [y.tolist() for _, y in DataLoader(Batched(8), 4, num_workers=workers)])
        print("unbatched", [y for _, y in DataLoader(Items(3), None, num_workers=workers)])
        print("worker", [x.tolist() + y.tolist() for x, y in DataLoader(WorkerInfo(4), 2, num_workers=workers)])


def hooks():
    net, optimizer = model()
    calls = []
    net[0].register_forward_hook(lambda *_: calls.append("forward"))
    net[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    for x, _ in DataLoader(Items(4), 2):
        net(x).sum().backward()
        optimizer.step()
    print("hooks", calls, sorted(name for name in vars(net) if "hook" in name and vars(net)[name]))


def places():
    main = sys.modules["__main__"]
    print("main", main.__name__, main is sys.modules.get("__mp_main__", main), Path(main.__file__).name, __name__)
    print("argv", [Path(sys.argv[0]).name, *sys.argv[1:]], sys.flags, sys.path[0] == str(Path(__file__).parent))
    print("path", [each for each in sys.path if "bootstrap" in each], [str(each) for each in sys.warnoptions])
    print("limits", sys.getrecursionlimit(), sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)
    before = Path.cwd()
    os.chdir("/")
    print("losses elsewhere", train(DataLoader(Items(8), 4)))
    os.chdir(before)


def started():
    """A subprocess of the script's own, with a loader of its own."""
    code = "import torch.utils.data as d; print('sub', [b.tolist() for b in d.DataLoader(range(4), 2)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    print("subprocess", done.returncode, done.stdout, done.stderr)


def main():
    torch.set_num_threads(1)
    training(0)
    training(2)
    training(2, persistent_workers=True)
    for part in (iterables, lengths, nested, abandoned, remade, failing, kinds, hooks, places, started):
        part()
    print("random", random.random(), np.random.rand(), torch.rand(2).tolist())
    sys.exit(7)


if __name__ == "__main__":
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    main()
