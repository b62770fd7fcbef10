/*
 * The yardstick of the collector: the same work in C. It loads the library that it is given, asks every question of the contract for every
 * card, base values first and then the groups that are named, prints one line of JSON and ends NVML. `cost_us` in it says what each group
 * took over all cards, [wall, CPU] in microseconds. It judges nothing, which only makes it faster; what a driver does not support is null.
 */
#define _GNU_SOURCE
#include "sample.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CARDS_LIMIT = 1024, COSTS_LIMIT = 16, POWER_INSTANT = 186 };

static void *library;
static struct card cards[CARDS_LIMIT];

void *find(const char *name)
{
    return dlsym(library, name);
}

static void check(nvmlReturn_t code, const char *what)
{
    if (code != NVML_SUCCESS) {
        fprintf(stderr, "sample: %s: %d\n", what, code);
        exit(1);
    }
}

/* --- What each part of the sample took: from one call of spent() to the next ------------------------------------------------------------ */
static struct cost {
    const char *name;
    long long wall_ns, cpu_ns;
} costs[COSTS_LIMIT];

static long long now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void spent(const char *name)
{
    static long long last_wall, last_cpu;
    long long wall = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (struct cost *cost = costs; name != NULL && cost < costs + COSTS_LIMIT; cost++) {
        if (cost->name != NULL && strcmp(cost->name, name) != 0)
            continue;
        cost->name = name;
        cost->wall_ns += wall - last_wall;
        cost->cpu_ns += cpu - last_cpu;
        break;
    }
    last_wall = wall;
    last_cpu = cpu;
}

/* --- The machine, and the base values ---------------------------------------------------------------------------------------------------- */
static const char *truth(nvmlReturn_t code, unsigned int value)
{
    return code != NVML_SUCCESS ? "null" : value ? "true" : "false";
}

static void ask_machine(void)
{
    nvmlSystemConfComputeSettings_t settings = {.version = nvmlSystemConfComputeSettings_v1};
    nvmlConfComputeSystemState_t state;
    unsigned int ready = 0;
    int cuda = 0;
    char text[80], number[16];
    nvmlReturn_t code = ASK(of_system, "nvmlSystemGetConfComputeSettings", &settings);
    if (code != NVML_SUCCESS && (code = ASK(of_system, "nvmlSystemGetConfComputeState", &state)) == NVML_SUCCESS) {
        settings.ccFeature = state.ccFeature;
        settings.devToolsMode = state.devToolsMode;
    }
    printf("\"cc_enabled\":%s,\"cc_devtools\":%s", truth(code, settings.ccFeature), truth(code, settings.devToolsMode));
    code = ASK(of_system, "nvmlSystemGetConfComputeGpusReadyState", &ready);
    printf(",\"cc_ready\":%s", truth(code, ready));
    print_text(stdout, "driver_version", ASK(of_system_text, "nvmlSystemGetDriverVersion", text, sizeof text), text);
    code = ASK(of_system, "nvmlSystemGetCudaDriverVersion_v2", &cuda);
    snprintf(number, sizeof number, "%d.%d", cuda / 1000 % 1000, cuda % 1000 / 10);
    print_text(stdout, "cuda_driver_version", code, number);
    print_text(stdout, "nvml_version", ASK(of_system_text, "nvmlSystemGetNVMLVersion", text, sizeof text), text);
}

static void open_card(struct card *card, unsigned int index)
{
    typedef nvmlReturn_t shape(unsigned int, nvmlDevice_t *);
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    nvmlPciInfo_t pci;
    card->memory_code = card->power_limit_code = card->architecture_code = card->mig_mode_code = -1;
    card->out = open_memstream(&card->text, &card->length);
    fprintf(card->out, "{\"index\":%u", index);
    card->opened = ASK(shape, "nvmlDeviceGetHandleByIndex_v2", index, &card->device) == NVML_SUCCESS;
    if (!card->opened)
        return;
    print_text(card->out, "uuid", ASK(of_device_text, "nvmlDeviceGetUUID", card->device, uuid, sizeof uuid), uuid);
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetPciInfo_v3", card->device, &pci);
    if (code != NVML_SUCCESS && (code = ASK(of_device, "nvmlDeviceGetPciInfo_v2", card->device, &pci)) == NVML_SUCCESS)
        snprintf(pci.busId, sizeof pci.busId, "%08X:%02X:%02X.0", pci.domain, pci.bus & 0xFF, pci.device & 0xFF);
    print_text(card->out, "pci_bus_id", code, pci.busId);
}

