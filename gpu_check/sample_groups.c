/*
 * What the groups ask of a card, the same calls as the collector's (guest_service/collector/nvml_groups.py and nvml_lists.py; health is in
 * sample_health.c). A test counts the calls of both sides by function.
 */
#include "sample.h"

#include <limits.h>
#include <string.h>

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };
enum { MEMORY_TEMPERATURE = 82, NVLINK_SENT = 138, NVLINK_RECEIVED = 139 };
enum { INSTANCES_LIMIT = 64, PROCESSES_LIMIT = 1024, NAME_BYTES = 96 };

/* --- identity, serial, limits --------------------------------------------------------------------------------------------------------------- */
static nvmlReturn_t architecture(struct card *card)
{
    if (card->architecture_code == -1)
        card->architecture_code = ASK(of_device, "nvmlDeviceGetArchitecture", card->device, &card->architecture);
    return card->architecture_code;
}

static void identity(struct card *card)
{
    unsigned int major = 0, minor = 0;
    char capability[24];
    text(card, "name", "nvmlDeviceGetName", NAME_BYTES);
    nvmlReturn_t code = architecture(card);
    print_number(card->out, "architecture", code, card->architecture);
    code = ASK(two_written, "nvmlDeviceGetCudaComputeCapability", card->device, &major, &minor);
    snprintf(capability, sizeof capability, "%u.%u", major, minor);
    print_text(card->out, "compute_capability", code, capability);
    text(card, "vbios_version", "nvmlDeviceGetVbiosVersion", 32);
    number(card, "virtualization_mode", "nvmlDeviceGetVirtualizationMode");
}

static void serial(struct card *card)
{
    text(card, "serial", "nvmlDeviceGetSerial", 30);
}

/* From Ada on a threshold is no temperature any more, and is not asked. */
static void threshold(struct card *card, const char *name, unsigned int kind)
{
    if (architecture(card) == NVML_SUCCESS && card->architecture >= NVML_DEVICE_ARCH_ADA && card->architecture != UINT_MAX)
        print_number(card->out, name, NVML_ERROR_NOT_SUPPORTED, 0);
    else
        number_of(card, name, "nvmlDeviceGetTemperatureThreshold", kind);
}

