#include "cli.h"

#include <truenorm.h>

#include <getopt.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The first line of the file, without its line break. */
static int first_line(const char *path, char *buf, size_t capacity)
{
    FILE *f = fopen(path, "r");
    int ok = f && fgets(buf, (int)capacity, f);
    if (f)
        fclose(f);
    if (ok)
        buf[strcspn(buf, "\n")] = 0;
    return ok;
}

void cpu_model(char *buf, size_t capacity)
{
    char line[512];
    struct utsname machine;
    FILE *f = fopen("/proc/cpuinfo", "r");
    buf[0] = 0;
    while (f && !buf[0] && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (colon && (strncmp(line, "model name", 10) == 0 || strncmp(line, "Model\t", 6) == 0)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(buf, capacity, "%s", colon + 1 + strspn(colon + 1, " \t"));
        }
    }
    if (f)
        fclose(f);
    if (!buf[0])
        snprintf(buf, capacity, "%s", uname(&machine) == 0 ? machine.machine : "unknown");
}

/* Bytes from /sys, where the C library does not know; 0: unknown. */
static long cache_from_sys(int level, const char *type)
{
    for (int i = 0; i < 8; i++) {
        char path[96], text[64], unit = 0;
        long size = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        if (!first_line(path, text, sizeof text) || atoi(text) != level)
            continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
        if (!first_line(path, text, sizeof text) || strcmp(text, type) != 0)
            continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (first_line(path, text, sizeof text) && sscanf(text, "%ld%c", &size, &unit) >= 1)
            return unit == 'K' ? size * 1024 : unit == 'M' ? size * 1024 * 1024 : size;
    }
    return 0;
}

static void print_cache(const char *label, long bytes, int level, const char *type)
{
    if (bytes <= 0)
        bytes = cache_from_sys(level, type);
    if (bytes > 0)
        printf("%-12s %ld KiB\n", label, bytes / 1024);
    else
        printf("%-12s unknown\n", label);
}

static void print_info(void)
{
    char model[256];
    const char *names[16];
    size_t count = tn_isa_list(names, 16);

    cpu_model(model, sizeof model);
    printf("%-12s %s\n%-12s %s\n%-12s %s\n%-12s", "version:", tn_version(), "cpu:", model,
           "isa:", tn_isa_name(), "available:");
    for (size_t i = 0; i < count && i < 16; i++)
        printf(" %s", names[i]);
    putchar('\n');
#ifdef _SC_LEVEL1_DCACHE_SIZE
    long sizes[] = {sysconf(_SC_LEVEL1_DCACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE),
                    sysconf(_SC_LEVEL3_CACHE_SIZE)};
#else
    long sizes[] = {0, 0, 0};
#endif
    print_cache("L1d cache:", sizes[0], 1, "Data");
    print_cache("L2 cache:", sizes[1], 2, "Unified");
    print_cache("L3 cache:", sizes[2], 3, "Unified");
    printf("%-12s %d\n", "threads:", omp_get_max_threads());
}

static const char help[] = "Usage: truenorm info\n"
                           "Show the version, the processor, the instruction sets and the caches.\n";

int cmd_info(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c != 'h')
            return 2;
        return fputs(help, stdout), 0;
    }
    if (optind < argc)
        fail("info: unexpected argument '%s'", argv[optind]);
    print_info();
    return 0;
}
