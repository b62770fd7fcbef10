/* What the group health asks of a card, the same calls as guest_service/collector/nvml_health.py, older ones where the newer is not there. */
#include "sample.h"

#include <string.h>

enum { NVLINK_RECOVERY = 215, RECOVERY_ACTION = 230, ERROR_FIELDS = 3, FABRIC_COMPLETED = 3 };
static const unsigned int nvlink_errors[ERROR_FIELDS] = {161, 162, 163};

static void ecc_errors(struct card *card, const char *name, unsigned int kind, unsigned int counter)
{
    unsigned long long value = 0;
    nvmlReturn_t code = ASK(two_given, "nvmlDeviceGetTotalEccErrors", card->device, kind, counter, &value);
    print_number(card->out, name, code, (long long)value);
}

/* Room for no page is given: the driver then says how many there are. */
static void retired_pages(struct card *card, const char *name, unsigned int cause)
{
    typedef nvmlReturn_t newer(nvmlDevice_t, unsigned int, unsigned int *, void *, void *);
    typedef nvmlReturn_t older(nvmlDevice_t, unsigned int, unsigned int *, void *);
    unsigned int count = 0;
    nvmlReturn_t code = ASK(newer, "nvmlDeviceGetRetiredPages_v2", card->device, cause, &count, NULL, NULL);
    if (code != NVML_SUCCESS && code != NVML_ERROR_INSUFFICIENT_SIZE)
        code = ASK(older, "nvmlDeviceGetRetiredPages", card->device, cause, &count, NULL);
    print_number(card->out, name, code == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : code, count);
}

static void clocks_event_reasons(struct card *card)
{
    unsigned long long reasons = 0;
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetCurrentClocksEventReasons", card->device, &reasons);
    if (code == NVML_ERROR_FUNCTION_NOT_FOUND)
        code = ASK(of_device, "nvmlDeviceGetCurrentClocksThrottleReasons", card->device, &reasons);
    print_number(card->out, "clocks_event_reasons", code, (long long)reasons);
}

static void violation(struct card *card, const char *name, unsigned int policy)
{
    nvmlViolationTime_t time = {0};
    nvmlReturn_t code = ASK(one_given, "nvmlDeviceGetViolationStatus", card->device, policy, &time);
    print_number(card->out, name, code, (long long)time.violationTime);
}

static void nvlinks(struct card *card)
{
    unsigned int links[2] = {0, 0}, state = 0;
    nvmlReturn_t code = NVML_SUCCESS;
    for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS; link++) {
        code = ASK(one_given, "nvmlDeviceGetNvLinkState", card->device, link, &state);
        if (code == NVML_SUCCESS)
            links[state != 0]++;
        else if (!not_applicable(code))
            break;
    }
    if (code == NVML_ERROR_INVALID_ARGUMENT || not_applicable(code))
        code = links[0] + links[1] > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    print_number(card->out, "nvlinks_active", code, links[1]);
    print_number(card->out, "nvlinks_inactive", code, links[0]);
}

/* The fields of every link together; those that are not there are left out. */
static nvmlReturn_t sum_of_links(struct card *card, const unsigned int *ids, int count, long long *sum)
{
    nvmlFieldValue_t found[NVML_NVLINK_MAX_LINKS * ERROR_FIELDS];
    int asked = NVML_NVLINK_MAX_LINKS * count, there = 0;
    memset(found, 0, sizeof found);
    for (int at = 0; at < asked; at++) {
        found[at].fieldId = ids[at % count];
        found[at].scopeId = (unsigned int)(at / count);
    }
    nvmlReturn_t code = field_values(card->device, found, asked);
    *sum = 0;
    for (int at = 0; at < asked && code == NVML_SUCCESS; at++) {
        long long value;
        nvmlReturn_t of_field = field_number(&found[at], &value);
        if (of_field == NVML_ERROR_INVALID_ARGUMENT || not_applicable(of_field))
            continue;
        code = of_field;
        *sum += value;
        there++;
    }
    return code == NVML_SUCCESS && there == 0 ? NVML_ERROR_NOT_SUPPORTED : code;
}

static void errors_of_links(struct card *card)
{
    static const unsigned int recovery[] = {NVLINK_RECOVERY};
    long long sum;
    nvmlReturn_t code = sum_of_links(card, nvlink_errors, ERROR_FIELDS, &sum);
    if (not_applicable(code))
        code = sum_of_links(card, recovery, 1, &sum);
    print_number(card->out, "nvlink_errors", code, sum);
}

static void fabric(struct card *card)
{
    nvmlGpuFabricInfo_v2_t info = {.version = nvmlGpuFabricInfo_v2};
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetGpuFabricInfoV", card->device, &info);
    code = code == NVML_SUCCESS && info.state == 0 ? NVML_ERROR_NOT_SUPPORTED : code;
    print_number(card->out, "fabric_state", code, info.state);
    print_number(card->out, "fabric_status", info.state == FABRIC_COMPLETED ? code : NVML_ERROR_NOT_SUPPORTED, info.status);
}

void health(struct card *card)
{
    unsigned int rows[4] = {0};
    number_at(card, "ecc_enabled", "nvmlDeviceGetEccMode", 0);
    ecc_errors(card, "ecc_corrected_volatile", 0, 0);
    ecc_errors(card, "ecc_uncorrected_volatile", 1, 0);
    ecc_errors(card, "ecc_corrected_aggregate", 0, 1);
    ecc_errors(card, "ecc_uncorrected_aggregate", 1, 1);
    nvmlReturn_t code = ASK(four_written, "nvmlDeviceGetRemappedRows", card->device, &rows[0], &rows[1], &rows[2], &rows[3]);
    print_number(card->out, "rows_remapped_correctable", code, rows[0]);
    print_number(card->out, "rows_remapped_uncorrectable", code, rows[1]);
    print_number(card->out, "row_remap_pending", code, rows[2]);
    print_number(card->out, "row_remap_failed", code, rows[3]);
    retired_pages(card, "retired_pages_single_bit", 0);
    retired_pages(card, "retired_pages_double_bit", 1);
    number(card, "retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus");
    clocks_event_reasons(card);
    violation(card, "power_violation_ns", 0);
    violation(card, "thermal_violation_ns", 1);
    number(card, "pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration");
    number(card, "pcie_width", "nvmlDeviceGetCurrPcieLinkWidth");
    number(card, "pcie_replays", "nvmlDeviceGetPcieReplayCounter");
    nvlinks(card);
    errors_of_links(card);
    fabric(card);
    field(card, "recovery_action", RECOVERY_ACTION);
    number(card, "persistence_mode", "nvmlDeviceGetPersistenceMode");
}