static void limits(struct card *card)
{
    nvmlReturn_t code = power_limit(card);
    print_number(card->out, "power_limit_mw", code, card->power_limit);
    number_at(card, "power_limit_max_mw", "nvmlDeviceGetPowerManagementLimitConstraints", 1);
    number_of(card, "clock_graphics_max_mhz", "nvmlDeviceGetMaxClockInfo", CLOCK_GRAPHICS);
    number_of(card, "clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", CLOCK_SM);
    number_of(card, "clock_memory_max_mhz", "nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY);
    number(card, "pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration");
    number(card, "pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth");
    threshold(card, "temperature_slowdown_c", 1);
    threshold(card, "temperature_shutdown_c", 0);
}

/* --- activity ------------------------------------------------------------------------------------------------------------------------------- */
typedef nvmlReturn_t process_shape(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);

static void activity(struct card *card)
{
    nvmlBAR1Memory_t bar1 = {0};
    nvmlMarginTemperature_v1_t margin = {.version = nvmlMarginTemperature_v1};
    unsigned int processes = 0;
    number(card, "performance_state", "nvmlDeviceGetPerformanceState");
    number_of(card, "clock_graphics_mhz", "nvmlDeviceGetClockInfo", CLOCK_GRAPHICS);
    number_of(card, "clock_sm_mhz", "nvmlDeviceGetClockInfo", CLOCK_SM);
    number_of(card, "clock_memory_mhz", "nvmlDeviceGetClockInfo", CLOCK_MEMORY);
    number_of(card, "clock_video_mhz", "nvmlDeviceGetClockInfo", CLOCK_VIDEO);
    number_at(card, "utilization_encoder", "nvmlDeviceGetEncoderUtilization", 0);
    number_at(card, "utilization_decoder", "nvmlDeviceGetDecoderUtilization", 0);
    number_at(card, "utilization_jpeg", "nvmlDeviceGetJpgUtilization", 0);
    number_at(card, "utilization_ofa", "nvmlDeviceGetOfaUtilization", 0);
    print_number(card->out, "memory_reserved_bytes", card->memory_code, (long long)card->memory.reserved);
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetBAR1MemoryInfo", card->device, &bar1);
    print_number(card->out, "memory_bar1_total_bytes", code, (long long)bar1.bar1Total);
    print_number(card->out, "memory_bar1_used_bytes", code, (long long)bar1.bar1Used);
    field(card, "temperature_memory_c", MEMORY_TEMPERATURE);
    code = ASK(of_device, "nvmlDeviceGetMarginTemperature", card->device, &margin);
    print_number(card->out, "temperature_margin_c", code, margin.marginTemperature);
    number_of(card, "fan_percent", "nvmlDeviceGetFanSpeed_v2", 0);
    wide_number(card, "energy_mj", "nvmlDeviceGetTotalEnergyConsumption");
    code = ASK(process_shape, "nvmlDeviceGetComputeRunningProcesses_v3", card->device, &processes, NULL);
    print_number(card->out, "processes", code == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : code, processes);
}

/* --- cc, mig, processes, throughput ----------------------------------------------------------------------------------------------------------- */
static void cc(struct card *card)
{
    nvmlMemory_t memory = {0};
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetConfComputeProtectedMemoryUsage", card->device, &memory);
    code = code == NVML_SUCCESS && memory.total == 0 && memory.used == 0 ? NVML_ERROR_NOT_SUPPORTED : code;
    print_number(card->out, "protected_memory_total_bytes", code, (long long)memory.total);
    print_number(card->out, "protected_memory_used_bytes", code, (long long)memory.used);
}

static void instance(FILE *out, nvmlDevice_t handle, int first)
{
    unsigned int gpu_instance = 0, compute_instance = 0;
    char uuid[NAME_BYTES] = "", name[NAME_BYTES] = "";
    nvmlMemory_v2_t memory = {0};
    nvmlReturn_t newer;
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetGpuInstanceId", handle, &gpu_instance);
    if (code != NVML_SUCCESS)
        return;
    fprintf(out, "%s{\"gpu_instance\":%u", first ? "" : ",", gpu_instance);
    code = ASK(of_device, "nvmlDeviceGetComputeInstanceId", handle, &compute_instance);
    print_number(out, "compute_instance", code, compute_instance);
    print_text(out, "uuid", ASK(of_device_text, "nvmlDeviceGetUUID", handle, uuid, sizeof uuid), uuid);
    code = ASK(of_device_text, "nvmlDeviceGetName", handle, name, sizeof name);
    const char *mark = strstr(name, " MIG ");
    print_text(out, "profile", code, mark == NULL ? "" : mark + strlen(" MIG "));
    code = memory_of(handle, &memory, &newer);
    print_number(out, "memory_total_bytes", code, (long long)memory.total);
    print_number(out, "memory_used_bytes", code, (long long)memory.used);
    fputc('}', out);
}

/* Places for instances have gaps. */
static void mig(struct card *card)
{
    unsigned int pending, most = 0, told = 0;
    if (card->mig_mode_code == -1)
        card->mig_mode_code = ASK(two_written, "nvmlDeviceGetMigMode", card->device, &card->mig_mode, &pending);
    print_number(card->out, "mig_enabled", card->mig_mode_code, card->mig_mode);
    fprintf(card->out, ",\"mig_instances\":[");
    if (card->mig_mode_code == NVML_SUCCESS && card->mig_mode != 0)
        ASK(of_device, "nvmlDeviceGetMaxMigDeviceCount", card->device, &most);
    for (unsigned int index = 0; index < most && index < INSTANCES_LIMIT; index++) {
        nvmlDevice_t handle = NULL;
        nvmlReturn_t code = ASK(one_given, "nvmlDeviceGetMigDeviceHandleByIndex", card->device, index, &handle);
        if (code == NVML_ERROR_INVALID_ARGUMENT)
            break;
        if (code == NVML_SUCCESS)
            instance(card->out, handle, told++ == 0);
    }
    fputc(']', card->out);
}

static void processes(struct card *card)
{
    static nvmlProcessInfo_t found[PROCESSES_LIMIT];
    unsigned int count = PROCESSES_LIMIT;
    nvmlReturn_t code = ASK(process_shape, "nvmlDeviceGetComputeRunningProcesses_v3", card->device, &count, found);
    fprintf(card->out, ",\"process_list\":[");
    for (unsigned int at = 0; code == NVML_SUCCESS && at < count && at < PROCESSES_LIMIT; at++) {
        fprintf(card->out, "%s{\"pid\":%u", at == 0 ? "" : ",", found[at].pid);
        if (found[at].usedGpuMemory != ULLONG_MAX)
            print_number(card->out, "used_memory_bytes", NVML_SUCCESS, (long long)found[at].usedGpuMemory);
        fputc('}', card->out);
    }
    fputc(']', card->out);
}

static void throughput(struct card *card)
{
    static const char *const names[] = {"pcie_received_bytes_per_second", "pcie_sent_bytes_per_second"};
    nvmlFieldValue_t links[] = {{.fieldId = NVLINK_RECEIVED, .scopeId = UINT_MAX}, {.fieldId = NVLINK_SENT, .scopeId = UINT_MAX}};
    long long received = 0, sent = 0;
    for (unsigned int at = 0; at < 2; at++) {
        unsigned int rate = 0;
        nvmlReturn_t of_rate = ASK(one_given, "nvmlDeviceGetPcieThroughput", card->device, 1 - at, &rate);
        print_number(card->out, names[at], of_rate, rate * 1024LL);
    }
    nvmlReturn_t code = field_values(card->device, links, 2);
    code = code != NVML_SUCCESS ? code : field_number(&links[0], &received);
    code = code != NVML_SUCCESS ? code : field_number(&links[1], &sent);
    print_number(card->out, "nvlink_received_bytes", code, received * 1024);
    print_number(card->out, "nvlink_sent_bytes", code, sent * 1024);
}

int ask_group(struct card *card, const char *group)
{
    static const struct {
        const char *name;
        void (*ask)(struct card *);
    } groups[] = {{"identity", identity}, {"serial", serial}, {"limits", limits}, {"activity", activity}, {"health", health},
                  {"cc", cc}, {"mig", mig}, {"processes", processes}, {"throughput", throughput}};
    for (size_t at = 0; at < sizeof groups / sizeof *groups; at++)
        if (strcmp(groups[at].name, group) == 0) {
            groups[at].ask(card);
            return 1;
        }
    return 0;
}
