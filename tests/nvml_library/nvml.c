/*
 * A libnvidia-ml.so.1 that does what a script says, so that the real loader and the real binding run in tests without a GPU.
 *
 * It keeps NVML's own rules, so that a caller that breaks them is seen: calls before init return "uninitialized", a structure of
 * another version is refused, and a handle that was never given out aborts the process. The prototypes are checked by NVIDIA's nvml.h.
 * Default values: H200-like cards; memory total was measured on an H200 SXM in confidential-computing mode, the rest is made up.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define OUT(of, member) {#member, &(of).member, sizeof((of).member)}
#define FIELD_POWER_INSTANT NVML_FI_DEV_POWER_INSTANT

/* An instance is a device too: of a card's places for instances the first and the third are taken, with MIG on. */
enum { INSTANCES = 3 };

struct nvmlDevice_st {
    unsigned int index;
    int given_out;
};

static struct nvmlDevice_st devices[CARDS_LIMIT];
static struct nvmlDevice_st instances[CARDS_LIMIT][INSTANCES];
static int initialized;

static int place_of(nvmlDevice_t device)
{
    nvmlDevice_t first = &instances[0][0];
    return device >= first && device < first + CARDS_LIMIT * INSTANCES ? (int)((device - first) % INSTANCES) : -1;
}

static int index_of(nvmlDevice_t device)
{
    if (place_of(device) >= 0)
        return (int)((device - &instances[0][0]) / INSTANCES);
    if (device < devices || device >= devices + CARDS_LIMIT || !device->given_out) {
        fprintf(stderr, "scripted NVML: a handle that was never given out: %p\n", (void *)device);
        abort();
    }
    return (int)device->index;
}

static nvmlReturn_t start(enum function fn)
{
    struct answer answer = script_answer(fn, NO_DEVICE, NULL, 0);
    initialized += answer.code == 0;
    return (nvmlReturn_t)answer.code;
}

/* One query with fixed values: count, act, write. */
static nvmlReturn_t query(enum function fn, int device, const struct out *outs, size_t count, const void *from, void *to, size_t size)
{
    struct answer answer = script_answer(fn, device, outs, count);
    if (initialized <= 0)
        return NVML_ERROR_UNINITIALIZED;
    if (answer.writes)
        memcpy(to, from, size);
    return (nvmlReturn_t)answer.code;
}

