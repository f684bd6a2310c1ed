"""Node classification on a large graph: a loader of PyTorch Geometric samples a neighbourhood for each batch."""

import torch
from torch import Tensor, nn, optim
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

import stoker

NODES = 5000
NEIGHBOURS = torch.randint(NODES, (NODES, 30)).tolist()


class Sampler(BaseSampler):
    def sample_from_nodes(self, index: NodeSamplerInput, **_: object) -> SamplerOutput:
        seeds = index.node.tolist()
        place = {node: number for number, node in enumerate(seeds)}
        # Planted: two hops with all neighbours, edge by edge in Python.
        near = [*seeds, *(node for seed in seeds for node in NEIGHBOURS[seed])]
        edges = [(node, other) for node in near for other in NEIGHBOURS[node]]
        places = [(place.setdefault(other, len(place)), place.setdefault(node, len(place))) for node, other in edges]
        row, col = torch.tensor(places).t()
        return SamplerOutput(torch.tensor(list(place)), row, col, edge=None, metadata=(index.input_id, None))

    def sample_from_edges(self, *_: object, **__: object) -> None: ...


def forward(layer: nn.Module, graph: Data) -> Tensor:
    return layer(graph.x, graph.edge_index)


def workload() -> stoker.Workload:
    graph = Data(x=torch.rand(NODES, 4), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.arange(NODES) % 2)
    loader = NodeLoader(graph, node_sampler=Sampler(), batch_size=256, shuffle=True)
    loss = nn.CrossEntropyLoss()
    return stoker.Workload(model=SAGEConv(4, 2), loader=loader, forward=forward, loss=loss, optimizer=optim.Adam)
