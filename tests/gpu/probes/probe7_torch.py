# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of probe 7: a tensor in an expandable segment, its physical chunks sent as descriptors.

Messages have the layout of struct probe_msg (probe.h): verb[16], a[8] of uint64, bytes[256]."""
import argparse
import ctypes
import os
import socket
import struct
import sys

CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
CU_POINTER_ATTRIBUTE_BUFFER_ID = 7
TENSOR_BYTES = 64 << 20


def say(link, verb, numbers=(), text="", descriptor=None):
    numbers = list(numbers) + [0] * (8 - len(numbers))
    message = struct.pack("16s8Q256s", verb.encode(), *numbers, text.encode()[:255])
    socket.send_fds(link, [message], [descriptor] if descriptor is not None else [])


def check(result, what):
    if result != 0:
        raise RuntimeError(f"{what}: CUresult {result}")


def chunks(cuda, begin, end):
    """(address, bytes) of each mapping that holds a part of [begin, end)."""
    at = begin
    while at < end:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        check(cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(at)),
              "cuMemGetAddressRange")
        yield base.value, size.value
        at = base.value + size.value


def offer(link, device):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        return say(link, "none", text=f"not tried: {error}")
    if not torch.cuda.is_available():
        return say(link, "none", text="not tried: PyTorch sees no CUDA")
    cuda = ctypes.CDLL("libcuda.so.1")
    tensor = torch.full((TENSOR_BYTES // 4,), 7.25, dtype=torch.float32, device=f"cuda:{device}")
    torch.cuda.synchronize()
    begin = tensor.data_ptr()
    first = None
    for base, size in chunks(cuda, begin, begin + TENSOR_BYTES):
        first = base if first is None else first
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int(-1)
        check(cuda.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(base)), "cuMemRetainAllocationHandle")
        check(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                ctypes.c_uint64(0)), "cuMemExportToShareableHandle")
        number = ctypes.c_uint64()
        check(cuda.cuPointerGetAttribute(ctypes.byref(number), CU_POINTER_ATTRIBUTE_BUFFER_ID, ctypes.c_uint64(base)),
              "cuPointerGetAttribute")
        say(link, "chunk", [size, number.value], descriptor=descriptor.value)
        os.close(descriptor.value)
        check(cuda.cuMemRelease(handle), "cuMemRelease")
    say(link, "tensor", [begin - first, TENSOR_BYTES])
    link.settimeout(20)
    link.recv(1024)  # until it is released; the tensor lives as long
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True)
    options = parser.parse_args()
    with socket.socket(fileno=options.fd) as link:
        try:
            offer(link, options.device)
        except (RuntimeError, OSError) as error:
            say(link, "none", text=f"failed: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
