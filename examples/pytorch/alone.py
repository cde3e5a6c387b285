# SPDX-License-Identifier: Apache-2.0
"""One process, as in a notebook: no launcher, no daemon to start, `hvd.init()` alone. The cells also work one by one.

    pip install cloudpickle      # for hvd.run, the last cell
    python alone.py
"""
# %% Rank 0 of 1.
import torch

import hvd.torch as hvd
from hvd import run

hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}")

# %% Collectives give back what they get.
print(hvd.allreduce(torch.tensor([1.0, 2.0, 3.0]), op=hvd.Sum))

# %% A line through points, with the same code that many ranks would run.
torch.manual_seed(0)
x = torch.linspace(-1, 1, 64).unsqueeze(1)
y = 3 * x + 1
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(50):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print(f"y = {model.weight.item():.3f} x + {model.bias.item():.3f}")


# %% And now with two processes, from here: hvd.run starts them and returns their results.
def mean_of_ranks():
    import hvd.torch as hvd  # pylint: disable=import-outside-toplevel,redefined-outer-name,reimported
    hvd.init()
    return hvd.allreduce(torch.tensor(float(hvd.rank()))).item()


if __name__ == "__main__":
    print(run(mean_of_ranks, num_proc=2))
