/* test_vec.c - each op of each vector header against vec_scalar.h, bit for bit; every 16-bit pattern, every tail.
 *
 * test_vec [--all]: --all tries all 2^32 floats in the conversions instead of every 251st and the neighbours of
 * every 16-bit value. Standalone, so that it also runs as a static binary under an emulator. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/half.h"
#include "run/cpu.h"
#include "vec/vec_ops.h"

static long checks, failures;
static const char *machine;

static uint64_t random_state = 1;
static uint64_t random_bits(void)
{
    uint64_t z = (random_state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* Ordinary values, any bit pattern, and the special ones, in turn. */
static float random_f32(void)
{
    static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0x7f800001, 1,          0x807fffff, 0x00800000, 0x7f7fffff,
                                       0x3f800000, 0x477ff000, 0x33000000, 0x33000001};
    uint64_t r = random_bits();
    if (r % 8 == 0)
        return tn_bits_f32(special[r / 8 % (sizeof special / sizeof *special)]);
    return r % 8 < 4 ? tn_bits_f32((uint32_t)(r >> 20)) : (float)((double)(int64_t)r * 0x1p-62);
}
static double random_f64(void)
{
    uint64_t r = random_bits();
    double d;
    if (r % 4)
        return (double)(int64_t)random_bits() * 0x1p-62;
    r = r % 8 ? random_bits() : (r >> 3 & 1 ? 0x7ff0000000000000ull : 0x8000000000000000ull);
    memcpy(&d, &r, 8);
    return d;
}

static int same_f32(float a, float b) { return (a != a && b != b) || tn_f32_bits(a) == tn_f32_bits(b); }
static int same_f64(double a, double b) { return (a != a && b != b) || tn_f64_bits(a) == tn_f64_bits(b); }
static void expect(int ok, const char *what, int detail)
{
    checks++;
    if (!ok && failures++ < 20)
        printf("FAIL %s: %s (%d)\n", machine, what, detail);
}
static void expect_f32(const float *got, const float *want, const char *what, int detail)
{
    for (int j = 0; j < 16; j++)
        expect(same_f32(got[j], want[j]), what, detail);
}
static void expect_f64(const double *got, const double *want, const char *what, int detail)
{
    for (int j = 0; j < 16; j++)
        expect(same_f64(got[j], want[j]), what, detail);
}

static void test_arithmetic(const struct vec_ops *t)
{
    const struct vec_ops *s = &vec_ops_scalar;
    float a[16], b[16], c[16], f[16], g[16];
    double x[16], y[16], z[16], p[16], q[16];
    for (int round = 0; round < 4000; round++) {
        for (int j = 0; j < 16; j++) {
            a[j] = random_f32(), b[j] = random_f32(), c[j] = random_f32();
            x[j] = random_f64(), y[j] = random_f64(), z[j] = random_f64();
        }
        for (int op = 0; op < F32_OPS; op++) {
            t->f32(op, a, b, c, f);
            s->f32(op, a, b, c, g);
            expect_f32(f, g, "f32 op", op);
        }
        for (int op = 0; op < F64_OPS; op++) {
            if (op == F64_POW2)
                for (int j = 0; j < 16; j++)
                    x[j] = (double)(int64_t)(random_bits() % 2046) - 1022;
            t->f64(op, x, y, z, p);
            s->f64(op, x, y, z, q);
            expect_f64(p, q, "f64 op", op);
        }
        for (int j = 0; j < 16; j++)
            x[j] = random_f64();
        t->widen(a, p), s->widen(a, q), expect_f64(p, q, "widen", round);
        t->narrow(x, f), s->narrow(x, g), expect_f32(f, g, "narrow", round);
        size_t n = (size_t)round % 17;
        t->first(x, n, p), s->first(x, n, q), expect_f64(p, q, "first", (int)n);
        expect(same_f64(t->sum(x), s->sum(x)), "sum", round);
        for (int j = 0; j < 16; j++)
            x[j] = x[j] != x[j] ? 1.0 : x[j] < 0 ? -x[j] : x[j];
        expect(same_f64(t->hmax(x), s->hmax(x)), "hmax", round);
    }
}

