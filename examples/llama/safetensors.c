#include "safetensors.h"
#include "common.h"
#include "files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MOST 100000000 /* the format's own limit */

/* ---- writing -------------------------------------------------------------------------------------- */

static size_t elements(const struct named_array *a)
{
    return a->rows * (a->cols ? a->cols : 1);
}

static char *make_header(const cJSON *metadata, const struct named_array *arrays, size_t count)
{
    cJSON *header = cJSON_CreateObject();
    size_t offset = 0;
    cJSON_AddItemToObject(header, "__metadata__", cJSON_Duplicate(metadata, 1));
    for (size_t i = 0; i < count; i++) {
        cJSON *entry = cJSON_AddObjectToObject(header, arrays[i].name);
        cJSON_AddStringToObject(entry, "dtype", REAL_NAME);
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)arrays[i].rows));
        if (arrays[i].cols)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)arrays[i].cols));
        cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)offset));
        offset += elements(&arrays[i]) * sizeof(real);
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)offset));
    }
    char *text = cJSON_PrintUnformatted(header);
    cJSON_Delete(header);
    if (!text)
        fail("out of memory");
    return text;
}

void safetensors_write(const char *path, const cJSON *metadata, const struct named_array *arrays,
                       size_t count)
{
    char *header = make_header(metadata, arrays, count);
    uint64_t length = strlen(header),
             padded = (length + 7) & ~(uint64_t)7; /* the numbers are to be aligned */
    FILE *f = file_create(path);
    file_write(f, path, &padded, sizeof padded);
    file_write(f, path, header, length);
    file_write(f, path, "       ", padded - length);
    for (size_t i = 0; i < count; i++)
        file_write(f, path, arrays[i].data, elements(&arrays[i]) * sizeof(real));
    file_close(f, path);
    free(header);
}

/* ---- reading -------------------------------------------------------------------------------------- */

struct safetensors {
    const char *path;
    unsigned char *bytes;
    size_t size, start; /* where the numbers start */
    cJSON *header;
};

struct safetensors *safetensors_open(const char *path)
{
    struct safetensors *file = allocate(1, sizeof *file);
    uint64_t length;
    file->path = path;
    file->bytes = file_read(path, &file->size);
    if (file->size < sizeof length)
        fail("%s: too short for a safetensors file", path);
    memcpy(&length, file->bytes, sizeof length);
    if (length > HEADER_MOST || length > file->size - sizeof length)
        fail("%s: not a safetensors file, or cut off in its header", path);
    file->start = sizeof length + (size_t)length;
    file->header = cJSON_ParseWithLength((const char *)file->bytes + sizeof length, (size_t)length);
    if (!cJSON_IsObject(file->header))
        fail("%s: its header is no JSON object", path);
    return file;
}

void safetensors_close(struct safetensors *file)
{
    cJSON_Delete(file->header);
    free(file->bytes);
    free(file);
}

const cJSON *safetensors_metadata(const struct safetensors *file)
{
    return cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
}

/* Element i of a JSON array of sizes; SIZE_MAX if it is none. */
static size_t size_at(const cJSON *array, int i)
{
    const cJSON *item = cJSON_GetArrayItem(array, i);
    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53)
        return SIZE_MAX;
    return (size_t)item->valuedouble;
}

void safetensors_read(const struct safetensors *file, const char *name, size_t rows, size_t cols, real *data)
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(file->header, name);
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    size_t begin = size_at(offsets, 0), end = size_at(offsets, 1),
           size = rows * (cols ? cols : 1) * sizeof(real);
    if (!entry)
        fail("%s: has no array %s", file->path, name);
    if (!dtype || strcmp(dtype, REAL_NAME) != 0)
        fail("%s: %s is %s, not " REAL_NAME, file->path, name, dtype ? dtype : "of no dtype");
    if (cJSON_GetArraySize(shape) != (cols ? 2 : 1) || size_at(shape, 0) != rows ||
        (cols && size_at(shape, 1) != cols))
        fail("%s: %s does not have the shape that config.json says", file->path, name);
    if (begin > file->size || end > file->size - file->start || end < begin || end - begin != size)
        fail("%s: %s does not lie in the file; it may be cut off", file->path, name);
    memcpy(data, file->bytes + file->start + begin, size);
}
