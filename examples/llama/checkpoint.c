#include "checkpoint.h"
#include "common.h"
#include "files.h"
#include "safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ---------------------------------------------------------------------------------- */

static const struct {
    const char *type, *architecture;
} architectures[] = {
    {"llama", "LlamaForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}, {"stablelm", "StableLmForCausalLM"}};

/* The sizes, under the names that Transformers gives them. */
static const struct {
    const char *name;
    size_t field;
} sizes[] = {
    {"hidden_size", offsetof(struct config, width)},
    {"intermediate_size", offsetof(struct config, hidden)},
    {"num_hidden_layers", offsetof(struct config, layers)},
    {"num_attention_heads", offsetof(struct config, heads)},
    {"max_position_embeddings", offsetof(struct config, context)},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void add_norm(cJSON *object, const char *name, struct norm_kind kind)
{
    char text[64];
    norm_kind_format(kind, text, sizeof text);
    cJSON_AddStringToObject(object, name, text);
}

static void add_model_type(cJSON *json, const struct config *c)
{
    const char *type = config_model_type(c);
    cJSON_AddStringToObject(json, "model_type", type ? type : "truenorm_llama");
    for (size_t i = 0; type && i < sizeof architectures / sizeof *architectures; i++) {
        if (strcmp(type, architectures[i].type) == 0) {
            cJSON *list = cJSON_AddArrayToObject(json, "architectures");
            cJSON_AddItemToArray(list, cJSON_CreateString(architectures[i].architecture));
        }
    }
}

static cJSON *config_to_json(const struct config *c)
{
    cJSON *json = cJSON_CreateObject();
    add_model_type(json, c);
    for (size_t i = 0; i < SIZES; i++)
        cJSON_AddNumberToObject(json, sizes[i].name,
                                (double)*(const size_t *)((const char *)c + sizes[i].field));
    cJSON_AddNumberToObject(json, "num_key_value_heads", (double)c->heads);
    cJSON_AddNumberToObject(json, "head_dim", (double)(c->width / c->heads));
    cJSON_AddNumberToObject(json, "vocab_size", VOCABULARY);
    cJSON_AddStringToObject(json, "hidden_act", "silu");
    cJSON_AddNumberToObject(json, c->norm.kind == KIND_LAYER ? "layer_norm_eps" : "rms_norm_eps", c->eps);
    cJSON *rope = cJSON_AddObjectToObject(json, "rope_parameters");
    cJSON_AddStringToObject(rope, "rope_type", "default");
    cJSON_AddNumberToObject(rope, "rope_theta", c->rope_theta);
    cJSON_AddNumberToObject(rope, "partial_rotary_factor", 1);
    cJSON_AddBoolToObject(json, "tie_word_embeddings", 1);
    cJSON_AddNullToObject(json, "bos_token_id"); /* every byte is text */
    cJSON_AddNullToObject(json, "eos_token_id");
    cJSON_AddStringToObject(json, "dtype", REAL_TORCH);
    cJSON *own = cJSON_AddObjectToObject(json, "truenorm"); /* what Transformers has no word for */
    add_norm(own, "norm", c->norm);
    add_norm(own, "qk_norm", c->qk_norm);
    cJSON_AddStringToObject(own, "placement", placement_names[c->placement]);
    cJSON_AddNumberToObject(own, "eps", c->eps);
    return json;
}

static size_t read_size(const cJSON *json, const char *name, const char *path)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    if (!cJSON_IsNumber(item) || item->valuedouble < 1 || item->valuedouble > 1 << 20)
        fail("%s: %s is missing or no size", path, name);
    return (size_t)item->valuedouble;
}

static struct norm_kind read_norm(const cJSON *json, const char *name, const char *path)
{
    struct norm_kind kind;
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
    if (!text || !norm_kind_parse(text, &kind))
        fail("%s: truenorm.%s is missing or no kind of norm", path, name);
    return kind;
}

static struct config config_from_json(const cJSON *json, const char *path)
{
    struct config c = {0};
    for (size_t i = 0; i < SIZES; i++)
        *(size_t *)((char *)&c + sizes[i].field) = read_size(json, sizes[i].name, path);
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(json, "truenorm");
    c.norm = read_norm(own, "norm", path);
    c.qk_norm = read_norm(own, "qk_norm", path);
    c.eps = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(own, "eps"));
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(json, "rope_parameters");
    c.rope_theta = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(rope, "rope_theta"));
    const char *placement = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(own, "placement"));
    int i = 0;
    while (i < 3 && (!placement || strcmp(placement, placement_names[i]) != 0))
        i++;
    if (i == 3)
        fail("%s: truenorm.placement is missing or unknown", path);
    c.placement = (enum placement)i;
    if (!(c.rope_theta > 0))
        fail("%s: rope_theta is missing or not above 0", path);
    const char *problem = config_problem(&c);
    if (problem)
        fail("%s: %s", path, problem);
    return c;
}

