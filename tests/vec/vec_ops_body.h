/* vec_ops_body.h - compiled once per machine, after its vector header; TN_VEC_NAME names the machine. */

static void ops_f32(int op, const float *pa, const float *pb, const float *pc, float *out)
{
    vf a = vf_load(TN_F32, pa, 0), b = vf_load(TN_F32, pb, 0), c = vf_load(TN_F32, pc, 0), r = a;
    switch (op) {
    case F32_ADD:
        r = vf_add(a, b);
        break;
    case F32_SUB:
        r = vf_sub(a, b);
        break;
    case F32_MUL:
        r = vf_mul(a, b);
        break;
    case F32_FMA:
        r = vf_fma(a, b, c);
        break;
    case F32_FMS:
        r = vf_fms(a, b, c);
        break;
    case F32_DIV:
        r = vf_div(a, b);
        break;
    case F32_ABS:
        r = vf_abs(a);
        break;
    case F32_MIN:
        r = vf_min(a, b);
        break;
    case F32_SET1:
        r = vf_set1(pa[3]);
        break;
    default:
        break;
    }
    vf_store(TN_F32, out, 0, r);
}

static void ops_f64(int op, const double *pa, const double *pb, const double *pc, double *out)
{
    vd a = vd_load(pa), b = vd_load(pb), c = vd_load(pc), r = a;
    switch (op) {
    case F64_ADD:
        r = vd_add(a, b);
        break;
    case F64_SUB:
        r = vd_sub(a, b);
        break;
    case F64_MUL:
        r = vd_mul(a, b);
        break;
    case F64_PLUS:
        r = vd_plus(a, b);
        break;
    case F64_SQRT:
        r = vd_sqrt(a);
        break;
    case F64_DIV:
        r = vd_div(a, b);
        break;
    case F64_FMA:
        r = vd_fma(a, b, c);
        break;
    case F64_MAX:
        r = vd_max(a, b);
        break;
    case F64_ABS:
        r = vd_abs(a);
        break;
    case F64_SELECT_NEG:
        r = vd_select_neg(a, b, c);
        break;
    case F64_SET1:
        r = vd_set1(pa[5]);
        break;
    case F64_POW2:
        r = vd_pow2(a);
        break;
    default:
        break;
    }
    vd_store(out, r);
}

static void ops_load(tn_dtype dt, const void *p, size_t i, size_t n, float *out)
{
    vf r = dt == TN_F32    ? (n == 16 ? vf_load(TN_F32, p, i) : vf_load_n(TN_F32, p, i, n))
           : dt == TN_BF16 ? (n == 16 ? vf_load(TN_BF16, p, i) : vf_load_n(TN_BF16, p, i, n))
                           : (n == 16 ? vf_load(TN_F16, p, i) : vf_load_n(TN_F16, p, i, n));
    vf_store(TN_F32, out, 0, r);
}

static void store_one(tn_dtype dt, void *p, size_t i, size_t n, vf v)
{
    if (n == 16)
        vf_store(dt, p, i, v);
    else
        vf_store_n(dt, p, i, v, n);
}
static void ops_store(tn_dtype dt, void *p, size_t i, size_t n, const float *in)
{
    vf v = vf_load(TN_F32, in, 0);
    if (dt == TN_F32)
        store_one(TN_F32, p, i, n, v);
    else if (dt == TN_BF16)
        store_one(TN_BF16, p, i, n, v);
    else
        store_one(TN_F16, p, i, n, v);
}

static void ops_round(tn_dtype dt, const float *in, float *out)
{
    vf v = vf_load(TN_F32, in, 0);
    vf_store(TN_F32, out, 0,
             dt == TN_BF16  ? vf_round(TN_BF16, v)
             : dt == TN_F16 ? vf_round(TN_F16, v)
                            : vf_round(TN_F32, v));
}
static void ops_widen(const float *in, double *out) { vd_store(out, vd_from_vf(vf_load(TN_F32, in, 0))); }
static void ops_narrow(const double *in, float *out) { vf_store(TN_F32, out, 0, vd_to_vf(vd_load(in))); }
static void ops_first(const double *in, size_t n, double *out) { vd_store(out, vd_first(vd_load(in), n)); }
static double ops_sum(const double *in) { return vd_sum(vd_load(in)); }
static double ops_hmax(const double *in) { return vd_hmax(vd_load(in)); }
static int ops_any_tiny(bool normal, const float *in)
{
    vf a = vf_load(TN_F32, in, 0), b = vf_load(TN_F32, in, 16);
    if (normal)
        return vt_any(vt_tiny(vt_tiny(vt_none(), a, 0x1p-126f), b, 0x1p-126f), 0x1p-126f);
    return vt_any(vt_tiny(vt_tiny(vt_none(), a, 0x1p-100f), b, 0x1p-100f), 0x1p-100f);
}

static int ops_any_less(const float *in, float limit) { return vf_any_less(vf_load(TN_F32, in, 0), limit); }
static void ops_scale2(const float *in, int k, float *out)
{
    vf_store(TN_F32, out, 0, vf_scale2(vf_load(TN_F32, in, 0), vf_set1(0x1.8p23f + (float)k)));
}
static void ops_widen_memory(tn_dtype dt, const void *p, size_t i, double *out)
{
    vd_store(out, dt == TN_F32    ? vd_widen(TN_F32, p, i)
                  : dt == TN_BF16 ? vd_widen(TN_BF16, p, i)
                                  : vd_widen(TN_F16, p, i));
}
static void ops_sum_rows(const double *in, double *out)
{
    vd rows[16];
    for (int j = 0; j < 16; j++)
        rows[j] = vd_load(in + 16 * j);
    vd_store(out, vd_sum_rows(rows));
}
static void ops_store_i8(const double *in, void *p) { vd_store_i8(p, vd_load(in)); }
static void put_some(bool past, tn_dtype dt, void *p, const vf *v, size_t m)
{
    if (m == 1)
        past ? vf_put(true, dt, p, 0, v, 1) : vf_put(false, dt, p, 0, v, 1);
    else if (m == 2)
        past ? vf_put(true, dt, p, 0, v, 2) : vf_put(false, dt, p, 0, v, 2);
    else
        past ? vf_put(true, dt, p, 0, v, 4) : vf_put(false, dt, p, 0, v, 4);
}
static void ops_put(bool past, tn_dtype dt, void *p, const float *in, size_t m)
{
    vf v[4];
    for (size_t j = 0; j < m; j++)
        v[j] = vf_load(TN_F32, in, 16 * j);
    if (dt == TN_F32)
        put_some(past, TN_F32, p, v, m);
    else if (dt == TN_BF16)
        put_some(past, TN_BF16, p, v, m);
    else
        put_some(past, TN_F16, p, v, m);
    vf_stream_end();
}

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define STRING_(x) #x
#define STRING(x) STRING_(x)
const struct vec_ops PASTE(vec_ops_, TN_VEC_NAME) = {
    STRING(TN_VEC_NAME), ops_f32,    ops_f64,          ops_load,     ops_store,    ops_round,
    ops_widen,           ops_narrow, ops_first,        ops_sum,      ops_hmax,     ops_any_tiny,
    ops_any_less,        ops_scale2, ops_widen_memory, ops_sum_rows, ops_store_i8, ops_put};
