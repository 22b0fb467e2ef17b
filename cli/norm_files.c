#include "cli.h"
#include "norm.h"
#include "npy.h"
#include "output.h"
#include "progress.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Rows are worked on this many bytes of x at a time: far above a thread's share, far below any memory. */
#define SLAB_BYTES ((size_t)32 << 20)

/* One mapped file and how its rows lie in it. */
struct array {
    const char *path;
    unsigned char *map, *data;
    tn_dtype dtype;
    struct npy_header head;
    ptrdiff_t stride[2], inner; /* elements, as in tn_in */
    size_t released;            /* bytes of the map that are done with */
};

/* The rows of x: rows[1] is its second to last axis, rows[0] all before. */
struct shape {
    const struct array *x;
    size_t rows[2], n;
};

enum { X, RESIDUAL, GATE, WEIGHT, BIAS, Y, SUM, SCALE, ARRAYS };

static tn_dtype dtype_of(const struct array *a, bool bf16)
{
    const struct npy_header *h = &a->head;
    if (h->kind == 'f' && (h->item == 8 || h->item == 4 || h->item == 2))
        return h->item == 8 ? TN_F64 : h->item == 4 ? TN_F32 : TN_F16;
    bool raw16 = h->item == 2 && (h->kind == 'u' || h->kind == 'i' || h->kind == 'V');
    if (raw16 && bf16)
        return TN_BF16;
    if (raw16)
        fail("%s: dtype '%s' is no float; if it holds bf16, say --bf16", a->path, h->descr);
    fail("%s: dtype '%s' is none of f64, f32, f16, bf16", a->path, h->descr);
}

static void array_open(struct array *a, const char *path, bool bf16)
{
    char err[160];
    struct stat st;
    a->path = path;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0)
        fail("%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        fail("%s: not a regular file", path);
    size_t size = (size_t)st.st_size;
    if (size == 0)
        fail("%s: not a .npy file", path);
    a->map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (a->map == MAP_FAILED)
        fail("%s: cannot be mapped: %s", path, strerror(errno));
    close(fd);
    if (!npy_parse(a->map, size, &a->head, err, sizeof err))
        fail("%s: %s", path, err);
    a->dtype = dtype_of(a, bf16);
    a->data = a->map + a->head.data_offset;
    madvise(a->map, size, MADV_SEQUENTIAL);
}

/* Strides of an array with x's leading axes and a last axis of n elements. */
static void lay_rows(struct array *a, const struct shape *s, size_t n)
{
    bool fortran = a->head.fortran_order;
    a->stride[0] = (ptrdiff_t)(fortran ? 1 : s->rows[1] * n);
    a->stride[1] = (ptrdiff_t)(fortran ? s->rows[0] : n);
    a->inner = (ptrdiff_t)(fortran ? s->rows[0] * s->rows[1] : 1);
}

static struct shape shape_of(const struct array *x)
{
    const struct npy_header *h = &x->head;
    struct shape s = {x, {1, 1}, 0};
    if (h->rank == 0)
        fail("%s: shape () has no axis to normalise", x->path);
    for (unsigned i = 0; i + 2 < h->rank; i++)
        s.rows[0] *= h->shape[i];
    if (h->rank >= 2)
        s.rows[1] = h->shape[h->rank - 2];
    s.n = h->shape[h->rank - 1];
    return s;
}

static void check_like_x(struct array *a, const struct shape *s)
{
    char mine[256], its[256];
    const struct npy_header *h = &a->head, *x = &s->x->head;
    if (h->rank != x->rank || memcmp(h->shape, x->shape, x->rank * sizeof *x->shape) != 0) {
        npy_shape_text(mine, sizeof mine, h->shape, h->rank);
        npy_shape_text(its, sizeof its, x->shape, x->rank);
        fail("%s: shape %s does not match %s %s", a->path, mine, s->x->path, its);
    }
    /* Two axes of rows can be walked in either order, more only if both lie alike. */
    if (h->rank > 3 && h->fortran_order != x->fortran_order)
        fail("%s: one of it and %s is in Fortran order; with %u axes both must be", a->path, s->x->path,
             h->rank);
    lay_rows(a, s, s->n);
}