struct config checkpoint_config(const char *folder)
{
    char path[PATH_CAPACITY];
    size_t size;
    path_join(path, folder, "config.json");
    char *text = (char *)file_read(path, &size);
    cJSON *json = cJSON_ParseWithLength(text, size);
    if (!cJSON_IsObject(json))
        fail("%s: not a JSON object", path);
    struct config config = config_from_json(json, path);
    cJSON_Delete(json);
    free(text);
    return config;
}

/* ---- the files of a checkpoint -------------------------------------------------------------------- */

static void write_config(const char *folder, const struct config *config)
{
    char path[PATH_CAPACITY];
    cJSON *json = config_to_json(config);
    char *text = cJSON_Print(json);
    path_join(path, folder, "config.json");
    FILE *f = file_create(path);
    file_write(f, path, text, strlen(text));
    file_write(f, path, "\n", 1);
    file_close(f, path);
    free(text);
    cJSON_Delete(json);
}

static void write_model(const char *folder, const struct transformer *net)
{
    char path[PATH_CAPACITY];
    const struct layout *l = &net->layout;
    struct named_array *arrays = allocate(l->tensor_count, sizeof *arrays);
    for (size_t i = 0; i < l->tensor_count; i++) {
        const struct tensor *t = &l->tensors[i];
        arrays[i] = (struct named_array){t->name, t->rows, t->cols, net->parameters + t->offset};
    }
    cJSON *metadata = cJSON_CreateObject();
    cJSON_AddStringToObject(metadata, "format", "pt");
    path_join(path, folder, "model.safetensors");
    safetensors_write(path, metadata, arrays, l->tensor_count);
    cJSON_Delete(metadata);
    free(arrays);
}

static void write_optimizer(const char *folder, const struct training *t)
{
    char path[PATH_CAPACITY], text[32];
    size_t size = t->net->layout.size;
    const struct named_array arrays[] = {{"m", size, 0, t->m}, {"v", size, 0, t->v}};
    cJSON *metadata = cJSON_CreateObject();
    options_save(&t->options, metadata);
    snprintf(text, sizeof text, "%zu", t->step);
    cJSON_AddStringToObject(metadata, "step", text);
    snprintf(text, sizeof text, "%zu", t->metrics_bytes);
    cJSON_AddStringToObject(metadata, "metrics_bytes", text);
    path_join(path, folder, "optimizer.safetensors");
    safetensors_write(path, metadata, arrays, 2);
    cJSON_Delete(metadata);
}

/* The step of a folder's name, or SIZE_MAX if it is not that of a whole checkpoint. */
static size_t step_of(const char *name)
{
    const char *number = strncmp(name, "checkpoint-", 11) == 0 ? name + 11 : "";
    size_t digits = strspn(number, "0123456789");
    return digits > 0 && digits < 18 && !number[digits] ? strtoul(number, NULL, 10) : SIZE_MAX;
}

