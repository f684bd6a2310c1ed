"""A loop that trains and validates: python plain.py EPOCHS [noshuffle]"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


def loaders(shuffle):
    data = TensorDataset(torch.arange(160.0).reshape(40, 4), torch.arange(40) % 2)
    train = DataLoader(data, batch_size=4, shuffle=shuffle)
    valid = DataLoader(data, batch_size=8)
    return train, valid


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, valid = loaders("noshuffle" not in sys.argv)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    with torch.no_grad():
        for x, _ in valid:
            net(x)
            break
    for _ in range(int(sys.argv[1])):
        for number, (x, y) in enumerate(train):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            if number == 4:
                with torch.no_grad():
                    print("valid", sum(net(x).sum().item() for x, _ in valid))
        print("epoch", number, loss.item(), flush=True)
    print("end")


if __name__ == "__main__":
    main()
