# SPDX-License-Identifier: Apache-2.0
"""A benchmark on random images, in the way people write them for Horovod. Prints the loss of every iteration, which does not
depend on the machine, and with --times how many images a second it took. What real Horovod 0.28.1 (torch 2.0.1, Gloo, 2
ranks) printed with --fp16-allreduce is in synthetic_benchmark.expected."""
import argparse
import timeit

import torch
import torch.backends.cudnn as cudnn
import torch.nn.functional as F
import torch.optim as optim

import horovod.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
parser.add_argument("--num-iters", type=int, default=3)
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
parser.add_argument("--num-groups", type=int, default=0)
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--op", choices=["Average", "Sum"], default="Average")
parser.add_argument("--no-cuda", action="store_true", default=False)
parser.add_argument("--times", action="store_true", default=False)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()

hvd.init()
torch.manual_seed(3)
torch.set_num_threads(1)
if args.cuda:
    torch.cuda.set_device(hvd.local_rank())
cudnn.benchmark = True

model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                            torch.nn.Conv2d(8, 16, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2),
                            torch.nn.Flatten(), torch.nn.Linear(64, 100))
lr_scaler = hvd.size() if args.op == "Average" else 1
if args.cuda:
    model.cuda()

if args.optimizer == "sgd":
    optimizer = optim.SGD(model.parameters(), lr=0.05 * lr_scaler, momentum=0.9, nesterov=True)
else:
    optimizer = optim.Adam(model.parameters(), lr=0.002 * lr_scaler)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
more = {"num_groups": args.num_groups} if args.num_groups else {}
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression,
                                     op=getattr(hvd, args.op), gradient_predivide_factor=args.gradient_predivide_factor,
                                     **more)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

torch.manual_seed(100 + hvd.rank())
data = torch.randn(args.batch_size, 3, 32, 32)
target = torch.LongTensor(args.batch_size).random_() % 100
if args.cuda:
    data, target = data.cuda(), target.cuda()
last_loss = 0.0


def benchmark_step():
    global last_loss
    optimizer.zero_grad()
    output = model(data)
    loss = F.cross_entropy(output, target)
    loss.backward()
    optimizer.step()
    last_loss = loss.item()


def log(s):
    if hvd.rank() == 0:
        print(s, flush=True)


log(f"Batch size: {args.batch_size}, number of CPUs: {hvd.size()}")
for x in range(args.num_iters):
    seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
    loss = hvd.allreduce(torch.tensor(last_loss), name="avg_loss").item()
    log(f"Iter #{x}: loss {loss:.5f}")
    if args.times:
        log(f"Iter #{x}: {args.batch_size * args.num_batches_per_iter * hvd.size() / seconds:.1f} img/sec")
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
spread = hvd.allreduce(weights, op=hvd.Max, name="max") - hvd.allreduce(weights, op=hvd.Min, name="min")
log(f"Weights differ between ranks by at most {spread.max().item():g}; their sum is {weights.double().sum().item():.5f}")