/* Removes what `step` replaces, and what a killed run left half written. */
static void remove_others(const char *run, size_t step)
{
    char path[PATH_CAPACITY];
    DIR *folder = opendir(run);
    if (!folder)
        fail("%s: %s", run, strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));) {
        path_join(path, run, entry->d_name);
        if (strcmp(entry->d_name, "partial-checkpoint") == 0 ||
            (step_of(entry->d_name) != SIZE_MAX && step_of(entry->d_name) != step))
            folder_remove(path);
    }
    closedir(folder);
}

void checkpoint_write(const char *run, const struct training *t)
{
    char partial[PATH_CAPACITY], whole[PATH_CAPACITY], name[64];
    path_join(partial, run, "partial-checkpoint");
    snprintf(name, sizeof name, "checkpoint-%zu", t->step);
    path_join(whole, run, name);
    folder_remove(partial);
    folder_make(partial);
    write_config(partial, &t->options.config);
    write_model(partial, t->net);
    write_optimizer(partial, t);
    folder_rename(run, partial, whole);
    remove_others(run, t->step);
}

/* ---- reading -------------------------------------------------------------------------------------- */

/* The path of the last checkpoint; false if there is none. */
static bool latest(const char *run, char *path)
{
    size_t last = SIZE_MAX;
    char name[64];
    DIR *folder = opendir(run);
    if (!folder)
        return false;
    for (struct dirent *entry; (entry = readdir(folder));) {
        size_t step = step_of(entry->d_name);
        if (step != SIZE_MAX && (last == SIZE_MAX || step > last))
            last = step;
    }
    closedir(folder);
    if (last == SIZE_MAX)
        return false;
    snprintf(name, sizeof name, "checkpoint-%zu", last);
    path_join(path, run, name);
    return true;
}

bool checkpoint_exists(const char *run)
{
    char path[PATH_CAPACITY];
    return latest(run, path);
}

static size_t read_count(const struct safetensors *file, const char *name, const char *path)
{
    const char *text =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(safetensors_metadata(file), name));
    if (!text)
        fail("%s: does not say %s", path, name);
    return parse_count(name, text, 0, (size_t)1 << 53);
}

static void read_model(const char *folder, struct transformer *net)
{
    char path[PATH_CAPACITY];
    path_join(path, folder, "model.safetensors");
    struct safetensors *file = safetensors_open(path);
    for (size_t i = 0; i < net->layout.tensor_count; i++) {
        const struct tensor *t = &net->layout.tensors[i];
        safetensors_read(file, t->name, t->rows, t->cols, net->parameters + t->offset);
    }
    safetensors_close(file);
}

/* The newest checkpoint of a run, and its file of the optimizer's state. */
static void find_optimizer(const char *run, char folder[PATH_CAPACITY], char path[PATH_CAPACITY])
{
    if (!latest(run, folder))
        fail("%s: holds no checkpoint", run);
    path_join(path, folder, "optimizer.safetensors");
}

void checkpoint_options(const char *run, struct training *t)
{
    char folder[PATH_CAPACITY], path[PATH_CAPACITY];
    find_optimizer(run, folder, path);
    struct safetensors *file = safetensors_open(path);
    options_load(&t->options, safetensors_metadata(file), path);
    t->step = read_count(file, "step", path);
    t->metrics_bytes = read_count(file, "metrics_bytes", path);
    safetensors_close(file);
}

void checkpoint_numbers(const char *run, struct training *t)
{
    char folder[PATH_CAPACITY], path[PATH_CAPACITY];
    find_optimizer(run, folder, path);
    read_model(folder, t->net);
    struct safetensors *file = safetensors_open(path);
    safetensors_read(file, "m", t->net->layout.size, 0, t->m);
    safetensors_read(file, "v", t->net->layout.size, 0, t->v);
    safetensors_close(file);
}

struct transformer *checkpoint_model(const char *folder, size_t batch, size_t length)
{
    struct config config = checkpoint_config(folder);
    struct transformer *net = transformer_new(&config, batch, length ? length : config.context);
    read_model(folder, net);
    return net;
}
