#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which section of Debian is a package in? Graph attention reads the names of the packages around it.

    examples/python/graph.py --gate none
    examples/python/graph.py --gate elementwise
    examples/python/graph.py --neighbours 0         the package's own name alone

Packages are the nodes, and those that depend on each other are neighbours. In each of two layers a node attends to
itself and to a few neighbours, drawn at random; a mask hides the places that it has no neighbours for. What a node is
by itself comes from the letters of its name. Labels of neighbours are not used.
"""

import zlib

import torch
from torch import nn
from torch.nn import functional as F

import training

PIECES, LONGEST = 8192, 24  # number of ids, which are hashes of three letters; maximum number of pieces of a name


def pieces_of(name):
    """Returns the ids of a name's pieces, which are three adjacent letters, (LONGEST). Pads them with 0."""
    whole = f"^{name}$"
    ids = [1 + zlib.crc32(whole[i : i + 3].encode()) % (PIECES - 1) for i in range(len(whole) - 2)][:LONGEST]
    return ids + [0] * (LONGEST - len(ids))


class Graph:
    """Holds the pieces of all nodes (N,LONGEST), and a list of all neighbours, node after node."""

    def __init__(self, packages, sections):
        self.pieces = torch.tensor([pieces_of(package.name) for package in packages])
        self.labels = torch.tensor([sections.index(package.section) for package in packages])
        number = {package.name: i for i, package in enumerate(packages)}
        near = [set() for _ in packages]
        for i, package in enumerate(packages):
            for j in {number[name] for name in package.depends if name in number} - {i}:
                near[i].add(j)
                near[j].add(i)
        self.degree = torch.tensor([len(others) for others in near])
        self.start = self.degree.cumsum(0) - self.degree
        self.near = torch.tensor([j for others in near for j in sorted(others)] + [0])
        self.split = {
            split: torch.tensor([i for i, package in enumerate(packages) if package.split == split])
            for split in ("train", "valid", "test")
        }

    def around(self, nodes, count, generator):
        """Returns each of `nodes` (M) with `count` of its neighbours, (M,1+count), and a mask of the filled places. A
        node with more neighbours draws from them at random. One with fewer has all of them."""
        degree, places = self.degree[nodes, None], torch.arange(count)
        drawn = (torch.rand(len(nodes), count, generator=generator) * degree).long()
        at = torch.where(degree > count, drawn, places).minimum((degree - 1).clamp(min=0))
        others = self.near[(self.start[nodes, None] + at).clamp(max=len(self.near) - 1)]
        filled = F.pad(places < degree, (1, 0), value=True)
        return torch.cat((nodes[:, None], others), dim=1), filled


class Classifier(nn.Module):
    def __init__(self, options, graph, classes):
        super().__init__()
        self.graph, self.neighbours = graph, options.neighbours
        self.embedding = nn.EmbeddingBag(PIECES, options.dim, mode="mean", padding_idx=0)
        self.dropout = nn.Dropout(options.dropout)
        keys = {"causality": "none", "partial_rotary_factor": 0.0}  # neighbours have no order
        blocks = (training.Block(options.dim, options.heads, options.gate, **keys) for _ in range(2))
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.RMSNorm(options.dim), nn.Linear(options.dim, classes))

    def forward(self, nodes, generator, looks=None):
        """Returns logits (B,classes). Appends attention statistics to the list `looks`; key 0 is the node itself."""
        near, filled = self.graph.around(nodes, self.neighbours, generator)
        wide, wide_filled = self.graph.around(near.flatten(), self.neighbours, generator)
        x = self.dropout(self.embedding(self.graph.pieces[wide.flatten()]).view(*wide.shape, -1))
        for block, mask in zip(self.blocks, (wide_filled, filled)):
            x = x.view(*mask.shape, -1)
            mask = mask[:, None, None]  # (B,1,1,S), shared by all heads and queries
            if looks is not None:
                looks.append({name: figure[..., :1] for name, figure in block.looks(x, mask=mask).items()})
            x = self.dropout(block(x, mask=mask)[:, 0])  # the node's own row
        return self.head(x)


@torch.no_grad()
def evaluate(model, graph, nodes):
    generator, looks = torch.Generator().manual_seed(0), []
    logits = torch.cat([model(part, generator, looks) for part in nodes.split(512)])
    layers = [{name: torch.cat([part[name] for part in looks[n::2]]) for name in looks[0]} for n in range(2)]
    return {**training.classification(logits, graph.labels[nodes]), **training.mean_looks(layers)}


def more_options(parser):
    parser.add_argument("--neighbours", type=int, default=5, help="of a node that are seen (default %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1, help="default %(default)s")


def main(arguments=None):
    options = training.parse(__doc__, arguments, more_options, steps=600, batch=64, dim=64, heads=4, lr=3e-3)
    data = training.read_packages(options)
    graph = Graph(data.packages, data.sections())
    model = Classifier(options, graph, len(data.sections()))

    neighbours = torch.Generator().manual_seed(options.seed)  # separate, so that --neighbours does not change the nodes

    def loss_of_batch(generator):
        nodes = graph.split["train"][torch.randint(len(graph.split["train"]), (options.batch,), generator=generator)]
        return F.cross_entropy(model(nodes, neighbours), graph.labels[nodes])

    trained = training.train(model, loss_of_batch, options)
    metrics = evaluate(model, graph, graph.split["test"])
    metrics["valid_loss_nats"] = evaluate(model, graph, graph.split["valid"])["loss_nats"]
    return training.finish(options, model, data, trained, metrics)


if __name__ == "__main__":
    main()