static nvmlReturn_t temperature(nvmlDevice_t device, int *celsius)
{
    nvmlTemperature_v1_t newer = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU};
    nvmlReturn_t code = ASK(one_given, "nvmlDeviceGetTemperature", device, NVML_TEMPERATURE_GPU, celsius);
    if (code == NVML_ERROR_FUNCTION_NOT_FOUND || code == NVML_ERROR_DEPRECATED) {
        code = ASK(of_device, "nvmlDeviceGetTemperatureV", device, &newer);
        *celsius = newer.temperature;
    }
    return code;
}

static nvmlReturn_t power(nvmlDevice_t device, long long *milliwatts)
{
    unsigned int usage = 0;
    nvmlFieldValue_t instant = {.fieldId = POWER_INSTANT};
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetPowerUsage", device, &usage);
    *milliwatts = usage;
    if (code == NVML_SUCCESS || field_values(device, &instant, 1) != NVML_SUCCESS)
        return code;
    return field_number(&instant, milliwatts);
}

static void ask_base(struct card *card)
{
    nvmlUtilization_t rates = {0};
    int celsius = 0;
    long long milliwatts = 0;
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetUtilizationRates", card->device, &rates);
    print_number(card->out, "utilization_gpu", code, rates.gpu);
    print_number(card->out, "utilization_memory", code, rates.memory);
    code = memory_of(card->device, &card->memory, &card->memory_code);
    print_number(card->out, "memory_total_bytes", code, (long long)card->memory.total);
    print_number(card->out, "memory_used_bytes", code, (long long)card->memory.used);
    print_number(card->out, "memory_free_bytes", code, (long long)card->memory.free);
    code = temperature(card->device, &celsius);
    print_number(card->out, "temperature_c", code, celsius);
    code = power(card->device, &milliwatts);
    print_number(card->out, "power_usage_mw", code, milliwatts);
    if (code == NVML_SUCCESS)
        power_limit(card);
}

int main(int argc, char **argv)
{
    unsigned int count;
    spent(NULL);
    if (argc < 2 || (library = dlopen(argv[1], RTLD_NOW)) == NULL) {
        fprintf(stderr, "sample: needs a library: %s\n", argc > 1 ? dlerror() : "sample FILE [GROUP...]");
        return 2;
    }
    check(ASK(of_nothing, "nvmlInit_v2"), "init");
    check(ASK(of_system, "nvmlDeviceGetCount_v2", &count), "count");
    count = count < CARDS_LIMIT ? count : CARDS_LIMIT;
    spent("start");
    printf("{");
    ask_machine();
    spent("machine");
    for (unsigned int index = 0; index < count; index++)
        open_card(&cards[index], index);
    spent("open");
    for (struct card *card = cards; card < cards + count; card++)
        if (card->opened)
            ask_base(card);
    spent("base");
    for (struct card *card = cards; card < cards + count; card++)
        for (char **group = argv + 2; card->opened && *group != NULL; group++) {
            if (!ask_group(card, *group)) {
                fprintf(stderr, "sample: not a group: %s\n", *group);
                return 2;
            }
            spent(*group);
        }
    printf(",\"gpus\":[");
    for (struct card *card = cards; card < cards + count; card++) {
        fclose(card->out);
        printf("%s%s}", card == cards ? "" : ",", card->text);
    }
    printf("],\"cost_us\":{");
    for (struct cost *cost = costs; cost < costs + COSTS_LIMIT && cost->name != NULL; cost++)
        printf("%s\"%s\":[%lld,%lld]", cost == costs ? "" : ",", cost->name, cost->wall_ns / 1000, cost->cpu_ns / 1000);
    printf("}}\n");
    check(ASK(of_nothing, "nvmlShutdown"), "shutdown");
    return 0;
}
