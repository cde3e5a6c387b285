/* SPDX-License-Identifier: Apache-2.0
 * What the fake libraries are told by the environment.
 *
 *   FAKEGPU="devices=4;nvlink=all"       what there is: name=value, with ';' between
 *   FAKEGPU_FAULT="hvdd-gpu/sticky@3"    what goes wrong: [PROGRAM/]what[@n], with ';' between. Only in programs of that name.
 *
 *   FAKEGPU_NODE="node=2"                before FAKEGPU, where a launcher carries that variable to another node
 *
 * | FAKEGPU | otherwise | |
 * |---|---|---|
 * | devices=N | 1 | devices of the machine, 16 at most. CUDA_VISIBLE_DEVICES is heeded, numbers and UUIDs |
 * | node=N | 0 | goes into the UUIDs, so that devices of two fake nodes differ |
 * | named=N | 0 | CUDA says the N-th device's UUID of the first one: a trainer that lies |
 * | memory=MIB | 1000 | of each device, for each process |
 * | taken=DEVICE:MIB | none | what others have of a device, physical number |
 * | used=MIB | 0 | of each device, as NVML says |
 * | process=PID:MIB | none | a process that NVML sees on each device, and what it has there |
 * | cc=MAJOR.MINOR | 9.0 | compute capability |
 * | version=N, nccl=N | 13000, 22809 | of the driver, of NCCL |
 * | nvlink=all, none, A-B+C-D | all | which devices have NVLink between them, and so peer access |
 * | multicast=on | | devices can multicast, as with an NVSwitch: NCCL has NVLS then |
 * | mig=N, instances=N | none, 2 | the device in MIG mode, and its instances, whose physical numbers follow those of all devices |
 * | nvml-holes=SEED | none | every fourth answer of NVML, as the seed has it, is NOT_SUPPORTED |
 * | sync=strict, or alloc, open, unmap, load | | which calls wait for the work of all streams of the process beside close, free
 *   and unregister, which do: all that may, or one kind; open is also cuMemMap, cuMemSetAccess and an import of a pool or of its
 *   memory, as no GPU has been asked about these; load is also a first launch (section 2.4) |
 * | sync=none | | none waits, not even close, free and unregister (P2's other answer) |
 * | handles=new | | the bytes of handles never repeat (P2's other answer) |
 * | free=keeps | | freeing memory that another process has open is no fault of the test (P3's expected answer) |
 * | ranges=block | | the address range of an opened handle is that of a block around it (P2) |
 * | connect=first | | the first op of a communicator, or its group, waits in its call for all ranks (NCCL 2.22) |
 * | counts=PREFIX | nowhere | where a process counts what it asks for (counts.h) |
 * | meet=FOLDER | /dev/shm | where ranks of NCCL meet; one that all fake nodes see |
 *
 * | FAKEGPU_FAULT | |
 * |---|---|
 * | sticky@n | the n-th launch is an illegal address: 700 from then on |
 * | no-memory@n | the n-th allocation or import and all later ones: out of memory |
 * | slow-open@ms, slow-join@ms | opening a handle, joining a communicator takes so long |
 * | slow-init@ms | cuInit takes so long |
 * | broken-open@n | the n-th one finds the context broken: 700 |
 * | broken-clear@n | the n-th memset does |
 * | delay@us | everything in a stream takes so much longer |
 * | deaf | no store of a CPU releases a stream that waits in host memory (P4's other answer) |
 * | no-memops | no 64-bit memory operations of streams |
 * | no-fabric | no device has fabric handles |
 * | no-imex@n | the n-th use of a fabric handle, in a creation, export or import, and all later ones: no IMEX channel, 800 |
 * | no-register@n | the n-th registration of memory of the host and all later ones: out of memory |
 * | old-driver | it cannot read kernels: 200 |
 * | denied@n | the n-th device cannot be opened: NVML knows it, CUDA does not show it |
 * | exporter-exit@n | the process is killed at its first call after the n-th handle was exported |
 * | wrong-reduce | the probes' kernels add a wrong element |
 * | connections@n | a process with another CUDA_DEVICE_MAX_CONNECTIONS is at fault (P8) |
 * | nccl-register@n | the n-th registration of memory with NCCL fails |
 * | nccl-join-fails@n | a process' first join of a communicator on the n-th device fails, and the others wait for it |
 * | nccl-join-hang@n, nccl-hang@n, nccl-error@n | the n-th communicator is never joined; the n-th op never ends, and for the
 *   last ncclCommGetAsyncError tells of an error |
 *
 * All are read once in a process. Any thread. */
#ifndef FAKEGPU_SETTINGS_H
#define FAKEGPU_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#define FAKE_DEVICES 16

/* The value of a name in FAKEGPU, or NULL. */
const char *fake_setting(const char *name);
int fake_number(const char *name, int otherwise);
bool fake_says(const char *name, const char *value);
/* The fault's n, 1 where it has none; 0: this program has not that fault. */
int fake_fault(const char *what);
/* Counts a call where the fault may happen: whether this one is the n-th. */
bool fake_fault_now(const char *what);
/* The same from the n-th on. */
bool fake_fault_from_now(const char *what);

/* Devices: physical numbers, which all processes share; then instances of the device in MIG mode. */
int fake_device_total(void);
int fake_instance_total(void);
/* The device that an instance is of; a device itself. */
int fake_device_of(int physical);
bool fake_device_denied(int physical);
/* "GPU-…", or "MIG-…" of an instance. */
void fake_device_name(int physical, char *text_p, size_t size);
/* Of "1" or a UUID, as CUDA_VISIBLE_DEVICES has them, with `length` bytes; -1: there is none. */
int fake_device_named(const char *name, size_t length);
bool fake_linked(int one, int other);
void fake_device_uuid(int physical, unsigned char bytes_p[16]);
/* All of it, in bytes; and what others have taken. */
size_t fake_device_memory(void);
size_t fake_device_taken(int physical);

/* The test, or what it tests, has broken a rule: says which, and aborts. */
_Noreturn __attribute__((format(printf, 1, 2))) void fake_blame(const char *format, ...);

#endif
