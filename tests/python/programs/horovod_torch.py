# SPDX-License-Identifier: Apache-2.0
"""A training script in the way people write it for Horovod with PyTorch. Each rank says where it is and what came of it."""
import hashlib
import socket

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits

hvd.init()
torch.manual_seed(42 + hvd.rank())
torch.set_num_threads(1)

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train = torch.utils.data.TensorDataset(images[:1400], labels[:1400])
sampler = torch.utils.data.distributed.DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(train, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(6):
    sampler.set_epoch(epoch)
    for batch, wanted in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), wanted).backward()
        optimizer.step()

with torch.no_grad():
    hits = (model(images[1400:]).argmax(1) == labels[1400:]).float()[hvd.rank()::hvd.size()]
accuracy = hvd.allreduce(hits.mean(), name="accuracy").item()
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()[:16]
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: accuracy {100 * accuracy:.1f} %, weights {digest}", flush=True)
