/*
 * The yardstick of the collector: the same work in C. It loads the library that it is given, asks every question of the contract for every
 * card, prints one line of JSON and ends NVML. It judges nothing, which only makes it faster; what a driver does not support is null.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_few.h"

#define CALL(name) ((__typeof__(&name))find(#name))

static void *library;

static void *find(const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "sample: %s\n", dlerror());
        exit(1);
    }
    return function;
}

static void check(nvmlReturn_t code, const char *what)
{
    if (code != NVML_SUCCESS) {
        fprintf(stderr, "sample: %s: %d\n", what, code);
        exit(1);
    }
}

static void print_number(const char *name, nvmlReturn_t code, unsigned long long value)
{
    if (code == NVML_SUCCESS)
        printf(",\"%s\":%llu", name, value);
    else
        printf(",\"%s\":null", name);
}

static void print_card(unsigned int index)
{
    nvmlDevice_t device;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    nvmlPciInfo_t pci;
    nvmlUtilization_t rates;
    nvmlMemory_v2_t memory;
    unsigned int celsius, milliwatts, limit;
    nvmlReturn_t code;
    memset(&memory, 0, sizeof memory);
    memory.version = nvmlMemory_v2;
    check(CALL(nvmlDeviceGetHandleByIndex_v2)(index, &device), "handle");
    check(CALL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid), "uuid");
    check(CALL(nvmlDeviceGetPciInfo_v3)(device, &pci), "pci");
    printf("%s{\"index\":%u,\"uuid\":\"%s\",\"pci_bus_id\":\"%s\"", index == 0 ? "" : ",", index, uuid, pci.busId);
    code = CALL(nvmlDeviceGetUtilizationRates)(device, &rates);
    print_number("utilization_gpu", code, rates.gpu);
    print_number("utilization_memory", code, rates.memory);
    code = CALL(nvmlDeviceGetMemoryInfo_v2)(device, &memory);
    print_number("memory_total_bytes", code, memory.total);
    print_number("memory_used_bytes", code, memory.used);
    print_number("memory_free_bytes", code, memory.free);
    print_number("temperature_c", CALL(nvmlDeviceGetTemperature)(device, NVML_TEMPERATURE_GPU, &celsius), celsius);
    print_number("power_usage_mw", CALL(nvmlDeviceGetPowerUsage)(device, &milliwatts), milliwatts);
    CALL(nvmlDeviceGetEnforcedPowerLimit)(device, &limit);
    printf(",\"errors\":[]}");
}

static const char *truth(nvmlReturn_t code, unsigned int value)
{
    return code != NVML_SUCCESS ? "null" : value ? "true" : "false";
}

int main(int argc, char **argv)
{
    if (argc != 2 || (library = dlopen(argv[1], RTLD_NOW)) == NULL) {
        fprintf(stderr, "sample: needs a library: %s\n", argc == 2 ? dlerror() : "sample FILE");
        return 2;
    }
    nvmlSystemConfComputeSettings_t settings;
    unsigned int count, ready = 0;
    memset(&settings, 0, sizeof settings);
    settings.version = nvmlSystemConfComputeSettings_v1;
    check(CALL(nvmlInit_v2)(), "init");
    check(CALL(nvmlDeviceGetCount_v2)(&count), "count");
    printf("{\"gpus\":[");
    for (unsigned int index = 0; index < count; index++)
        print_card(index);
    nvmlReturn_t of_settings = CALL(nvmlSystemGetConfComputeSettings)(&settings);
    nvmlReturn_t of_ready = CALL(nvmlSystemGetConfComputeGpusReadyState)(&ready);
    printf("],\"error\":\"\",\"cc_ready\":%s,\"cc_enabled\":%s,\"cc_devtools\":%s,\"sample_age_ms\":null}\n", truth(of_ready, ready),
           truth(of_settings, settings.ccFeature), truth(of_settings, settings.devToolsMode));
    check(CALL(nvmlShutdown)(), "shutdown");
    return 0;
}
