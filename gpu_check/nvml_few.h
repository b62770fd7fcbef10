/*
 * The few declarations of NVML that the C program needs, so that a machine without NVIDIA's development files can compile it. Layouts are
 * those of nvml.h (CUDA 12 and 13); a test compares every size and offset with NVIDIA's own header.
 */
#ifndef NVML_FEW_H
#define NVML_FEW_H

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_DEPRECATED = 26,
};
enum { NVML_TEMPERATURE_GPU = 0, NVML_DEVICE_UUID_V2_BUFFER_SIZE = 96, NVML_NVLINK_MAX_LINKS = 18, NVML_DEVICE_ARCH_ADA = 8 };

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int version, sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned int version;
    int marginTemperature;
} nvmlMarginTemperature_v1_t;

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned long long referenceTime, violationTime;
} nvmlViolationTime_t;

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef union {
    double dVal;
    int siVal;
    unsigned int uiVal;
    unsigned long long ullVal;
    unsigned short usVal;
} nvmlValue_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    unsigned int environment, ccFeature, devToolsMode;
} nvmlConfComputeSystemState_t;

typedef struct {
    unsigned int version, environment, ccFeature, devToolsMode, multiGpuMode;
} nvmlSystemConfComputeSettings_t;

/* A structure's version: its size, and its number in the topmost byte. */
#define VERSIONED(type, number) ((unsigned int)(sizeof(type) | ((unsigned int)(number) << 24)))
#define nvmlMemory_v2 VERSIONED(nvmlMemory_v2_t, 2)
#define nvmlTemperature_v1 VERSIONED(nvmlTemperature_v1_t, 1)
#define nvmlMarginTemperature_v1 VERSIONED(nvmlMarginTemperature_v1_t, 1)
#define nvmlGpuFabricInfo_v2 VERSIONED(nvmlGpuFabricInfo_v2_t, 2)
#define nvmlSystemConfComputeSettings_v1 VERSIONED(nvmlSystemConfComputeSettings_t, 1)

/* The shapes of NVML's functions; enumerations are int there. Functions are called by name and shape (ASK in sample.h). */
typedef nvmlReturn_t of_nothing(void);
typedef nvmlReturn_t of_system(void *);
typedef nvmlReturn_t of_system_text(char *, unsigned int);
typedef nvmlReturn_t of_device(nvmlDevice_t, void *);
typedef nvmlReturn_t of_device_text(nvmlDevice_t, char *, unsigned int);
typedef nvmlReturn_t one_given(nvmlDevice_t, unsigned int, void *);
typedef nvmlReturn_t two_given(nvmlDevice_t, unsigned int, unsigned int, void *);
typedef nvmlReturn_t two_written(nvmlDevice_t, unsigned int *, unsigned int *);
typedef nvmlReturn_t four_written(nvmlDevice_t, unsigned int *, unsigned int *, unsigned int *, unsigned int *);

#endif
