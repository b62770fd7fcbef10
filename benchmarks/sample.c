/*
 * The yardstick of benchmarks/sample.py: the same work as the collector, in C. It loads the library that it is given, asks every question of
 * the contract for every card, prints one line of JSON and ends NVML. It judges nothing, which only makes it faster.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>

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
        fprintf(stderr, "sample: %s: %d\n", what, (int)code);
        exit(1);
    }
}

static void print_card(unsigned int index)
{
    nvmlDevice_t device;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    nvmlPciInfo_t pci;
    nvmlUtilization_t rates;
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    unsigned int celsius, milliwatts, limit;
    check(CALL(nvmlDeviceGetHandleByIndex_v2)(index, &device), "handle");
    check(CALL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid), "uuid");
    check(CALL(nvmlDeviceGetPciInfo_v3)(device, &pci), "pci");
    check(CALL(nvmlDeviceGetUtilizationRates)(device, &rates), "utilization");
    check(CALL(nvmlDeviceGetMemoryInfo_v2)(device, &memory), "memory");
    check(CALL(nvmlDeviceGetTemperature)(device, NVML_TEMPERATURE_GPU, &celsius), "temperature");
    check(CALL(nvmlDeviceGetPowerUsage)(device, &milliwatts), "power");
    check(CALL(nvmlDeviceGetEnforcedPowerLimit)(device, &limit), "limit");
    printf("%s{\"index\":%u,\"uuid\":\"%s\",\"pci_bus_id\":\"%s\",\"utilization_gpu\":%u,\"utilization_memory\":%u,"
           "\"memory_total_bytes\":%llu,\"memory_used_bytes\":%llu,\"memory_free_bytes\":%llu,\"temperature_c\":%u,"
           "\"power_usage_mw\":%u,\"errors\":[]}",
           index == 0 ? "" : ",", index, uuid, pci.busId, rates.gpu, rates.memory, memory.total, memory.used, memory.free, celsius,
           milliwatts);
}

int main(int argc, char **argv)
{
    if (argc != 2 || (library = dlopen(argv[1], RTLD_NOW)) == NULL) {
        fprintf(stderr, "sample: needs a library: %s\n", argc == 2 ? dlerror() : "sample FILE");
        return 2;
    }
    nvmlSystemConfComputeSettings_t settings = {.version = nvmlSystemConfComputeSettings_v1};
    unsigned int count, ready;
    check(CALL(nvmlInit_v2)(), "init");
    check(CALL(nvmlDeviceGetCount_v2)(&count), "count");
    printf("{\"gpus\":[");
    for (unsigned int index = 0; index < count; index++)
        print_card(index);
    check(CALL(nvmlSystemGetConfComputeSettings)(&settings), "settings");
    check(CALL(nvmlSystemGetConfComputeGpusReadyState)(&ready), "ready");
    printf("],\"error\":\"\",\"cc_ready\":%s,\"cc_enabled\":%s,\"cc_devtools\":%s,\"sample_age_ms\":null}\n", ready ? "true" : "false",
           settings.ccFeature ? "true" : "false", settings.devToolsMode ? "true" : "false");
    check(CALL(nvmlShutdown)(), "shutdown");
    return 0;
}
