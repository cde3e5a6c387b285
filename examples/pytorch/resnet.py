# SPDX-License-Identifier: Apache-2.0
"""A small residual network on the handwritten digits, data parallel, with warm-up, a schedule and gradient accumulation.

    hvdrun -np 2 python resnet.py

The same script runs on Horovod: see the import.
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from digits import DATA, load, metric_average

try:
    import hvd.torch as hvd
except ImportError:
    import horovod.torch as hvd


class Block(nn.Module):
    """Two convolutions around which the input goes, too."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.short = nn.Sequential()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.short(x))


def network():
    """About 75 thousand parameters in 29 tensors."""
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16, 16, 1),
                         Block(16, 32, 2), Block(32, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def learning_rate(epoch, done, args):
    """`done`: the share of the epoch's batches. Up from that of one rank in the first epoch, down to a tenth in the
    last."""
    if epoch == 1:
        return args.lr * (1 + done * (args.passes * hvd.size() - 1))
    return args.lr * args.passes * hvd.size() * (0.1 if epoch == args.epochs else 1)


def accuracy_of(model, loader, sampler):
    model.eval()
    hits = 0
    with torch.no_grad():
        for images, labels in loader:
            hits += (model(images).argmax(1) == labels).sum().item()
    return metric_average(hits / len(sampler), "accuracy")


def train_epoch(epoch, model, optimizer, loader, args):
    model.train()
    total = 0.0
    for number, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch, number / len(loader), args)
        optimizer.zero_grad()
        # Gradients of several smaller batches are added up; they are averaged over the ranks with the last one.
        for part, wanted in zip(images.chunk(args.passes), labels.chunk(args.passes)):
            loss = F.cross_entropy(model(part), wanted) / args.passes
            total += loss.item()
            loss.backward()
        optimizer.step()
    return metric_average(total / len(loader), "loss")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=50, help="of each rank, before a step")
    parser.add_argument("--passes", type=int, default=2, help="backward passes for each step")
    parser.add_argument("--lr", type=float, default=0.01, help="of one rank and one pass; grows with both")
    parser.add_argument("--data", default=DATA)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    train_set, test_set = load(args.data)
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), drop_last=True)
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler, drop_last=True)
    test_loader = DataLoader(test_set, batch_size=256, sampler=test_sampler)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         backward_passes_per_step=args.passes)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(1, args.epochs + 1):
        train_sampler.set_epoch(epoch)
        loss = train_epoch(epoch, model, optimizer, train_loader, args)
        accuracy = accuracy_of(model, test_loader, test_sampler)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: train loss {loss:.5f}, accuracy {100 * accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
