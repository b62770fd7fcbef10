/*
 * The script of the scripted NVML library: a text file named `script` beside the library, read when the library is loaded.
 *
 *   cards N
 *   FUNCTION DEVICE CALLS ACTION [ARGUMENT...]
 *
 * DEVICE is an index, `*`, or `-` for a function without a device. CALLS is `*`, `N`, `N-M` or `N-`: the first call is 1, counted per
 * function and device, across all processes that load this library, in the shared file `calls` beside it. All rows that match act, in
 * the order of the file:
 *
 *   return CODE        return it and write nothing
 *   keep               return success and write nothing
 *   set NAME=VALUE...  write these values instead of the default ones
 *   text WORD          hand out this text          bytes HEX     hand out these bytes
 *   print WORD         a line on stdout            sleep MS      wait
 *   hang               never return                abort         raise SIGABRT
 *   stop               raise SIGSTOP               ignore-sigterm
 *   open PATH          open the file               close         close what `open` opened
 *
 * A script that cannot be read aborts the process: a test never runs against a script that it did not mean.
 */
#define _GNU_SOURCE
#include "script.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ROWS_LIMIT = 512, WORD_LIMIT = 512, ANY_DEVICE = -2 };

struct row {
    enum function fn;
    int device;
    uint64_t first;
    uint64_t last;
    char action[16];
    char argument[WORD_LIMIT];
};

static const char *const names[FUNCTIONS] = {
#define FUNCTION(name) [FN_##name] = #name,
#include "functions.h"
#undef FUNCTION
};

static struct row rows[ROWS_LIMIT];
static size_t row_count;
static unsigned int cards = 1;
static uint64_t *calls; /* [FUNCTIONS][1 + CARDS_LIMIT]; slot 0 is for calls without a device */
static int opened = -1;

static void fail(const char *what, const char *detail)
{
    fprintf(stderr, "scripted NVML: %s: %s\n", what, detail);
    abort();
}

static void beside(char *path, size_t size, const char *name)
{
    Dl_info self;
    if (dladdr(names, &self) == 0 || self.dli_fname == NULL)
        fail("cannot find itself", "dladdr");
    const char *slash = strrchr(self.dli_fname, '/');
    int folder = slash == NULL ? 0 : (int)(slash - self.dli_fname) + 1;
    snprintf(path, size, "%.*s%s", folder, self.dli_fname, name);
}

static enum function function_named(const char *name)
{
    for (int fn = 0; fn < FUNCTIONS; fn++)
        if (strcmp(names[fn], name) == 0)
            return (enum function)fn;
    fail("no such function", name);
    return FUNCTIONS;
}

static void parse_calls(const char *text, struct row *row)
{
    char *end;
    row->first = 1;
    row->last = UINT64_MAX;
    if (strcmp(text, "*") == 0)
        return;
    row->first = strtoull(text, &end, 10);
    if (*end == '\0')
        row->last = row->first;
    else if (*end == '-' && end[1] != '\0')
        row->last = strtoull(end + 1, &end, 10);
    else if (*end == '-')
        end++;
    if (*end != '\0' || row->first == 0)
        fail("not a range of calls", text);
}

static void parse_line(char *line)
{
    char function[64], device[16], range[32];
    struct row row = {0};
    int used = 0;
    if (sscanf(line, "cards %u", &cards) == 1) {
        if (cards > CARDS_LIMIT)
            fail("too many cards", line);
        return;
    }
    if (sscanf(line, "%63s %15s %31s %15s %n", function, device, range, row.action, &used) != 4)
        fail("not a row", line);
    if (row_count == ROWS_LIMIT)
        fail("too many rows", line);
    row.fn = function_named(function);
    row.device = strcmp(device, "*") == 0 ? ANY_DEVICE : strcmp(device, "-") == 0 ? NO_DEVICE : atoi(device);
    parse_calls(range, &row);
    snprintf(row.argument, sizeof row.argument, "%s", line + used);
    row.argument[strcspn(row.argument, "\n")] = '\0';
    rows[row_count++] = row;
}

