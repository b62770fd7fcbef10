/* One child of the soak: prints, fails, dies, prints garbage or hangs, by the count in the file `count` of its folder.
 *
 * A program and no shell script, because thousands of them are started: linked statically it takes a third of a shell's time.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The descriptor that the sampler added to the arguments. */
static int told;

static void say(int to, const char *words, long number) {
    dprintf(to, "%s %ld\n", words, number);
}

static void print(const char *file) {
    char line[4096];
    int from = open(file, O_RDONLY);
    ssize_t length = read(from, line, sizeof line);
    if (from < 0 || length < 1 || write(told, line, (size_t)length) != length)
        _exit(9);
}

int main(int argc, char **argv) {
    char text[32] = {0};
    int count;
    long number;
    if (argc < 3 || (told = atoi(argv[argc - 1])) < 3 || chdir(argv[1]) != 0 || (count = open("count", O_RDWR)) < 0 || read(count, text, sizeof text - 1) < 1)
        return 9;
    number = atol(text) + 1;
    lseek(count, 0, SEEK_SET);
    dprintf(count, "%ld\n", number);
    if (number % 500 == 250)
        sleep(60);
    switch (number % 7) {
    case 0:
    case 1:
        print("sample");
        break;
    case 2:
        say(2, "noise", number);
        print("partial");
        break;
    case 3:
        print("error");
        break;
    case 4:
        return 3;
    case 5:
        raise(SIGSEGV);
        break;
    default:
        say(told, "not json", number);
    }
    return 0;
}
