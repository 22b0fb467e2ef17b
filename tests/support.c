/* support.c - random numbers, dtypes, row generators. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t rng_next(struct rng *r)
{
    uint64_t z = (r->state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

size_t rng_below(struct rng *r, size_t limit)
{
    return (size_t)((rng_next(r) >> 32) * (uint64_t)limit >> 32);
}

double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 32) * 0x1p-32;
}

double rng_normal(struct rng *r)
{
    uint64_t sum = 0;
    for (int i = 0; i < 6; i++) {
        uint64_t z = rng_next(r);
        sum += (z >> 32) + (z & 0xffffffffu);
    }
    return (double)((int64_t)sum - ((int64_t)6 << 32)) * 0x1p-32;
}

/* ---- dtypes -------------------------------------------------------------------------------------- */

static const struct dtype_info dtypes[] = {
    [TN_NONE] = {"none", 0, 0, 0, 0, 0, false},
    [TN_F64] = {"f64", 8, 53, -1022, 1023, 0x1.fffffffffffffp1023, false},
    [TN_F32] = {"f32", 4, 24, -126, 127, 0x1.fffffep127, false},
    [TN_BF16] = {"bf16", 2, 8, -126, 127, 0x1.fep127, false},
    [TN_F16] = {"f16", 2, 11, -14, 15, 65504.0, false},
    [TN_I8] = {"i8", 1, 0, 0, 6, 127.0, true},
    [TN_E4M3] = {"e4m3", 1, 4, -6, 8, 448.0, true},
    [TN_E5M2] = {"e5m2", 1, 3, -14, 15, 57344.0, false},
};

const struct dtype_info *dtype_info(tn_dtype dtype)
{
    static const struct dtype_info unknown = {"unknown", 1, 0, 0, 0, 0, false};
    return (unsigned)dtype <= TN_E5M2 ? &dtypes[dtype] : &unknown;
}

bool dtype_is_float(tn_dtype dtype)
{
    return dtype >= TN_F64 && dtype <= TN_F16;
}

static double round_i8(double v)
{
    if (v != v)
        return 0;
    v = rint(v);
    return v < -128 ? -128 : v > 127 ? 127 : v;
}

double dtype_round(tn_dtype dtype, double v)
{
    const struct dtype_info *d = dtype_info(dtype);
    if (dtype == TN_F64 || v != v)
        return dtype == TN_I8 ? 0 : v;
    if (dtype == TN_I8)
        return round_i8(v);
    double r = v;
    if (fabs(v) < 0x1p200 && v != 0) {
        int e;
        frexp(v, &e);
        e = e - 1 < d->emin ? d->emin : e - 1;
        int shift = d->precision - 1 - e;
        r = ldexp(rint(ldexp(v, shift)), -shift); /* both scalings are exact below 2^200 */
    }
    if (fabs(r) > d->largest)
        return copysign(d->saturates ? d->largest : INFINITY, v);
    return r;
}

/* ---- encodings ----------------------------------------------------------------------------------- */

/* A float format of 1 + `exponent_bits` + `mantissa_bits` bits, all ones in the exponent meaning inf and NaN. */
static double decode_small(unsigned code, int exponent_bits, int mantissa_bits, bool has_inf)
{
    unsigned mantissa = code & ((1u << mantissa_bits) - 1), top = (1u << exponent_bits) - 1;
    unsigned exponent = code >> mantissa_bits & top;
    double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;
    int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == top && has_inf)
        return mantissa ? NAN : sign * INFINITY;
    if (!has_inf && exponent == top && mantissa == (1u << mantissa_bits) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa | 1u << mantissa_bits, (int)exponent - bias - mantissa_bits);
}