/* A weight or bias: [n] or [heads, n]. */
static void check_param(struct array *a, const struct shape *s)
{
    char mine[256];
    const struct npy_header *h = &a->head;
    npy_shape_text(mine, sizeof mine, h->shape, h->rank);
    if (h->rank != 1 && h->rank != 2)
        fail("%s: shape %s is neither (n,) nor (heads, n)", a->path, mine);
    if (h->shape[h->rank - 1] != s->n)
        fail("%s: shape %s does not match the last axis of %s (%zu)", a->path, mine, s->x->path, s->n);
    a->stride[0] = a->stride[1] = 0;
    a->inner = 1;
    if (h->rank == 1)
        return;
    if (s->x->head.rank < 2 || h->shape[0] != s->rows[1]) {
        char its[256];
        npy_shape_text(its, sizeof its, s->x->head.shape, s->x->head.rank);
        fail("%s: shape %s does not match the last two axes of %s %s", a->path, mine, s->x->path, its);
    }
    a->stride[1] = (ptrdiff_t)(h->fortran_order ? 1 : s->n);
    a->inner = (ptrdiff_t)(h->fortran_order ? s->rows[1] : 1);
}

static void check_sizes(const struct norm_options *o, const struct shape *s)
{
    size_t group = o->desc.group ? o->desc.group : s->n;
    if (o->desc.group && s->n % group != 0)
        fail("--group %zu does not divide the last axis of %s (%zu)", group, s->x->path, s->n);
    if (o->desc.partial > group)
        fail("--partial %zu is more than the %s of %s (%zu)", o->desc.partial,
             o->desc.group ? "--group" : "last axis", s->x->path, group);
}

static bool half(tn_dtype d)
{
    return d == TN_BF16 || d == TN_F16;
}

/* As NumPy and torch promote; bf16 with f16 gives f32. */
static tn_dtype promote(tn_dtype a, tn_dtype b)
{
    if (a == b || b == TN_NONE)
        return a;
    return a == TN_F64 || b == TN_F64 ? TN_F64 : TN_F32;
}

static tn_dtype output_dtype(const struct norm_options *o, tn_dtype x, tn_dtype weight)
{
    if (o->out_dtype != TN_NONE)
        return o->out_dtype;
    if (o->desc.cast == TN_CAST_BEFORE_SCALE)
        return promote(x, weight);
    if (o->desc.cast == TN_CAST_T5)
        return half(weight) ? weight : TN_F32;
    return x;
}

/* An output with x's leading axes and order, and a last axis of n elements. */
static void array_create(struct array *a, const char *path, tn_dtype dtype, const struct shape *s, size_t n)
{
    static const char *const descr[] = {
        [TN_F64] = "<f8", [TN_F32] = "<f4",  [TN_BF16] = "<u2", [TN_F16] = "<f2",
        [TN_I8] = "|i1",  [TN_E4M3] = "|u1", [TN_E5M2] = "|u1"};
    unsigned char header[NPY_HEADER_MAX];
    a->path = path;
    a->dtype = dtype;
    a->head = s->x->head;
    a->head.shape[a->head.rank - 1] = n;
    a->head.item = tn_dtype_size(dtype);
    if (!npy_count(a->head.shape, a->head.rank, a->head.item, &a->head.count))
        fail("%s: the array would be too large", path);
    a->head.data_offset = npy_write_header(header, sizeof header, descr[dtype], a->head.fortran_order,
                                           a->head.rank, a->head.shape);
    a->map = output_create(path, a->head.data_offset + a->head.count * a->head.item);
    memcpy(a->map, header, a->head.data_offset);
    a->data = a->map + a->head.data_offset;
    lay_rows(a, s, n);
}

static void open_inputs(const struct norm_options *o, struct array *a, struct shape *s)
{
    const char *const paths[] = {
        [X] = o->x, [RESIDUAL] = o->residual, [GATE] = o->gate, [WEIGHT] = o->weight, [BIAS] = o->bias};
    for (int i = X; i <= BIAS; i++)
        if (paths[i])
            array_open(&a[i], paths[i], o->bf16);
    *s = shape_of(&a[X]);
    lay_rows(&a[X], s, s->n);
    for (int i = RESIDUAL; i <= GATE; i++)
        if (paths[i])
            check_like_x(&a[i], s);
    for (int i = WEIGHT; i <= BIAS; i++)
        if (paths[i])
            check_param(&a[i], s);
    check_sizes(o, s);
}