/* What works on several blocks, or on memory, at once. */
static void test_blocks(const struct vec_ops *t)
{
    static const tn_dtype types[] = {TN_F32, TN_BF16, TN_F16};
    const struct vec_ops *s = &vec_ops_scalar;
    double rows[256], p[16], q[16];
    float f[64], g[16], h[16];
    for (int round = 0; round < 3000; round++) {
        for (int j = 0; j < 256; j++)
            rows[j] = random_f64() * (round % 2 ? 1.0 : 100.0);
        t->sum_rows(rows, p), s->sum_rows(rows, q), expect_f64(p, q, "sum_rows", round);
        signed char a[16], b[16];
        for (int j = 0; j < 16; j++) /* halves are the ties */
            rows[j] = random_bits() % 4 ? (double)((int)(random_bits() % 1024) - 512) * 0.5 : rows[j];
        t->store_i8(rows, a), s->store_i8(rows, b), expect(memcmp(a, b, 16) == 0, "store_i8", round);
        for (int j = 0; j < 64; j++)
            f[j] = random_f32();
        for (int j = 0; j < 64; j++) /* NaNs may differ in their bits; one subnormal now and then */
            f[j] = f[j] != f[j] ? 1.0f : round % 3 && tn_f32_bits(f[j]) << 1 < 0x1000000u ? 2.0f : f[j];
        if (round % 3 == 1)
            f[random_bits() % 64] = round % 2 ? 0.0f : -0.0f;
        for (int k = 0; k < 3; k++) {
            _Alignas(64) unsigned char x[256] = {0}, y[256] = {0};
            for (size_t m = 1; m <= 4; m *= 2)
                for (int past = 0; past < 2; past++) {
                    memset(x, past, sizeof x), memset(y, past, sizeof y);
                    t->put(past, types[k], x, f + 64 - 16 * m, m);
                    s->put(past, types[k], y, f + 64 - 16 * m, m);
                    expect(memcmp(x, y, sizeof x) == 0, "put", round);
                }
            for (int j = 0; j < 128; j++)
                x[j] = (unsigned char)random_bits();
            t->widen_memory(types[k], x, 3, p), s->widen_memory(types[k], x, 3, q);
            expect_f64(p, q, "widen_memory", round);
        }
        for (int j = 0; j < 16; j++)
            f[j] = 0.7f + (float)(random_bits() % 1000) * 0.001f;
        t->scale2(f, round % 231 - 115, g), s->scale2(f, round % 231 - 115, h),
            expect_f32(g, h, "scale2", round);
        for (int j = 0; j < 16; j++)
            f[j] = round % 3 && random_bits() % 16 ? 1.0f : random_f32();
        expect(!t->any_less(f, 0.5f) == !s->any_less(f, 0.5f), "any_less", round);
        static const float edges[] = {0.0f,       -0.0f,     0x1p-149f,    0x1.fffffep-127f,
                                      -0x1p-126f, 0x1p-100f, -0x1.8p-101f, -0x1.fffffep-101f,
                                      INFINITY,   NAN};
        for (int j = 0; j < 32; j++)
            f[j] = random_bits() % 4 ? random_f32() : 0.0f;
        for (int j = 0; j < 32 && round % 2; j++)
            f[j] = j == round / 2 % 32 ? edges[random_bits() % 10] : j % 3 ? 0.0f : -1.0f;
        for (int normal = 0; normal < 2; normal++)
            expect(!t->any_tiny(normal, f) == !s->any_tiny(normal, f), "any_tiny", round);
    }
}

