"""Classifying graphs with PyTorch Geometric: its DataLoader, a transform of each graph, a graph network."""

import torch
from torch import Tensor, nn, optim
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

import stoker


def spectrum(graph: Data) -> Data:
    # Planted: features from all eigenvalues of each graph's Laplacian, computed again in each epoch.
    adjacent = torch.zeros(graph.num_nodes, graph.num_nodes)
    adjacent[graph.edge_index[0], graph.edge_index[1]] = 1.0
    graph.x = torch.linalg.eigh(torch.diag(adjacent.sum(1)) - adjacent)[1][:, :8]
    return graph


class Graphs(Dataset):
    def len(self) -> int:
        return 512

    def get(self, index: int) -> Data:
        return Data(edge_index=torch.randint(200, (2, 800)), num_nodes=200, y=torch.tensor([index % 2]))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = GCNConv(8, 16), nn.Linear(16, 2)

    def forward(self, graphs: Data) -> Tensor:
        return self.head(global_mean_pool(self.layer(graphs.x, graphs.edge_index).relu(), graphs.batch))


def workload() -> stoker.Workload:
    loader = DataLoader(Graphs(transform=spectrum), batch_size=8, shuffle=True)
    return stoker.Workload(model=Network, loader=loader, loss=nn.CrossEntropyLoss(), optimizer=optim.Adam)