/* The part of an array that holds the rows from (i, j) on. */
static tn_out part(const struct array *a, size_t i, size_t j)
{
    tn_out v = {NULL, a->dtype, {a->stride[0], a->stride[1]}, a->inner};
    ptrdiff_t at = (ptrdiff_t)i * a->stride[0] + (ptrdiff_t)j * a->stride[1];
    if (a->map)
        v.data = a->data + at * (ptrdiff_t)tn_dtype_size(a->dtype);
    return v;
}

static tn_in part_in(const struct array *a, size_t i, size_t j)
{
    tn_out v = part(a, i, j);
    tn_in in = {v.data, v.dtype, {v.stride[0], v.stride[1]}, v.inner};
    return in;
}

/* Gives back the pages of an array in C order up to row `row`; a page of the output stays in the page cache
 * until it is on the disk. */
static void release(struct array *a, size_t row)
{
    if (!a->map || a->head.fortran_order)
        return;
    size_t row_bytes = a->head.shape[a->head.rank - 1] * a->head.item, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t end = (a->head.data_offset + row * row_bytes) / page * page;
    if (end > a->released)
        madvise(a->map + a->released, end - a->released, MADV_DONTNEED);
    a->released = end;
}

static void run_slab(const struct norm_options *o, struct array *a, const tn_norm_desc *desc, size_t i,
                     size_t j)
{
    tn_executor openmp = tn_openmp();
    tn_norm_io io = tn_io_init();
    io.x = part_in(&a[X], i, j);
    io.residual = part_in(&a[RESIDUAL], i, j);
    io.gate = part_in(&a[GATE], i, j);
    io.weight = part_in(&a[WEIGHT], i, j);
    io.bias = part_in(&a[BIAS], i, j);
    io.y = part(&a[Y], i, j);
    io.sum = part(&a[SUM], i, j);
    io.scale_out = part(&a[SCALE], i, j);
    if (o->scale > 0)
        io.scale_in = tn_in_param(&o->scale, TN_F64);
    tn_status status = tn_norm_forward(desc, &io, o->threads == 1 ? NULL : &openmp);
    if (status != TN_OK)
        fail("%s: %s", o->x, tn_status_text(status));
}

static void run_slabs(const struct norm_options *o, struct array *a, const struct shape *s)
{
    tn_norm_desc desc = o->desc;
    size_t row_bytes = s->n * a[X].head.item;
    size_t slab = row_bytes ? SLAB_BYTES / row_bytes : SIZE_MAX;
    slab = slab ? slab : 1;
    /* Whole runs of rows[1] where several fit, else parts of one. */
    size_t step0 = s->rows[1] && slab / s->rows[1] ? slab / s->rows[1] : 1;
    size_t step1 = slab < s->rows[1] ? slab : s->rows[1];
    size_t total = s->rows[0] * s->rows[1];

    desc.n = s->n;
    if (total == 0) { /* nothing to do, but the options are still checked */
        desc.rows[0] = desc.rows[1] = 0;
        run_slab(o, a, &desc, 0, 0);
        return;
    }
    progress_start(total * row_bytes);
    for (size_t i = 0; i < s->rows[0]; i += step0) {
        desc.rows[0] = s->rows[0] - i < step0 ? s->rows[0] - i : step0;
        for (size_t j = 0; j < s->rows[1]; j += step1) {
            desc.rows[1] = s->rows[1] - j < step1 ? s->rows[1] - j : step1;
            run_slab(o, a, &desc, i, j);
            size_t done = (i + desc.rows[0] - 1) * s->rows[1] + j + desc.rows[1];
            for (int k = 0; k < ARRAYS; k++)
                if (k != WEIGHT && k != BIAS)
                    release(&a[k], done);
            progress_update(done * row_bytes);
        }
    }
    progress_clear();
}

void norm_files(const struct norm_options *o)
{
    struct array a[ARRAYS] = {{0}};
    struct shape s;
    open_inputs(o, a, &s);
    array_create(&a[Y], o->y, output_dtype(o, a[X].dtype, a[WEIGHT].dtype), &s, s.n);
    if (o->sum)
        array_create(&a[SUM], o->sum, a[X].dtype, &s, s.n);
    if (o->scale_out)
        array_create(&a[SCALE], o->scale_out, TN_F32, &s, 1);
    run_slabs(o, a, &s);
    output_commit();
}
