"""Forks a process for each way to end, in the middle of a loop; prints how each of them ended."""

import faulthandler
import os
import signal
import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCHES = 12


class Items(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.005)
        if index == 4 * BATCHES and os.environ.get("BREAK"):
            raise LookupError(index)
        return torch.ones(2) * index


def fail():
    raise ArithmeticError("in the step")


def interrupted():
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(5)


def handled():
    def handler(number, frame):
        raise TimeoutError(f"signal {number}")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def broken():
    os.environ["BREAK"] = "1"


WAYS = {
    "return": lambda: "return",
    "exit": lambda: sys.exit(3),
    "words": lambda: sys.exit("ended with words"),
    "error": fail,
    "item": broken,
    "now": lambda: os._exit(4),
    "interrupt": interrupted,
    "handler": handled,
    "terminate": terminated,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def loop(way, workers):
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    for number, batch in enumerate(DataLoader(Items(), 4, num_workers=workers)):
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
        if number == BATCHES - 1 and WAYS[way]() == "return":
            return


def main():
    faulthandler.disable()
    torch.set_num_threads(1)
    for way in WAYS:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            loop(way, workers=0)
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        print(way, pid, os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
