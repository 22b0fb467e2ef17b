/* files.h - whole files; anything that goes wrong ends in fail() with the file's name. */
#ifndef LLAMA_FILES_H
#define LLAMA_FILES_H

#include <stddef.h>
#include <stdio.h>

#define PATH_CAPACITY 4096

/* Joins with a slash. */
void path_join(char *path, const char *folder, const char *name);

/* The bytes, and a zero after them; to be freed. */
unsigned char *file_read(const char *path, size_t *size);

FILE *file_create(const char *path);
void file_write(FILE *f, const char *path, const void *bytes, size_t size);
/* Returns when the bytes are on the disk. */
void file_close(FILE *f, const char *path);

/* Makes the folder unless it is there. */
void folder_make(const char *path);
/* Removes the folder and the files in it, if it is there. */
void folder_remove(const char *path);
/* Renames a folder, and returns when the new name is on the disk. */
void folder_rename(const char *parent, const char *from, const char *to);

#endif