static nvmlReturn_t hand_out_text(enum function fn, int device, const char *text, char *to, unsigned int length)
{
    struct answer answer = script_answer(fn, device, NULL, 0);
    if (initialized <= 0)
        return NVML_ERROR_UNINITIALIZED;
    if (answer.writes)
        snprintf(to, length, "%s", answer.has_text ? answer.text : text);
    return (nvmlReturn_t)answer.code;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return start(FN_nvmlInit_v2);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return start(FN_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void)
{
    struct answer answer = script_answer(FN_nvmlShutdown, NO_DEVICE, NULL, 0);
    if (initialized <= 0)
        return NVML_ERROR_UNINITIALIZED;
    initialized--;
    return (nvmlReturn_t)answer.code;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static char text[256];
    struct answer answer = script_answer(FN_nvmlErrorString, NO_DEVICE, NULL, 0);
    snprintf(text, sizeof text, "%s", answer.has_text ? answer.text : "");
    if (!answer.has_text)
        snprintf(text, sizeof text, "scripted error %d", (int)result);
    return text;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return hand_out_text(FN_nvmlSystemGetDriverVersion, NO_DEVICE, "570.00.00", version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return hand_out_text(FN_nvmlSystemGetNVMLVersion, NO_DEVICE, "12.570.00.00", version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    int version = 12080;
    struct out outs[] = {{"version", &version, sizeof version}};
    return query(FN_nvmlSystemGetCudaDriverVersion_v2, NO_DEVICE, outs, LENGTH(outs), &version, cudaDriverVersion, sizeof version);
}

nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *settings)
{
    nvmlSystemConfComputeSettings_t value = {
        .version = nvmlSystemConfComputeSettings_v1, .environment = NVML_CC_SYSTEM_ENVIRONMENT_PROD, .ccFeature = NVML_CC_SYSTEM_FEATURE_ENABLED};
    struct out outs[] = {OUT(value, environment), OUT(value, ccFeature), OUT(value, devToolsMode), OUT(value, multiGpuMode)};
    if (settings->version != nvmlSystemConfComputeSettings_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return query(FN_nvmlSystemGetConfComputeSettings, NO_DEVICE, outs, LENGTH(outs), &value, settings, sizeof value);
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
    nvmlConfComputeSystemState_t value = {.environment = NVML_CC_SYSTEM_ENVIRONMENT_PROD, .ccFeature = NVML_CC_SYSTEM_FEATURE_ENABLED};
    struct out outs[] = {OUT(value, environment), OUT(value, ccFeature), OUT(value, devToolsMode)};
    return query(FN_nvmlSystemGetConfComputeState, NO_DEVICE, outs, LENGTH(outs), &value, state, sizeof value);
}

nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned int *isAcceptingWork)
{
    unsigned int ready = NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE;
    struct out outs[] = {{"ready", &ready, sizeof ready}};
    return query(FN_nvmlSystemGetConfComputeGpusReadyState, NO_DEVICE, outs, LENGTH(outs), &ready, isAcceptingWork, sizeof ready);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    unsigned int count = script_cards();
    struct out outs[] = {{"count", &count, sizeof count}};
    return query(FN_nvmlDeviceGetCount_v2, NO_DEVICE, outs, LENGTH(outs), &count, deviceCount, sizeof count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (index >= CARDS_LIMIT)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlDevice_t handle = &devices[index];
    nvmlReturn_t code = query(FN_nvmlDeviceGetHandleByIndex_v2, (int)index, NULL, 0, &handle, device, sizeof handle);
    if (code == NVML_SUCCESS && *device == handle) {
        handle->index = index;
        handle->given_out = 1;
    }
    return code;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    char text[64];
    snprintf(text, sizeof text, "GPU-00000000-0000-4000-8000-%012x", (unsigned int)index_of(device));
    return hand_out_text(FN_nvmlDeviceGetUUID, index_of(device), text, uuid, length);
}

/* The older structure: its text takes four digits of the domain, its numbers the whole. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    unsigned int domain = 0, bus = (unsigned int)index_of(device) + 1;
    struct out outs[] = {{"domain", &domain, sizeof domain}, {"bus", &bus, sizeof bus}};
    struct answer answer = script_answer(FN_nvmlDeviceGetPciInfo_v2, index_of(device), outs, LENGTH(outs));
    if (answer.writes) {
        pci->domain = domain;
        pci->bus = bus;
        pci->device = 0;
        snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0", domain & 0xFFFF, bus & 0xFF);
    }
    return (nvmlReturn_t)answer.code;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    char text[32];
    snprintf(text, sizeof text, "00000000:%02X:00.0", (unsigned int)index_of(device) + 1);
    return hand_out_text(FN_nvmlDeviceGetPciInfo_v3, index_of(device), text, pci->busId, sizeof pci->busId);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    nvmlUtilization_t value = {.gpu = 40, .memory = 20};
    struct out outs[] = {OUT(value, gpu), OUT(value, memory)};
    return query(FN_nvmlDeviceGetUtilizationRates, index_of(device), outs, LENGTH(outs), &value, utilization, sizeof value);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_t value = {.total = 150754820096, .free = 150000000000, .used = 754820096};
    struct out outs[] = {OUT(value, total), OUT(value, free), OUT(value, used)};
    return query(FN_nvmlDeviceGetMemoryInfo, index_of(device), outs, LENGTH(outs), &value, memory, sizeof value);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_v2_t value = {
        .version = nvmlMemory_v2, .total = 150754820096, .reserved = 700000000, .free = 150000000000, .used = 54820096};
    struct out outs[] = {OUT(value, total), OUT(value, reserved), OUT(value, free), OUT(value, used)};
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return query(FN_nvmlDeviceGetMemoryInfo_v2, index_of(device), outs, LENGTH(outs), &value, memory, sizeof value);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp)
{
    unsigned int value = 35;
    struct out outs[] = {{"temperature", &value, sizeof value}};
    if (sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    return query(FN_nvmlDeviceGetTemperature, index_of(device), outs, LENGTH(outs), &value, temp, sizeof value);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    nvmlTemperature_t value = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU, .temperature = 36};
    struct out outs[] = {OUT(value, temperature)};
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return query(FN_nvmlDeviceGetTemperatureV, index_of(device), outs, LENGTH(outs), &value, temperature, sizeof value);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    unsigned int value = 79700;
    struct out outs[] = {{"power", &value, sizeof value}};
    return query(FN_nvmlDeviceGetPowerUsage, index_of(device), outs, LENGTH(outs), &value, power, sizeof value);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit)
{
    unsigned int value = 700000;
    struct out outs[] = {{"limit", &value, sizeof value}};
    return query(FN_nvmlDeviceGetEnforcedPowerLimit, index_of(device), outs, LENGTH(outs), &value, limit, sizeof value);
}

/* The field of power says "not supported" unless the script sets `fieldReturn`; instant power is then the value `power`, or `bits`
 * where that is not 0, of the type `type`. The groups' fields return `groupReturn`: what NVLinks report is `linkErrors` for each field
 * and link, what went over them 3 KiB and 2 KiB (received and sent) or `linkData`, the memory's temperature `memoryTemperature`, and the recovery action `action`. Ids over 250 mean another thing to each driver, and end the process. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    unsigned int power = 81000, link_errors = 1, action = 0, memory_temperature = 44;
    unsigned long long link_data = 0;
    nvmlReturn_t field_return = NVML_ERROR_NOT_SUPPORTED, group_return = NVML_SUCCESS, links_return = NVML_SUCCESS;
    unsigned int type = NVML_VALUE_TYPE_UNSIGNED_INT;
    unsigned long long bits = 0;
    struct out outs[] = {
        {"power", &power, sizeof power}, {"fieldReturn", &field_return, sizeof field_return}, {"type", &type, sizeof type},
        {"bits", &bits, sizeof bits}, {"linkErrors", &link_errors, sizeof link_errors}, {"action", &action, sizeof action},
        {"groupReturn", &group_return, sizeof group_return}, {"linksReturn", &links_return, sizeof links_return},
        {"linkData", &link_data, sizeof link_data},
        {"memoryTemperature", &memory_temperature, sizeof memory_temperature}};
    struct answer answer = script_answer(FN_nvmlDeviceGetFieldValues, index_of(device), outs, LENGTH(outs));
    for (int i = 0; i < valuesCount && answer.writes; i++) {
        nvmlFieldValue_t *value = &values[i];
        if (value->fieldId > 250) {
            fprintf(stderr, "scripted NVML: a field that was renumbered: %u\n", value->fieldId);
            abort();
        }
        value->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        if (value->fieldId == FIELD_POWER_INSTANT) {
            value->nvmlReturn = field_return;
            value->valueType = type;
            value->value.ullVal = bits != 0 ? bits : power;
        } else if (value->fieldId >= NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY && value->fieldId <= NVML_FI_DEV_NVLINK_ERROR_DL_CRC) {
            value->nvmlReturn = group_return != NVML_SUCCESS ? group_return : links_return;
            value->value.ullVal = link_errors;
        } else if (value->fieldId == NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS) {
            value->nvmlReturn = group_return;
            value->value.ullVal = link_errors;
        } else if (value->fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
            value->nvmlReturn = group_return;
            value->value.ullVal = action;
        } else if (value->fieldId == NVML_FI_DEV_MEMORY_TEMP) {
            value->nvmlReturn = group_return;
            value->value.ullVal = memory_temperature;
        } else if (
            (value->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX || value->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX) &&
            value->scopeId == UINT_MAX) {
            value->nvmlReturn = group_return;
            value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            value->value.ullVal = link_data != 0 ? link_data : value->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX ? 3 : 2;
        }
    }
    return (nvmlReturn_t)answer.code;
}

/* The ready state that was asked for is the script's to remember: a later get says what its rows say. */
nvmlReturn_t nvmlSystemSetConfComputeGpusReadyState(unsigned int isAcceptingWork)
{
    unsigned int asked = isAcceptingWork;
    if (isAcceptingWork > NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE)
        return NVML_ERROR_INVALID_ARGUMENT;
    return query(FN_nvmlSystemSetConfComputeGpusReadyState, NO_DEVICE, NULL, 0, &isAcceptingWork, &asked, sizeof asked);
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *memInfo)
{
    nvmlConfComputeMemSizeInfo_t value = {.protectedMemSizeKib = 147221504};
    struct out outs[] = {OUT(value, protectedMemSizeKib), OUT(value, unprotectedMemSizeKib)};
    return query(FN_nvmlDeviceGetConfComputeMemSizeInfo, index_of(device), outs, LENGTH(outs), &value, memInfo, sizeof value);
}

/* --- What the groups ask: a healthy card, whose values differ from each other, so that a mixed-up pair is seen ------------------------------------------ */
static nvmlReturn_t one_number(enum function fn, nvmlDevice_t device, unsigned int value, unsigned int *to)
{
    struct out outs[] = {{"value", &value, sizeof value}};
    return query(fn, index_of(device), outs, LENGTH(outs), &value, to, sizeof value);
}

static nvmlReturn_t one_wide_number(enum function fn, nvmlDevice_t device, unsigned long long value, unsigned long long *to)
{
    struct out outs[] = {{"value", &value, sizeof value}};
    return query(fn, index_of(device), outs, LENGTH(outs), &value, to, sizeof value);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    nvmlReturn_t code = one_number(FN_nvmlDeviceGetEccMode, device, NVML_FEATURE_ENABLED, current);
    if (code == NVML_SUCCESS)
        *pending = *current;
    return code;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(
    nvmlDevice_t device, nvmlMemoryErrorType_t errorType, nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
    static const unsigned long long counts[2][2] = {{20, 21}, {0, 11}}; /* by type and counter; a healthy card has none since its start */
    return one_wide_number(FN_nvmlDeviceGetTotalEccErrors, device, counts[errorType == 1][counterType == 1], eccCounts);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(
    nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows, unsigned int *isPending, unsigned int *failureOccurred)
{
    unsigned int values[] = {2, 3, 0, 0};
    struct out outs[] = {
        {"correctable", &values[0], sizeof values[0]}, {"uncorrectable", &values[1], sizeof values[1]},
        {"pending", &values[2], sizeof values[2]}, {"failed", &values[3], sizeof values[3]}};
    unsigned int got[LENGTH(values)] = {*corrRows, *uncRows, *isPending, *failureOccurred};
    nvmlReturn_t code = query(FN_nvmlDeviceGetRemappedRows, index_of(device), outs, LENGTH(outs), values, got, sizeof values);
    *corrRows = got[0];
    *uncRows = got[1];
    *isPending = got[2];
    *failureOccurred = got[3];
    return code;
}

static nvmlReturn_t retired(enum function fn, nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *pageCount)
{
    unsigned int room = *pageCount, there = 4 + cause;
    nvmlReturn_t code = one_number(fn, device, there, pageCount);
    return code == NVML_SUCCESS && *pageCount > room ? NVML_ERROR_INSUFFICIENT_SIZE : code;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(
    nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *pageCount, unsigned long long *addresses)
{
    (void)addresses;
    return retired(FN_nvmlDeviceGetRetiredPages, device, cause, pageCount);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(
    nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *pageCount, unsigned long long *addresses, unsigned long long *timestamps)
{
    (void)addresses;
    (void)timestamps;
    return retired(FN_nvmlDeviceGetRetiredPages_v2, device, cause, pageCount);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *isPending)
{
    return one_number(FN_nvmlDeviceGetRetiredPagesPendingStatus, device, NVML_FEATURE_DISABLED, isPending);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *clocksEventReasons)
{
    return one_wide_number(FN_nvmlDeviceGetCurrentClocksEventReasons, device, nvmlClocksEventReasonSwPowerCap, clocksEventReasons);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *clocksThrottleReasons)
{
    return one_wide_number(FN_nvmlDeviceGetCurrentClocksThrottleReasons, device, nvmlClocksEventReasonGpuIdle, clocksThrottleReasons);
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t perfPolicyType, nvmlViolationTime_t *violTime)
{
    nvmlViolationTime_t value = {.referenceTime = 1, .violationTime = 5000000000 + perfPolicyType};
    struct out outs[] = {{"value", &value.violationTime, sizeof value.violationTime}};
    return query(FN_nvmlDeviceGetViolationStatus, index_of(device), outs, LENGTH(outs), &value, violTime, sizeof value);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *currLinkGen)
{
    return one_number(FN_nvmlDeviceGetCurrPcieLinkGeneration, device, 5, currLinkGen);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *currLinkWidth)
{
    return one_number(FN_nvmlDeviceGetCurrPcieLinkWidth, device, 16, currLinkWidth);
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *value)
{
    return one_number(FN_nvmlDeviceGetPcieReplayCounter, device, 7, value);
}

/* Link 17 is down. */
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)
{
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return one_number(FN_nvmlDeviceGetNvLinkState, device, link < 17, isActive);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *gpuFabricInfo)
{
    nvmlGpuFabricInfoV_t value = {.version = nvmlGpuFabricInfo_v2, .state = NVML_GPU_FABRIC_STATE_COMPLETED};
    struct out outs[] = {{"value", &value.state, sizeof value.state}, OUT(value, status)};
    if (gpuFabricInfo->version != nvmlGpuFabricInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return query(FN_nvmlDeviceGetGpuFabricInfoV, index_of(device), outs, LENGTH(outs), &value, gpuFabricInfo, sizeof value);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    return one_number(FN_nvmlDeviceGetPersistenceMode, device, NVML_FEATURE_ENABLED, mode);
}

/* --- What a card is, may do and does ----------------------------------------------------------------------------------------------------- */
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    const char *text = place_of(device) >= 0 ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200";
    return hand_out_text(FN_nvmlDeviceGetName, index_of(device), text, name, length);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    return hand_out_text(FN_nvmlDeviceGetVbiosVersion, index_of(device), "96.00.BC.00.02", version, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    return hand_out_text(FN_nvmlDeviceGetSerial, index_of(device), "1650000000001", serial, length);
}

/* Ampere, so that thresholds are temperatures. */
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
    return one_number(FN_nvmlDeviceGetArchitecture, device, NVML_DEVICE_ARCH_AMPERE, arch);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    int values[] = {9, 0}, got[] = {*major, *minor};
    struct out outs[] = {{"value", &values[0], sizeof values[0]}, {"minor", &values[1], sizeof values[1]}};
    nvmlReturn_t code = query(FN_nvmlDeviceGetCudaComputeCapability, index_of(device), outs, LENGTH(outs), values, got, sizeof values);
    *major = got[0];
    *minor = got[1];
    return code;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *pVirtualMode)
{
    return one_number(FN_nvmlDeviceGetVirtualizationMode, device, NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH, pVirtualMode);
}

/* Two numbers, of which the script sets the one that is looked at as `value`. */
static nvmlReturn_t two_numbers(
    enum function fn, nvmlDevice_t device, unsigned int first, unsigned int second, unsigned int *to_first, unsigned int *to_second, int looked_at)
{
    unsigned int values[] = {first, second}, got[] = {*to_first, *to_second};
    struct out outs[] = {{"value", &values[looked_at], sizeof values[looked_at]}};
    nvmlReturn_t code = query(fn, index_of(device), outs, LENGTH(outs), values, got, sizeof values);
    *to_first = got[0];
    *to_second = got[1];
    return code;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit, unsigned int *maxLimit)
{
    return two_numbers(FN_nvmlDeviceGetPowerManagementLimitConstraints, device, 200000, 710000, minLimit, maxLimit, 1);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    static const unsigned int clocks[] = {1980, 1981, 3201, 1545};
    return one_number(FN_nvmlDeviceGetMaxClockInfo, device, clocks[type], clock);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    static const unsigned int clocks[] = {1700, 1701, 3200, 1400};
    return one_number(FN_nvmlDeviceGetClockInfo, device, clocks[type], clock);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *maxLinkGen)
{
    return one_number(FN_nvmlDeviceGetMaxPcieLinkGeneration, device, 6, maxLinkGen);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *maxLinkWidth)
{
    return one_number(FN_nvmlDeviceGetMaxPcieLinkWidth, device, 32, maxLinkWidth);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType, unsigned int *temp)
{
    return one_number(FN_nvmlDeviceGetTemperatureThreshold, device, thresholdType == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? 92 : 87, temp);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *pState)
{
    return one_number(FN_nvmlDeviceGetPerformanceState, device, NVML_PSTATE_2, pState);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *samplingPeriodUs)
{
    return two_numbers(FN_nvmlDeviceGetEncoderUtilization, device, 11, 167000, utilization, samplingPeriodUs, 0);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *samplingPeriodUs)
{
    return two_numbers(FN_nvmlDeviceGetDecoderUtilization, device, 12, 167000, utilization, samplingPeriodUs, 0);
}

nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *samplingPeriodUs)
{
    return two_numbers(FN_nvmlDeviceGetJpgUtilization, device, 13, 167000, utilization, samplingPeriodUs, 0);
}

nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *samplingPeriodUs)
{
    return two_numbers(FN_nvmlDeviceGetOfaUtilization, device, 14, 167000, utilization, samplingPeriodUs, 0);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    nvmlBAR1Memory_t value = {.bar1Total = 274877906944, .bar1Free = 274876858368, .bar1Used = 1048576};
    struct out outs[] = {{"value", &value.bar1Total, sizeof value.bar1Total}};
    return query(FN_nvmlDeviceGetBAR1MemoryInfo, index_of(device), outs, LENGTH(outs), &value, bar1Memory, sizeof value);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *marginTempInfo)
{
    nvmlMarginTemperature_t value = {.version = nvmlMarginTemperature_v1, .marginTemperature = -3};
    struct out outs[] = {{"value", &value.marginTemperature, sizeof value.marginTemperature}};
    if (marginTempInfo->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return query(FN_nvmlDeviceGetMarginTemperature, index_of(device), outs, LENGTH(outs), &value, marginTempInfo, sizeof value);
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed)
{
    return fan == 0 ? one_number(FN_nvmlDeviceGetFanSpeed_v2, device, 33, speed) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    return one_wide_number(FN_nvmlDeviceGetTotalEnergyConsumption, device, 123456789, energy);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos)
{
    unsigned int room = *infoCount, count = 2, pid = 4242;
    struct out outs[] = {{"value", &count, sizeof count}, {"pid", &pid, sizeof pid}};
    struct answer answer = script_answer(FN_nvmlDeviceGetComputeRunningProcesses_v3, index_of(device), outs, LENGTH(outs));
    if (initialized <= 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!answer.writes)
        return (nvmlReturn_t)answer.code;
    *infoCount = count;
    for (unsigned int i = 0; i < count && i < room; i++) {
        infos[i].pid = pid + i;
        infos[i].usedGpuMemory = i == 0 ? 1073741824 : (unsigned long long)NVML_VALUE_NOT_AVAILABLE;
    }
    return count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_t value = {.total = 150754820096, .free = 150753771520, .used = 1048576};
    struct out outs[] = {{"value", &value.total, sizeof value.total}, OUT(value, used)};
    return query(FN_nvmlDeviceGetConfComputeProtectedMemoryUsage, index_of(device), outs, LENGTH(outs), &value, memory, sizeof value);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    return two_numbers(FN_nvmlDeviceGetMigMode, device, 0, 1, currentMode, pendingMode, 0);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
    return one_number(FN_nvmlDeviceGetPcieThroughput, device, counter == NVML_PCIE_UTIL_RX_BYTES ? 5 : 4, value);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    return one_number(FN_nvmlDeviceGetMaxMigDeviceCount, device, INSTANCES, count);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    nvmlDevice_t handle = index < INSTANCES ? &instances[index_of(device)][index] : NULL;
    nvmlReturn_t code = query(FN_nvmlDeviceGetMigDeviceHandleByIndex, index_of(device), NULL, 0, &handle, migDevice, sizeof handle);
    return code == NVML_SUCCESS && index == 1 ? NVML_ERROR_NOT_FOUND : code;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return one_number(FN_nvmlDeviceGetGpuInstanceId, device, (unsigned int)place_of(device) + 7, id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return one_number(FN_nvmlDeviceGetComputeInstanceId, device, (unsigned int)place_of(device), id);
}
