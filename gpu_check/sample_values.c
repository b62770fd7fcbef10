/* One call, one value of the contract: asked by name and shape, printed as JSON; null where the driver gave none. */
#include "sample.h"

int not_applicable(nvmlReturn_t code)
{
    return code == NVML_ERROR_NOT_SUPPORTED || code == NVML_ERROR_NOT_FOUND || code == NVML_ERROR_FUNCTION_NOT_FOUND ||
           code == NVML_ERROR_ARGUMENT_VERSION_MISMATCH || code == NVML_ERROR_DEPRECATED;
}

void print_number(FILE *out, const char *name, nvmlReturn_t code, long long value)
{
    if (code == NVML_SUCCESS)
        fprintf(out, ",\"%s\":%lld", name, value);
    else
        fprintf(out, ",\"%s\":null", name);
}

/* A driver's text has neither quotes nor backslashes; where one has, they are left out. */
void print_text(FILE *out, const char *name, nvmlReturn_t code, const char *text)
{
    if (code != NVML_SUCCESS) {
        fprintf(out, ",\"%s\":null", name);
        return;
    }
    fprintf(out, ",\"%s\":\"", name);
    for (; *text != '\0'; text++)
        if (*text >= ' ' && *text != '"' && *text != '\\')
            fputc(*text, out);
    fputc('"', out);
}

nvmlReturn_t field_values(nvmlDevice_t device, nvmlFieldValue_t *values, int count)
{
    typedef nvmlReturn_t shape(nvmlDevice_t, int, nvmlFieldValue_t *);
    return ASK(shape, "nvmlDeviceGetFieldValues", device, count, values);
}

/* nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, signed long long, signed int, unsigned short. */
nvmlReturn_t field_number(const nvmlFieldValue_t *field, long long *value)
{
    const nvmlValue_t *found = &field->value;
    long long numbers[] = {field->valueType == 0 ? (long long)found->dVal : 0, found->uiVal, found->ullVal, found->ullVal, found->ullVal,
                           found->siVal, found->usVal};
    *value = field->valueType >= 0 && field->valueType < 7 ? numbers[field->valueType] : 0;
    return field->nvmlReturn;
}

nvmlReturn_t memory_of(nvmlDevice_t device, nvmlMemory_v2_t *memory, nvmlReturn_t *newer)
{
    nvmlMemory_t older;
    memory->version = nvmlMemory_v2;
    *newer = ASK(of_device, "nvmlDeviceGetMemoryInfo_v2", device, memory);
    if (*newer == NVML_SUCCESS)
        return NVML_SUCCESS;
    nvmlReturn_t code = ASK(of_device, "nvmlDeviceGetMemoryInfo", device, &older);
    memory->total = older.total;
    memory->used = older.used;
    memory->free = older.free;
    return code;
}

nvmlReturn_t power_limit(struct card *card)
{
    if (card->power_limit_code == -1)
        card->power_limit_code = ASK(of_device, "nvmlDeviceGetEnforcedPowerLimit", card->device, &card->power_limit);
    return card->power_limit_code;
}

void number(struct card *card, const char *name, const char *function)
{
    unsigned int value = 0;
    nvmlReturn_t code = ASK(of_device, function, card->device, &value);
    print_number(card->out, name, code, value);
}

void number_of(struct card *card, const char *name, const char *function, unsigned int given)
{
    unsigned int value = 0;
    nvmlReturn_t code = ASK(one_given, function, card->device, given, &value);
    print_number(card->out, name, code, value);
}

void wide_number(struct card *card, const char *name, const char *function)
{
    unsigned long long value = 0;
    nvmlReturn_t code = ASK(of_device, function, card->device, &value);
    print_number(card->out, name, code, (long long)value);
}

/* Of two numbers the one at `at`. */
void number_at(struct card *card, const char *name, const char *function, int at)
{
    unsigned int values[2] = {0, 0};
    nvmlReturn_t code = ASK(two_written, function, card->device, &values[0], &values[1]);
    print_number(card->out, name, code, values[at]);
}

void text(struct card *card, const char *name, const char *function, unsigned int size)
{
    char found[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    nvmlReturn_t code = ASK(of_device_text, function, card->device, found, size);
    print_text(card->out, name, code, found);
}

void field(struct card *card, const char *name, unsigned int id)
{
    nvmlFieldValue_t found = {.fieldId = id};
    long long value = 0;
    nvmlReturn_t code = field_values(card->device, &found, 1);
    code = code != NVML_SUCCESS ? code : field_number(&found, &value);
    print_number(card->out, name, code, value);
}
