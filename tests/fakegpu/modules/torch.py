# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as probe7_torch.py uses, over the fake driver: a tensor in chunks of 20 MiB in one reservation."""
import ctypes
import os
import types

CHUNK = 20 << 20
float32 = "float32"
assert "expandable_segments:True" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location),
                ("windows", ctypes.c_void_p), ("flags", ctypes.c_uint64)]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class _Tensor:
    def __init__(self, words, value):
        cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        context, base, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        count = -(-words * 4 // CHUNK)
        calls = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
                 cuda.cuMemAddressReserve(ctypes.byref(base), ctypes.c_size_t(count * CHUNK), ctypes.c_size_t(0),
                                          ctypes.c_uint64(0), ctypes.c_uint64(0))]
        self._base = base.value
        for i in range(count):
            at = ctypes.c_uint64(self._base + i * CHUNK)
            calls += [cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(CHUNK),
                                       ctypes.byref(_Properties(1, 1, _Location(1, 0))), ctypes.c_uint64(0)),
                      cuda.cuMemMap(at, ctypes.c_size_t(CHUNK), ctypes.c_size_t(0), handle, ctypes.c_uint64(0)),
                      cuda.cuMemRelease(handle),
                      cuda.cuMemSetAccess(at, ctypes.c_size_t(CHUNK), ctypes.byref(_Access(_Location(1, 0), 3)),
                                          ctypes.c_size_t(1))]
        assert not any(calls), calls
        data = (ctypes.c_float * words).from_address(self._base)
        ctypes.memmove(data, bytes(ctypes.c_float(value)) * words, words * 4)

    def data_ptr(self):
        return self._base


def full(shape, value, dtype, device):
    assert dtype == float32 and device == "cuda:0"
    return _Tensor(shape[0], value)


cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
