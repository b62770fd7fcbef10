/*
 * The few declarations of NVML that sample.c needs, so that a machine without NVIDIA's development files can compile it. Layouts are those
 * of nvml.h (CUDA 12 and 13); a test compares every size and offset with NVIDIA's own header.
 */
#ifndef NVML_FEW_H
#define NVML_FEW_H

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum { NVML_SUCCESS = 0, NVML_TEMPERATURE_GPU = 0, NVML_DEVICE_UUID_V2_BUFFER_SIZE = 96 };

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int version, environment, ccFeature, devToolsMode, multiGpuMode;
} nvmlSystemConfComputeSettings_t;

/* A structure's version: its size, and its number in the topmost byte. */
#define VERSIONED(type, number) ((unsigned int)(sizeof(type) | ((unsigned int)(number) << 24)))
#define nvmlMemory_v2 VERSIONED(nvmlMemory_v2_t, 2)
#define nvmlSystemConfComputeSettings_v1 VERSIONED(nvmlSystemConfComputeSettings_t, 1)

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t *);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t, int, unsigned int *);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *);
nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned int *);

#endif
