# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits with PyTorch, data parallel: each rank trains on its share of the images, and gradients are averaged
while the backward pass goes on.

    hvdrun -np 4 python digits.py

The same script runs on Horovod: see the import. Losses and accuracies are those of a single process with the same global
batch, up to rounding and dropout.
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

try:
    import hvd.torch as hvd
except ImportError:
    import horovod.torch as hvd

DATA = pathlib.Path(__file__).resolve().parents[1] / "digits" / "digits.csv"
TRAIN_IMAGES = 1500


class Net(nn.Module):
    """Two convolutions and two dense layers for images of 1x8x8."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), p=0.1, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def load(path):
    """The images as (train, test); each line of the file is 64 pixels of 0..16 and the digit."""
    lines = pathlib.Path(path).read_text(encoding="ascii").split()
    table = torch.tensor([[int(number) for number in line.split(",")] for line in lines])
    images = table[:, :64].reshape(-1, 1, 8, 8).float() / 16
    labels = table[:, 64]
    return (TensorDataset(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]),
            TensorDataset(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:]))


def metric_average(value, name):
    """The mean of a number over all ranks."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train_epoch(epoch, model, optimizer, loader, sampler, args):
    model.train()
    sampler.set_epoch(epoch)
    total = 0.0
    for images, labels in loader:
        if args.cuda:
            images, labels = images.cuda(), labels.cuda()
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        if args.clip:
            # Clipping needs the averaged gradients, so wait for them here; step() must then not do it again.
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        total += loss.item()
    return metric_average(total / len(loader), "avg_train_loss")


def test(model, loader, sampler, args):
    model.eval()
    loss = hits = 0.0
    with torch.no_grad():
        for images, labels in loader:
            if args.cuda:
                images, labels = images.cuda(), labels.cuda()
            output = model(images)
            loss += F.nll_loss(output, labels, reduction="sum").item()
            hits += (output.argmax(1) == labels).sum().item()
    return metric_average(loss / len(sampler), "avg_loss"), metric_average(hits / len(sampler), "avg_accuracy")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.05, help="of one rank; grows with their number")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--clip", type=float, default=0.0, help="the largest norm of all gradients; 0: any")
    parser.add_argument("--checkpoint", help="rank 0 saves model and optimizer there after each epoch, and all go on from "
                                             "there if it exists")
    parser.add_argument("--data", default=DATA)
    args = parser.parse_args()

    hvd.init()
    args.cuda = torch.cuda.is_available()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    if args.cuda:
        torch.cuda.set_device(hvd.local_rank())

    train_set, test_set = load(args.data)
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_set, batch_size=256, sampler=test_sampler)

    model = Net()
    if args.cuda:
        model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)

    first = 1
    if args.checkpoint and hvd.rank() == 0 and pathlib.Path(args.checkpoint).exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    first = hvd.broadcast_object(first, root_rank=0, name="first_epoch")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)

    for epoch in range(first, args.epochs + 1):
        train_loss = train_epoch(epoch, model, optimizer, train_loader, train_sampler, args)
        loss, accuracy = test(model, test_loader, test_sampler, args)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: train loss {train_loss:.5f}, test loss {loss:.5f}, accuracy {100 * accuracy:.2f} %",
                  flush=True)
            if args.checkpoint:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                           args.checkpoint)


if __name__ == "__main__":
    main()
