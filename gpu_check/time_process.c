/*
 * Runs a command COUNT times with stdout and descriptor 3 discarded (there the collector writes its parts), and prints for each run: wall
 * time in µs from start to reaped, CPU time in µs, peak RSS in KiB, exit status. In C because a child that is started from Python counts
 * Python's own memory as its peak.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
    posix_spawn_file_actions_t actions;
    if (argc < 3)
        return 2;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 3, "/dev/null", O_WRONLY, 0);
    for (int left = atoi(argv[1]); left > 0; left--) {
        pid_t child;
        int status;
        struct rusage used;
        long long begin = now_us();
        if (posix_spawn(&child, argv[2], &actions, NULL, argv + 2, environ) != 0 || wait4(child, &status, 0, &used) != child)
            return 1;
        long long wall = now_us() - begin;
        long long cpu = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000LL + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
        printf("%lld %lld %ld %d\n", wall, cpu, used.ru_maxrss, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return 0;
}
