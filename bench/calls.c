/* calls.c - loops around one C call each, so that no interpreter's time is in what is measured.
 *
 * Each loop makes `count` calls and returns the seconds that they took, or minus the status of a call that failed. */
#include <truenorm.h>

#include <omp.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

double bench_forward(const tn_norm_desc *desc, const tn_norm_io *io, int threads, size_t count);
double bench_forward_backward(const tn_norm_desc *desc, const tn_norm_io *io, const tn_norm_io *saved,
                              const tn_norm_grads *grads, int threads, size_t count);
void bench_sizes(size_t sizes[3]);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For the check that the structures of native.py are those of the header. */
void bench_sizes(size_t sizes[3])
{
    sizes[0] = sizeof(tn_norm_desc);
    sizes[1] = sizeof(tn_norm_io);
    sizes[2] = sizeof(tn_norm_grads);
}

/* ---- truenorm --------------------------------------------------------------------------------------- */

double bench_forward(const tn_norm_desc *desc, const tn_norm_io *io, int threads, size_t count)
{
    tn_executor openmp = tn_openmp(), *executor = threads > 1 ? &openmp : NULL;
    omp_set_num_threads(threads);
    double start = now();
    for (size_t i = 0; i < count; i++) {
        tn_status status = tn_norm_forward(desc, io, executor);
        if (status != TN_OK)
            return -(double)status;
    }
    return now() - start;
}

/* `saved`: the operands as the backward sees them, with the statistics of the forward or without. */
double bench_forward_backward(const tn_norm_desc *desc, const tn_norm_io *io, const tn_norm_io *saved,
                              const tn_norm_grads *grads, int threads, size_t count)
{
    tn_executor openmp = tn_openmp(), *executor = threads > 1 ? &openmp : NULL;
    omp_set_num_threads(threads);
    double start = now();
    for (size_t i = 0; i < count; i++) {
        tn_status status = tn_norm_forward(desc, io, executor);
        if (status == TN_OK)
            status = tn_norm_backward(desc, saved, grads, executor);
        if (status != TN_OK)
            return -(double)status;
    }
    return now() - start;
}

/* ---- oneDNN and ggml, by their C interfaces ---------------------------------------------------------- */

struct onednn_arg {
    int index;
    void *memory;
};

struct onednn_step {
    void *primitive;
    int count;
    const struct onednn_arg *args;
};

typedef int onednn_execute(const void *primitive, void *stream, int count, const struct onednn_arg *args);
typedef int onednn_wait(void *stream);
typedef int ggml_compute(void *graph, void *plan);

double bench_onednn(onednn_execute *execute, onednn_wait *wait, void *stream, const struct onednn_step *steps,
                    size_t step_count, size_t count);
double bench_ggml(ggml_compute *compute, void *graph, void *plan, size_t count);

/* One wait for each call: its result is there when it ends, as with everybody else. */
double bench_onednn(onednn_execute *execute, onednn_wait *wait, void *stream, const struct onednn_step *steps,
                    size_t step_count, size_t count)
{
    double start = now();
    for (size_t i = 0; i < count; i++) {
        int status = 0;
        for (size_t s = 0; s < step_count && !status; s++)
            status = execute(steps[s].primitive, stream, steps[s].count, steps[s].args);
        if (!status)
            status = wait(stream);
        if (status)
            return -(double)status;
    }
    return now() - start;
}

double bench_ggml(ggml_compute *compute, void *graph, void *plan, size_t count)
{
    double start = now();
    for (size_t i = 0; i < count; i++) {
        int status = compute(graph, plan);
        if (status)
            return -100.0 - (double)status; /* the statuses of ggml have both signs */
    }
    return now() - start;
}

/* ---- copies: what the memory allows ------------------------------------------------------------------- */

#if defined(__has_builtin)
#define HAS_BUILTIN(name) __has_builtin(name)
#else
#define HAS_BUILTIN(name) 0
#endif

#if defined(__AVX512F__)
#define STREAM_BYTES 64
#elif defined(__AVX__)
#define STREAM_BYTES 32
#else
#define STREAM_BYTES 16
#endif
typedef float stream_vector __attribute__((vector_size(STREAM_BYTES)));

#if HAS_BUILTIN(__builtin_nontemporal_store)
#define STREAM(to, v) __builtin_nontemporal_store(v, to)
#elif defined(__AVX512F__)
#define STREAM(to, v) __builtin_ia32_movntps512((float *)(to), v)
#elif defined(__AVX__)
#define STREAM(to, v) __builtin_ia32_movntps256((float *)(to), v)
#endif

int bench_can_stream(void);
double bench_copy(void *to, const void *from, size_t bytes, int stream, int threads, size_t count);

/* Whether there are stores that go around the caches. */
int bench_can_stream(void)
{
#ifdef STREAM
    return 1;
#else
    return 0;
#endif
}

static void copy_streaming(char *to, const char *from, size_t bytes)
{
#ifdef STREAM
    size_t head = (size_t)(-(ptrdiff_t)to & (STREAM_BYTES - 1)), i;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, head);
    for (i = head; i + STREAM_BYTES <= bytes; i += STREAM_BYTES) {
        stream_vector v;
        memcpy(&v, from + i, sizeof v);
        STREAM((stream_vector *)(void *)(to + i), v);
    }
    memcpy(to + i, from + i, bytes - i);
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
#else
    memcpy(to, from, bytes);
#endif
}

static void copy_part(char *to, const char *from, size_t bytes, int stream, size_t part, size_t parts)
{
    size_t begin = bytes / parts * part / 64 * 64,
           end = part + 1 == parts ? bytes : bytes / parts * (part + 1) / 64 * 64;
    if (stream)
        copy_streaming(to + begin, from + begin, end - begin);
    else
        memcpy(to + begin, from + begin, end - begin);
}

double bench_copy(void *to, const void *from, size_t bytes, int stream, int threads, size_t count)
{
    omp_set_num_threads(threads);
    double start = now();
    for (size_t i = 0; i < count; i++) {
        if (threads > 1 && bytes > (size_t)1 << 17) {
#pragma omp parallel
            copy_part(to, from, bytes, stream, (size_t)omp_get_thread_num(), (size_t)omp_get_num_threads());
        } else {
            copy_part(to, from, bytes, stream, 0, 1);
        }
        __asm__ volatile("" ::: "memory"); /* the copies are not to be made one */
    }
    return now() - start;
}
