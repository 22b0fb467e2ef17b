#include "output.h"
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct output {
    const char *name;     /* as the user wrote it */
    char final[PATH_MAX]; /* resolved */
    char temp[PATH_MAX];  /* empty: nothing to remove */
    int fd;
    unsigned char *map;
    size_t size;
};

/* Static, since the signal handler reads it. */
static struct output outputs[OUTPUT_MAX];
static volatile sig_atomic_t output_count;

static const int fatal_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGBUS};

static void remove_temps(void)
{
    for (int i = 0; i < output_count; i++)
        if (outputs[i].temp[0])
            unlink(outputs[i].temp);
}

/* A page of a mapping that cannot be had is the only sign of a full disk or a shrunken file. */
__attribute__((noreturn)) static void on_bus_error(const unsigned char *address)
{
    const char *name = "an input file", *what = " shrank or could not be read\n";
    for (int i = 0; i < output_count; i++) {
        if (outputs[i].map && address >= outputs[i].map && address < outputs[i].map + outputs[i].size) {
            name = outputs[i].name;
            what = ": cannot be written, the disk may be full\n";
        }
    }
    const struct iovec parts[] = {
        {"truenorm: ", 10}, {(void *)(intptr_t)name, strlen(name)}, {(void *)(intptr_t)what, strlen(what)}};
    ssize_t written = writev(STDERR_FILENO, parts, 3);
    (void)written; /* stderr may be closed */
    _exit(2);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    remove_temps();
    if (number == SIGBUS)
        on_bus_error(info->si_addr);
    signal(number, SIG_DFL);
    raise(number);
}

static void set_fatal_signals(sigset_t *set)
{
    sigemptyset(set);
    for (size_t i = 0; i < sizeof fatal_signals / sizeof *fatal_signals; i++)
        sigaddset(set, fatal_signals[i]);
}

static void install_handlers(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO}, old;
    set_fatal_signals(&action.sa_mask);
    for (size_t i = 0; i < sizeof fatal_signals / sizeof *fatal_signals; i++) {
        if (sigaction(fatal_signals[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN)
            continue; /* as under nohup */
        sigaction(fatal_signals[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file size limit becomes an error of ftruncate */
}

/* Fills final with the absolute path, links followed, and returns the mode that the file shall have. */
static mode_t resolve(struct output *o)
{
    char copy[PATH_MAX], directory[PATH_MAX];
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);

    if (strlen(o->name) >= PATH_MAX)
        fail("%.64s...: %s", o->name, strerror(ENAMETOOLONG));
    if (stat(o->name, &st) == 0) {
        if (!S_ISREG(st.st_mode))
            fail("%s: not a regular file, cannot be an output", o->name);
        if (!realpath(o->name, o->final))
            fail("%s: %s", o->name, strerror(errno));
        return st.st_mode & 0777;
    }
    if (lstat(o->name, &st) == 0)
        fail("%s: a symbolic link to nowhere", o->name);
    size_t length = strlen(o->name);
    if (length == 0 || o->name[length - 1] == '/')
        fail("%s: not a file name", o->name);
    if (!realpath(dirname(strcpy(copy, o->name)), directory))
        fail("%s: %s", o->name, strerror(errno));
    const char *slash = strcmp(directory, "/") == 0 ? "" : "/";
    if (snprintf(o->final, sizeof o->final, "%s%s%s", directory, slash, basename(strcpy(copy, o->name))) >=
        PATH_MAX)
        fail("%s: %s", o->name, strerror(ENAMETOOLONG));
    return 0666 & ~mask;
}

/* The blocks are reserved so that a full disk is met here and not in the middle of the work. */
static void reserve(const struct output *o, size_t size)
{
    int error = ftruncate(o->fd, (off_t)size) == 0 ? 0 : errno;
#ifdef __linux__
    if (error == 0 && fallocate(o->fd, 0, 0, (off_t)size) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        error = errno;
#endif
    if (error)
        fail("%s: %s", o->name, strerror(error));
}

static void open_temp(struct output *o, mode_t mode)
{
    char copy[PATH_MAX], path[PATH_MAX];
    sigset_t fatal, before;
    const char *directory = dirname(strcpy(copy, o->final));

    /* A fixed prefix: the name's own may already be as long as names can be. */
    if (snprintf(path, sizeof path, "%s/.truenorm-XXXXXX", directory) >= (int)sizeof path)
        fail("%s: %s", o->name, strerror(ENAMETOOLONG));
    set_fatal_signals(&fatal);
    sigprocmask(SIG_BLOCK, &fatal, &before);
    o->fd = mkstemp(path);
    int error = errno;
    if (o->fd >= 0) {
        strcpy(o->temp, path);
        output_count++;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (o->fd < 0)
        fail("%s: cannot be written: %s", o->name, strerror(error));
    if (fchmod(o->fd, mode) != 0)
        fail("%s: %s", o->name, strerror(errno));
}

unsigned char *output_create(const char *path, size_t size)
{
    struct output *o = &outputs[output_count];
    if (output_count == OUTPUT_MAX)
        fail("%s: too many output files", path);
    if (output_count == 0)
        install_handlers();
    o->name = path;
    mode_t mode = resolve(o);
    for (int i = 0; i < output_count; i++)
        if (strcmp(outputs[i].final, o->final) == 0)
            fail("%s: two outputs with the same name", path);
    open_temp(o, mode);
    reserve(o, size);
    unsigned char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
    if (map == MAP_FAILED)
        fail("%s: cannot be mapped: %s", path, strerror(errno));
    o->size = size;
    o->map = map;
    return map;
}

void output_commit(void)
{
    sigset_t fatal, before;
    /* Written out first: an error of the device must not cost the old file. */
    for (int i = 0; i < output_count; i++)
        if (fsync(outputs[i].fd) != 0)
            fail("%s: %s", outputs[i].name, strerror(errno));
    set_fatal_signals(&fatal);
    sigprocmask(SIG_BLOCK, &fatal, &before);
    for (int i = 0; i < output_count; i++) {
        if (rename(outputs[i].temp, outputs[i].final) != 0)
            fail("%s: %s", outputs[i].name, strerror(errno));
        outputs[i].temp[0] = 0;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void output_discard(void)
{
    remove_temps();
    output_count = 0;
}
