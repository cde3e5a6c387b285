# SPDX-License-Identifier: Apache-2.0
"""Words with sparse gradients and data that does not come out even, in the way people write it for Horovod: join(),
sparse_as_dense, accumulation, gradients clipped, a checkpoint that rank 0 reads and all go on from. What real Horovod 0.28.1 (torch 2.0.1, Gloo, 2 ranks)
printed is in uneven.expected."""
import tempfile

import torch
from torch import nn

import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.embedding = nn.Embedding(20, 4, sparse=sparse)
        self.head = nn.Linear(4, 5)

    def forward(self, words):
        return self.head(self.embedding(words).mean(1))


def batches(count, seed):
    numbers = torch.Generator().manual_seed(seed)
    for _ in range(count):
        words = torch.randint(0, 20, (4, 3), generator=numbers)
        yield words, words.sum(1) % 5


def train(name, model, optimizer, count, clip=False):
    total, model = 0.0, model.train()
    for words, target in batches(count, seed=10 + hvd.rank()):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), target)
        loss.backward()
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        total += loss.item()
    average = hvd.allreduce(torch.tensor(total / count), name=f"{name}.loss").item()
    if hvd.rank() == 0:
        print(f"{name}: loss {average:.5f}, weights {sum(p.double().sum() for p in model.parameters()).item():.5f}",
              flush=True)


def prepared(sparse=True, lr=0.2, **options):
    model = Words(sparse)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size())
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


train("sparse", *prepared(), count=5)
train("sparse as dense", *prepared(sparse_as_dense=True), count=5)
train("clipped", *prepared(sparse=False), count=5, clip=True)

# Several backward passes for a step
model, optimizer = prepared(sparse=False, backward_passes_per_step=2)
for _ in range(3):
    optimizer.zero_grad()
    for words, target in batches(2, seed=20 + hvd.rank()):
        (nn.functional.cross_entropy(model(words), target) / 2).backward()
    optimizer.step()
if hvd.rank() == 0:
    print(f"accumulated: weights {sum(p.double().sum() for p in model.parameters()).item():.5f}")

# Rank 1 has more data than rank 0.
model, optimizer = prepared(sparse=False)
for words, target in batches(3 + 2 * hvd.rank(), seed=30 + hvd.rank()):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(words), target).backward()
    optimizer.step()
last = hvd.join()
hvd.broadcast_parameters(model.state_dict(), root_rank=last)
if hvd.rank() == 0:
    print(f"uneven: last rank {last}, weights {sum(p.double().sum() for p in model.parameters()).item():.5f}")

# Saved by rank 0, read by rank 0, known to all
model = Words(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
epoch = 0
if hvd.rank() == 0:
    before = Words(False)
    saved = torch.optim.Adam(before.parameters(), lr=0.05)
    nn.functional.cross_entropy(before(torch.tensor([[1, 2]])), torch.tensor([3])).backward()
    saved.step()
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"model": before.state_dict(), "optimizer": saved.state_dict(), "epoch": 7}, f"{folder}/checkpoint.pt")
        checkpoint = torch.load(f"{folder}/checkpoint.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    epoch = checkpoint["epoch"]
epoch = hvd.broadcast_object(epoch, root_rank=0, name="epoch")
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
state = optimizer.state_dict()
print(f"resumed on rank {hvd.rank()}: epoch {epoch}, lr {state['param_groups'][0]['lr']}, "
      f"step {int(state['state'][0]['step'])}, moments {state['state'][0]['exp_avg'].double().sum().item():.6f}, "
      f"weights {sum(p.double().sum() for p in model.parameters()).item():.5f}", flush=True)