__attribute__((constructor)) static void read_script(void)
{
    char path[4096], line[1024];
    beside(path, sizeof path, "script");
    FILE *file = fopen(path, "re");
    if (file == NULL)
        fail("cannot open the script", path);
    while (fgets(line, sizeof line, file) != NULL) {
        char *start = line + strspn(line, " \t\n");
        if (*start != '\0' && *start != '#')
            parse_line(start);
    }
    fclose(file);
    beside(path, sizeof path, "calls");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    size_t size = sizeof(uint64_t) * FUNCTIONS * (1 + CARDS_LIMIT);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        fail("cannot count calls", path);
    calls = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (calls == MAP_FAILED)
        fail("cannot map", path);
    close(fd);
    script_answer(FN_load, NO_DEVICE, NULL, 0);
}

unsigned int script_cards(void)
{
    return cards;
}

static void set_values(const char *assignments, const struct out *outs, size_t count)
{
    char text[WORD_LIMIT], *rest = NULL;
    snprintf(text, sizeof text, "%s", assignments);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        size_t i = 0;
        char *equals = strchr(word, '=');
        if (equals == NULL)
            fail("not NAME=VALUE", word);
        *equals = '\0';
        while (i < count && strcmp(outs[i].name, word) != 0)
            i++;
        if (i == count)
            fail("no such value", word);
        uint64_t value = strtoull(equals + 1, NULL, 0);
        memcpy(outs[i].value, &value, outs[i].size); /* little-endian: the low bytes come first */
    }
}

static void hand_out_bytes(const char *hex, struct answer *answer)
{
    unsigned int byte = 0;
    memset(answer->text, 0, sizeof answer->text);
    for (size_t i = 0; i + 1 < sizeof answer->text && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
        answer->text[i] = (char)byte;
    answer->has_text = 1;
}

static void wait_ms(long ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

/* The actions that change the process rather than the answer; returns 0 when `action` is none of them. */
static int disturb(const char *action, const char *argument)
{
    if (strcmp(action, "print") == 0) {
        printf("%s\n", argument);
        fflush(stdout);
    } else if (strcmp(action, "sleep") == 0) {
        wait_ms(atol(argument));
    } else if (strcmp(action, "hang") == 0) {
        for (;;)
            pause();
    } else if (strcmp(action, "abort") == 0) {
        abort();
    } else if (strcmp(action, "stop") == 0) {
        raise(SIGSTOP);
    } else if (strcmp(action, "ignore-sigterm") == 0) {
        signal(SIGTERM, SIG_IGN);
    } else if (strcmp(action, "open") == 0) {
        if ((opened = open(argument, O_RDONLY | O_CLOEXEC)) < 0)
            fail("cannot open", argument);
    } else if (strcmp(action, "close") == 0) {
        close(opened);
    } else {
        return 0;
    }
    return 1;
}

struct answer script_answer(enum function fn, int device, const struct out *outs, size_t count)
{
    struct answer answer = {.code = 0, .writes = 1};
    uint64_t call = __atomic_add_fetch(&calls[(size_t)fn * (1 + CARDS_LIMIT) + (size_t)(device + 1)], 1, __ATOMIC_SEQ_CST);
    for (size_t i = 0; i < row_count; i++) {
        const struct row *row = &rows[i];
        if (row->fn != fn || (row->device != ANY_DEVICE && row->device != device) || call < row->first || call > row->last)
            continue;
        if (strcmp(row->action, "return") == 0) {
            answer.code = atoi(row->argument);
            answer.writes = answer.code == 0;
        } else if (strcmp(row->action, "keep") == 0) {
            answer.writes = 0;
        } else if (strcmp(row->action, "set") == 0) {
            set_values(row->argument, outs, count);
        } else if (strcmp(row->action, "text") == 0) {
            snprintf(answer.text, sizeof answer.text, "%s", row->argument);
            answer.has_text = 1;
        } else if (strcmp(row->action, "bytes") == 0) {
            hand_out_bytes(row->argument, &answer);
        } else if (!disturb(row->action, row->argument)) {
            fail("no such action", row->action);
        }
    }
    return answer;
}
