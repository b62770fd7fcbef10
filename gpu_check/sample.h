/* What the files of the C program share: a card with its output, how a function is called, and how a value is printed. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stdio.h>

#include "nvml_few.h"

/* A function of the library; NULL where the driver lacks it. */
void *find(const char *name);

/* Call the function of that name and shape: the code for a missing one where it is not there. */
#define ASK(shape, name, ...)                                                              \
    ({                                                                                     \
        shape *function_ = (shape *)find(name);                                            \
        function_ == NULL ? NVML_ERROR_FUNCTION_NOT_FOUND : function_(__VA_ARGS__);        \
    })

/* One card. What two questions want is asked once: `*_code` is that call's, and -1 before it. */
struct card {
    nvmlDevice_t device;
    int opened;
    FILE *out; /* its values as JSON, each with a comma before it */
    char *text;
    size_t length;
    nvmlMemory_v2_t memory;
    unsigned int power_limit, architecture, mig_mode;
    nvmlReturn_t memory_code, power_limit_code, architecture_code, mig_mode_code;
};

int not_applicable(nvmlReturn_t code);
void print_number(FILE *out, const char *name, nvmlReturn_t code, long long value);
void print_text(FILE *out, const char *name, nvmlReturn_t code, const char *text);
nvmlReturn_t field_number(const nvmlFieldValue_t *field, long long *value);
nvmlReturn_t field_values(nvmlDevice_t device, nvmlFieldValue_t *values, int count);
nvmlReturn_t memory_of(nvmlDevice_t device, nvmlMemory_v2_t *memory, nvmlReturn_t *newer);
nvmlReturn_t power_limit(struct card *card);

/* One call, one value, under the contract's name. */
void number(struct card *card, const char *name, const char *function);
void number_of(struct card *card, const char *name, const char *function, unsigned int given);
void wide_number(struct card *card, const char *name, const char *function);
void number_at(struct card *card, const char *name, const char *function, int at);
void text(struct card *card, const char *name, const char *function, unsigned int size);
void field(struct card *card, const char *name, unsigned int id);

void health(struct card *card);

/* Ask a card for the group of that name; 0 for a name that is none. */
int ask_group(struct card *card, const char *group);

#endif