/* Loads and stores of 1..16 elements at every offset from a base, between canaries. */
static void test_memory(const struct vec_ops *t)
{
    static const tn_dtype types[] = {TN_F32, TN_BF16, TN_F16};
    unsigned char memory[256], before[256], expected[256];
    float in[16], got[16], want[16];
    for (int k = 0; k < 3; k++)
        for (size_t n = 1; n <= 16; n++)
            for (size_t offset = 0; offset < 24; offset++) {
                for (size_t j = 0; j < sizeof memory; j++)
                    memory[j] = (unsigned char)random_bits();
                t->load(types[k], memory + offset, 3, n, got);
                vec_ops_scalar.load(types[k], memory + offset, 3, n, want);
                expect_f32(got, want, "load", (int)n);
                for (int j = 0; j < 16; j++)
                    in[j] = random_f32() * 0.5f;
                for (int j = 0; j < 16; j++)
                    in[j] = in[j] != in[j] ? 0.0f : in[j];
                memcpy(before, memory, sizeof memory);
                t->store(types[k], memory + offset, 3, n, in);
                memcpy(expected, before, sizeof before);
                vec_ops_scalar.store(types[k], expected + offset, 3, n, in);
                expect(memcmp(memory, expected, sizeof memory) == 0, "store", (int)n);
            }
}

static void test_decode(const struct vec_ops *t)
{
    uint16_t h[16];
    float got[16];
    for (uint32_t u = 0; u < 65536; u += 16) {
        for (uint32_t j = 0; j < 16; j++)
            h[j] = (uint16_t)(u + j);
        for (int k = 0; k < 2; k++) {
            t->load(k ? TN_F16 : TN_BF16, h, 0, 16, got);
            for (uint32_t j = 0; j < 16; j++)
                expect(same_f32(got[j], k ? tn_f16_to_f32(h[j]) : tn_bf16_to_f32(h[j])), "decode",
                       (int)(u + j));
        }
    }
}

static void encode_block(const struct vec_ops *t, const float *in)
{
    uint16_t h[16];
    float back[16];
    for (int k = 0; k < 2; k++) {
        tn_dtype dt = k ? TN_F16 : TN_BF16;
        t->store(dt, h, 0, 16, in);
        t->round(dt, in, back);
        for (int j = 0; j < 16; j++) {
            uint16_t want = k ? tn_f32_to_f16(in[j]) : tn_f32_to_bf16(in[j]);
            float value = k ? tn_f16_to_f32(want) : tn_bf16_to_f32(want);
            float decoded = k ? tn_f16_to_f32(h[j]) : tn_bf16_to_f32(h[j]);
            int both_nan = in[j] != in[j] && decoded != decoded;
            expect(h[j] == want || both_nan, "encode", (int)tn_f32_bits(in[j]));
            expect(same_f32(back[j], value), "round", (int)tn_f32_bits(in[j]));
        }
    }
}

static void test_encode(const struct vec_ops *t, int all)
{
    float in[16];
    const uint64_t step = all ? 1 : 251;
    for (uint64_t u = 0; u < 0x100000000ull; u += 16 * step) {
        for (uint64_t j = 0; j < 16; j++)
            in[j] = tn_bits_f32((uint32_t)(u + j * step));
        encode_block(t, in);
    }
    /* each 16-bit value, each midpoint, and their neighbours */
    for (uint32_t u = 0; u < 65536; u++) {
        uint32_t b = u << 16, f = tn_f32_bits(tn_f16_to_f32((uint16_t)u));
        uint32_t near[16] = {b,          b + 1,      b - 1,      b + 0x7fff, b + 0x8000, b + 0x8001,
                             f,          f + 1,      f - 1,      f + 0xfff,  f + 0x1000, f + 0x1001,
                             f + 0x2000, f - 0x1000, f - 0x1001, f - 0xfff};
        for (int j = 0; j < 16; j++)
            in[j] = tn_bits_f32(near[j]);
        encode_block(t, in);
    }
}