static unsigned encode_small(double v, int exponent_bits, int mantissa_bits, bool has_inf)
{
    unsigned top = (1u << exponent_bits) - 1, sign = (unsigned)!!signbit(v)
                                                     << (exponent_bits + mantissa_bits);
    int bias = (1 << (exponent_bits - 1)) - 1, e;
    if (v != v)
        return sign | top << mantissa_bits |
               (has_inf ? 1u << (mantissa_bits - 1) : (1u << mantissa_bits) - 1);
    if (isinf(v))
        return sign | top << mantissa_bits;
    if (v == 0)
        return sign;
    frexp(v, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    unsigned q = (unsigned)ldexp(fabs(v), mantissa_bits - e); /* exact: v was rounded before */
    if (q >> mantissa_bits == 0)
        return sign | q;
    return sign | (((unsigned)(e + bias) << mantissa_bits) + (q - (1u << mantissa_bits)));
}

double dtype_get(const void *base, tn_dtype dtype, ptrdiff_t index)
{
    const unsigned char *p = (const unsigned char *)base + index * (ptrdiff_t)dtype_info(dtype)->size;
    union {
        double d;
        float f;
        uint16_t h;
        int8_t i;
        uint8_t b;
    } u;
    memcpy(&u, p, dtype_info(dtype)->size);
    switch (dtype) {
    case TN_F64:
        return u.d;
    case TN_F32:
        return (double)u.f;
    case TN_BF16:
        return decode_small(u.h, 8, 7, true);
    case TN_F16:
        return decode_small(u.h, 5, 10, true);
    case TN_I8:
        return u.i;
    case TN_E4M3:
        return decode_small(u.b, 4, 3, false);
    case TN_E5M2:
        return decode_small(u.b, 5, 2, true);
    default:
        return NAN;
    }
}

void dtype_put(void *base, tn_dtype dtype, ptrdiff_t index, double v)
{
    unsigned char *p = (unsigned char *)base + index * (ptrdiff_t)dtype_info(dtype)->size;
    double r = dtype_round(dtype, v);
    float f = (float)r;
    uint16_t h = 0;
    uint8_t b = 0;
    switch (dtype) {
    case TN_F64:
        memcpy(p, &r, 8);
        return;
    case TN_F32:
        memcpy(p, &f, 4);
        return;
    case TN_BF16:
        h = (uint16_t)encode_small(r, 8, 7, true);
        break;
    case TN_F16:
        h = (uint16_t)encode_small(r, 5, 10, true);
        break;
    case TN_I8:
        b = (uint8_t)(int8_t)r;
        break;
    case TN_E4M3:
        b = (uint8_t)encode_small(r, 4, 3, false);
        break;
    case TN_E5M2:
        b = (uint8_t)encode_small(r, 5, 2, true);
        break;
    default:
        return;
    }
    if (dtype_info(dtype)->size == 2)
        memcpy(p, &h, 2);
    else
        memcpy(p, &b, 1);
}

/* ---- row generators ------------------------------------------------------------------------------ */

static const char *const gen_names[] = {
    "normal",   "mean_1e4", "mean_1e6",  "mean_1e7", "huge",    "tiny",    "subnormal", "mixed",
    "constant", "outlier",  "lognormal", "zero",     "one_nan", "one_inf", "weight",    "gate",
};

const char *gen_name(enum gen g)
{
    return (unsigned)g <= GEN_GATE ? gen_names[g] : "?";
}

static double signed_unit(struct rng *r)
{
    double v = 1 + rng_unit(r);
    return rng_next(r) & 1 ? -v : v;
}

/* f16 and bf16 cannot hold N(0,1) around 1e6 and more; f16 gets a coarser row that still cancels. */
static double gen_large_mean(double normal, double mean, tn_dtype dtype)
{
    if (dtype == TN_F16)
        return 1e4 + 16 * normal;
    if (dtype == TN_BF16)
        return mean + mean * 0.02 * normal;
    return mean + normal;
}

/* Each random number has its own statement: the order of calls within an expression is the compiler's. */
static double gen_value(struct rng *r, enum gen g, tn_dtype dtype)
{
    const struct dtype_info *d = dtype_info(dtype);
    double sign = signed_unit(r), normal = rng_normal(r);
    size_t pick = (size_t)(rng_next(r) >> 40);
    switch (g) {
    case GEN_MEAN_1E4:
        return gen_large_mean(normal, 1e4, dtype);
    case GEN_MEAN_1E6:
        return gen_large_mean(normal, 1e6, dtype);
    case GEN_MEAN_1E7:
        return gen_large_mean(normal, 1e7, dtype);
    case GEN_HUGE:
        return ldexp(sign, d->emax - 1 - (int)(pick % 3));
    case GEN_TINY:
        return ldexp(normal, d->emin + 4);
    case GEN_SUBNORMAL:
        return ldexp(sign * (double)(pick % 3), d->emin - 3);
    case GEN_MIXED:
        return ldexp(sign, (int)(pick % (size_t)(d->emax - d->emin - 6)) + d->emin + 2);
    case GEN_LOGNORMAL:
        return ldexp(sign, (int)rint(normal * (dtype == TN_F16 ? 2 : 6)));
    case GEN_ZERO:
        return sign < 0 ? -0.0 : 0.0;
    case GEN_WEIGHT:
        return pick % 8 ? fabs(sign) - 0.5 : 0.5 - fabs(sign);
    case GEN_GATE:
        return normal * (pick % 16 ? 3 : 20);
    default:
        return normal;
    }
}

void gen_row(struct rng *r, enum gen g, tn_dtype dtype, size_t n, double *out)
{
    static const double constants[] = {0.1, 1234.0, -12345.7, 65504.0, 1e8, 3.0e38, -1e-30};
    double c = dtype_round(dtype, constants[rng_below(r, dtype == TN_F16 ? 4 : 7)]);
    if (c == 0 || isinf(c))
        c = 14;
    for (size_t k = 0; k < n; k++)
        out[k] = g == GEN_CONSTANT ? c : dtype_round(dtype, gen_value(r, g, dtype));
    if (n == 0)
        return;
    size_t at = rng_below(r, n);
    if (g == GEN_OUTLIER)
        out[at] = dtype_round(dtype, 1e4);
    if (g == GEN_ONE_NAN)
        out[at] = NAN;
    if (g == GEN_ONE_INF)
        out[at] = rng_next(r) & 1 ? INFINITY : -INFINITY;
}

/* ---- small things -------------------------------------------------------------------------------- */

void *must_malloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

bool views_equal(const tn_out *a, const tn_out *b, const size_t rows[2], size_t n, size_t where[3])
{
    size_t size = dtype_info(a->dtype)->size;
    for (size_t i = 0; i < rows[0]; i++)
        for (size_t j = 0; j < rows[1]; j++)
            for (size_t k = 0; k < n; k++) {
                ptrdiff_t ia =
                    (ptrdiff_t)i * a->stride[0] + (ptrdiff_t)j * a->stride[1] + (ptrdiff_t)k * a->inner;
                ptrdiff_t ib =
                    (ptrdiff_t)i * b->stride[0] + (ptrdiff_t)j * b->stride[1] + (ptrdiff_t)k * b->inner;
                const char *pa = (const char *)a->data + ia * (ptrdiff_t)size;
                const char *pb = (const char *)b->data + ib * (ptrdiff_t)size;
                if (memcmp(pa, pb, size) == 0)
                    continue;
                if (dtype_is_float(a->dtype) && isnan(dtype_get(pa, a->dtype, 0)) &&
                    isnan(dtype_get(pb, b->dtype, 0)))
                    continue;
                where[0] = i;
                where[1] = j;
                where[2] = k;
                return false;
            }
    return true;
}

int isa_unusable(void)
{
    const char *wanted = getenv("TN_ISA");
    if (!wanted || !*wanted || strcmp(wanted, tn_isa_name()) == 0)
        return 0;
    printf("skipped: %s is not usable here\n", wanted);
    return 77;
}
