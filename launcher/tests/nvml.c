/* As much of NVML as a plan asks, over two H200 at PCI buses 5 and 4, listed in that order and joined by NVLink. Part of
   tests/gpus.rs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char name[32]; } Pci;

static const char *const uuids[] = {"GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"};

static int place(void *device) { return (int)(intptr_t)device - 1; }

/* While the file that NVML_TAKEN names is there somebody has all memory; it is gone after the first look. */
static int taken;

int nvmlInit_v2(void) {
    const char *file = getenv("NVML_TAKEN");
    taken = file && remove(file) == 0;
    return 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { strncpy(version, "580.82.07", length); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(intptr_t)(index + 1); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)(intptr_t)(strcmp(uuid, uuids[0]) == 0 ? 1 : 2);
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "NVIDIA H200", length); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { strncpy(uuid, uuids[place(device)], length); return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    memory->total = 140ULL << 30;
    memory->free = taken ? 0 : (139ULL - place(device)) << 30;
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 5 - place(device);
    return 0;
}
int nvmlDeviceGetNumGpuCores(void *device, unsigned *cores) { *cores = 16896; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *mhz) { *mhz = 1980; return 0; }
int nvmlDeviceGetP2PStatus(void *a, void *b, int capability, int *status) { *status = capability == 2 ? 0 : 6; return 0; }