/* The scalar conversions themselves, against exact arithmetic in f64: nearest, ties to even. */
static void test_scalar_conversions(void)
{
    machine = "half.h";
    for (uint32_t u = 0; u < 0x7bff; u++) { /* between each pair of neighbouring f16 values */
        float lo = tn_f16_to_f32((uint16_t)u), hi = tn_f16_to_f32((uint16_t)(u + 1));
        float mid = (float)(((double)lo + (double)hi) / 2);
        expect(tn_f32_to_f16(mid) == (u & 1 ? u + 1 : u), "f16 tie", (int)u);
        expect(tn_f32_to_f16(tn_bits_f32(tn_f32_bits(mid) - 1)) == u, "f16 below the tie", (int)u);
        expect(tn_f32_to_f16(tn_bits_f32(tn_f32_bits(mid) + 1)) == u + 1, "f16 above the tie", (int)u);
        expect(tn_f32_to_f16(-mid) == (0x8000u | (u & 1 ? u + 1 : u)), "negative f16 tie", (int)u);
    }
    for (uint32_t u = 0; u < 0x7e; u++) { /* e4m3: value of code c is exact in f64 */
        double v[2];
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t c = u + k, e = c >> 3, m = c & 7;
            v[k] = e ? (8.0 + m) * tn_bits_f32((117 + e) << 23) : m * 0x1p-9;
        }
        double mid = (v[0] + v[1]) / 2;
        expect(tn_f64_to_e4m3(v[0]) == u, "e4m3 exact", (int)u);
        expect(tn_f64_to_e4m3(mid) == (u & 1 ? u + 1 : u), "e4m3 tie", (int)u);
        expect(tn_f64_to_e4m3(mid * (1 + 0x1p-50)) == u + 1, "e4m3 above", (int)u);
        expect(tn_f64_to_e4m3(-mid * (1 - 0x1p-50)) == (0x80 | u), "e4m3 below", (int)u);
    }
    expect(tn_f64_to_e4m3(1e300) == 0x7e && tn_f64_to_e4m3(-500) == 0xfe, "e4m3 saturates", 0);
    for (uint32_t u = 0; u < 0x7b; u++) { /* e5m2 is f16 cut to 8 bits */
        double lo = (double)tn_f16_to_f32((uint16_t)(u << 8)),
               hi = (double)tn_f16_to_f32((uint16_t)((u + 1) << 8));
        double mid = (lo + hi) / 2;
        expect(tn_f64_to_e5m2(lo) == u, "e5m2 exact", (int)u);
        expect(tn_f64_to_e5m2(mid) == (u & 1 ? u + 1 : u), "e5m2 tie", (int)u);
        expect(tn_f64_to_e5m2(mid * (1 + 0x1p-50)) == u + 1, "e5m2 above", (int)u);
    }
    expect(tn_f64_to_e5m2(1e300) == 0x7c && tn_f64_to_e5m2(61440.0) == 0x7c &&
               tn_f64_to_e5m2(61439.0) == 0x7b,
           "e5m2 overflow", 0);
    expect(tn_f64_to_i8(2.5) == 2 && tn_f64_to_i8(-3.5) == -4 && tn_f64_to_i8(1e9) == 127 &&
               tn_f64_to_i8(-1e9) == -128,
           "int8", 0);
}

static void test_machine(const struct vec_ops *t, int all)
{
    machine = t->name;
    test_arithmetic(t);
    test_memory(t);
    test_blocks(t);
    test_decode(t);
    test_encode(t, all);
    printf("%s: %ld checks, %ld failures so far\n", t->name, checks, failures);
}

int main(int argc, char **argv)
{
    int all = argc > 1 && strcmp(argv[1], "--all") == 0;
    unsigned cpu = tn_cpu_detect();
    test_scalar_conversions();
    test_machine(&vec_ops_scalar, all);
#if TN_ARCH_X86_64
    if (cpu & TN_CPU_AVX2)
        test_machine(&vec_ops_avx2, all);
    if (cpu & TN_CPU_AVX512)
        test_machine(&vec_ops_avx512, all);
    if ((cpu & TN_CPU_AVX512) && (cpu & TN_CPU_AVX512BF16))
        test_machine(&vec_ops_avx512bf16, all);
#endif
#if TN_ARCH_NEON
    if (cpu & TN_CPU_NEON)
        test_machine(&vec_ops_neon, all);
#endif
    return failures != 0;
}
