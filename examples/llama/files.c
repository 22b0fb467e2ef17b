#include "files.h"
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void path_join(char *path, const char *folder, const char *name)
{
    if (snprintf(path, PATH_CAPACITY, "%s/%s", folder, name) >= PATH_CAPACITY)
        fail("%.64s...: %s", folder, strerror(ENAMETOOLONG));
}

unsigned char *file_read(const char *path, size_t *size)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0)
        fail("%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        fail("%s: not a regular file", path);
    *size = (size_t)st.st_size;
    unsigned char *bytes = allocate(*size + 1, 1);
    if (fread(bytes, 1, *size, f) != *size)
        fail("%s: cannot be read", path);
    fclose(f);
    return bytes;
}

FILE *file_create(const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        fail("%s: %s", path, strerror(errno));
    return f;
}

void file_write(FILE *f, const char *path, const void *bytes, size_t size)
{
    if (fwrite(bytes, 1, size, f) != size)
        fail("%s: %s", path, strerror(errno));
}

void file_close(FILE *f, const char *path)
{
    if (fflush(f) != 0 || fsync(fileno(f)) != 0 || fclose(f) != 0)
        fail("%s: %s", path, strerror(errno));
}

void folder_make(const char *path)
{
    struct stat st;
    if (mkdir(path, 0777) == 0)
        return;
    if (errno != EEXIST)
        fail("%s: %s", path, strerror(errno));
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        fail("%s: %s", path, strerror(ENOTDIR));
}

void folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder && errno == ENOENT)
        return;
    if (!folder)
        fail("%s: %s", path, strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[PATH_CAPACITY];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        path_join(name, path, entry->d_name);
        if (unlink(name) != 0)
            fail("%s: %s", name, strerror(errno));
    }
    closedir(folder);
    if (rmdir(path) != 0)
        fail("%s: %s", path, strerror(errno));
}

static void folder_flush(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd) != 0)
        fail("%s: %s", path, strerror(errno));
    close(fd);
}

void folder_rename(const char *parent, const char *from, const char *to)
{
    folder_flush(from);
    if (rename(from, to) != 0)
        fail("%s: %s", to, strerror(errno));
    folder_flush(parent);
}
