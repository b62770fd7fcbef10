/* Reads the script that lies beside the library and acts on it; see script.c for the format. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include <stddef.h>

enum function {
#define FUNCTION(name) FN_##name,
#include "functions.h"
#undef FUNCTION
    FUNCTIONS
};

/* More cards than any machine of the field cases. */
enum { CARDS_LIMIT = 32, NO_DEVICE = -1 };

/* One value that a function hands out, by the name that `set` rows use. */
struct out {
    const char *name;
    void *value;
    size_t size;
};

/* What the script makes of one call. */
struct answer {
    int code;     /* what the function returns */
    int writes;   /* whether the default values (as changed by `set`) are written */
    int has_text; /* whether `text` or `bytes` gave the text to hand out */
    char text[256];
};

/* Number of cards: the row `cards N`, else 1. */
unsigned int script_cards(void);

/* Count one call of `fn` and act on every row that matches; `outs` are the default values, changed in place. */
struct answer script_answer(enum function fn, int device, const struct out *outs, size_t count);

#endif
