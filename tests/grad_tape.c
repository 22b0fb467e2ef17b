/* grad_tape.c - forward and reverse of one group, an operation at a time, in the words of truenorm.h. */
#include "grad_oracle_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ADD(r, a, b) mpfr_add(r, a, b, MPFR_RNDN)
#define SUB(r, a, b) mpfr_sub(r, a, b, MPFR_RNDN)
#define MUL(r, a, b) mpfr_mul(r, a, b, MPFR_RNDN)
#define DIV(r, a, b) mpfr_div(r, a, b, MPFR_RNDN)
#define SET(r, a) mpfr_set(r, a, MPFR_RNDN)

static bool tape_ready;

void tape_reserve(struct tape *t, size_t n)
{
    if (!tape_ready)
        mpfr_inits2(TAPE_BITS, t->mean, t->moment, t->q, t->r, t->rr, t->sigma, t->t, t->t2, (mpfr_ptr)0);
    tape_ready = true;
    if (t->capacity >= n)
        return;
    free(t->limbs);
    free(t->cells);
    free(t->h_doubt);
    free(t->p_doubt);
    t->capacity = n;
    t->limbs = must_malloc(n * N_COUNT * TAPE_LIMBS * sizeof *t->limbs);
    t->cells = must_malloc(n * N_COUNT * sizeof *t->cells);
    t->h_doubt = must_malloc(n * sizeof *t->h_doubt);
    t->p_doubt = must_malloc(n * sizeof *t->p_doubt);
    for (size_t i = 0; i < n * N_COUNT; i++)
        mpfr_custom_init_set(&t->cells[i], MPFR_ZERO_KIND, 0, TAPE_BITS, t->limbs + i * TAPE_LIMBS);
    for (size_t i = 0; i < N_COUNT; i++)
        t->v[i] = t->cells + i * n;
}

void tape_free(struct tape *t)
{
    if (tape_ready)
        mpfr_clears(t->mean, t->moment, t->q, t->r, t->rr, t->sigma, t->t, t->t2, (mpfr_ptr)0);
    tape_ready = false;
    free(t->limbs);
    free(t->cells);
    free(t->h_doubt);
    free(t->p_doubt);
    memset(t, 0, sizeof *t);
}

/* ---- forward -------------------------------------------------------------------------------------- */

/* Rounds v to the dtype. Returns the distance to the other neighbour where v is so near to a tie that it may go
 * either way, else 0. */
static double round_real(struct tape *t, mpfr_ptr v, tn_dtype dtype)
{
    if (dtype == TN_NONE || dtype == TN_F64 || !mpfr_regular_p(v))
        return 0;
    double near = ldexp(TIE_ULP, ulp_exponent(dtype, v)), at = round_nearest(dtype, v);
    mpfr_add_d(t->t2, v, near, MPFR_RNDN);
    double high = round_nearest(dtype, t->t2);
    mpfr_sub_d(t->t2, v, near, MPFR_RNDN);
    double low = round_nearest(dtype, t->t2);
    mpfr_set_d(v, at, MPFR_RNDN);
    return high != low ? ulp_of(dtype, at) : 0;
}

static void activation(struct tape *t, size_t k)
{
    mpfr_ptr act = &t->v[N_ACT][k], slope = &t->v[N_SLOPE][k], g = &t->v[N_GATE][k];
    mpfr_neg(act, g, MPFR_RNDN);
    mpfr_exp(act, act, MPFR_RNDN);
    mpfr_add_ui(act, act, 1, MPFR_RNDN);
    mpfr_ui_div(act, 1, act, MPFR_RNDN); /* the sigmoid */
    mpfr_ui_sub(slope, 1, act, MPFR_RNDN);
    if (t->d->act == TN_SIGMOID) {
        MUL(slope, slope, act);
        return;
    }
    MUL(slope, slope, g);
    mpfr_add_ui(slope, slope, 1, MPFR_RNDN);
    MUL(slope, slope, act);
    MUL(act, act, g);
}

/* sigma = sqrt(v), or sqrt(v + eps) where eps is inside; q = what d is divided by; r = 1/q. */
static void divisor_of_row(struct tape *t)
{
    const tn_norm_desc *d = t->d;
    if (d->kind == TN_L2)
        SET(t->sigma, t->moment);
    else
        mpfr_div_d(t->sigma, t->moment, t->divisor, MPFR_RNDN);
    if (d->eps_mode == TN_EPS_INSIDE)
        mpfr_add_d(t->sigma, t->sigma, d->eps, MPFR_RNDN);
    mpfr_sqrt(t->sigma, t->sigma, MPFR_RNDN);
    SET(t->q, t->sigma);
    if (d->eps_mode == TN_EPS_OUTSIDE)
        mpfr_add_d(t->q, t->q, d->eps, MPFR_RNDN);
    if (d->eps_mode == TN_EPS_CLAMP && mpfr_cmp_d(t->q, d->eps) <= 0)
        mpfr_set_d(t->q, d->eps, MPFR_RNDN);
    if (mpfr_zero_p(t->q))
        mpfr_set_zero(t->r, 1);
    else
        mpfr_ui_div(t->r, 1, t->q, MPFR_RNDN);
    SET(t->rr, t->r);
    t->r_doubt = round_real(t, t->rr, t->round_r);
    if (t->r_doubt > 0)
        t->r_doubt /= magnitude(t->rr);
}

static void statistics(struct tape *t)
{
    mpfr_set_zero(t->mean, 1);
    for (size_t k = 0; k < t->counted && t->d->kind == TN_LAYER; k++)
        ADD(t->mean, t->mean, &t->v[N_U][k]);
    mpfr_div_d(t->mean, t->mean, t->divisor, MPFR_RNDN);
    mpfr_set_zero(t->moment, 1);
    for (size_t k = 0; k < t->n; k++) {
        SUB(&t->v[N_D][k], &t->v[N_U][k], t->mean);
        mpfr_sqr(t->t, &t->v[N_D][k], MPFR_RNDN);
        if (k < t->counted)
            ADD(t->moment, t->moment, t->t);
    }
    divisor_of_row(t);
}

void tape_forward(struct tape *t)
{
    real **v = t->v;
    for (size_t k = 0; k < t->n; k++) {
        if (t->d->gate != TN_GATE_NONE)
            activation(t, k);
        SET(&v[N_U][k], &v[N_S][k]);
        if (t->d->gate == TN_GATE_BEFORE)
            MUL(&v[N_U][k], &v[N_S][k], &v[N_ACT][k]);
    }
    statistics(t);
    for (size_t k = 0; k < t->n; k++) {
        MUL(&v[N_H][k], &v[N_D][k], t->rr);
        SET(&v[N_HR][k], &v[N_H][k]);
        t->h_doubt[k] = round_real(t, &v[N_HR][k], t->round_h);
        MUL(&v[N_A][k], &v[N_HR][k], &v[N_W][k]);
        t->p_doubt[k] = round_real(t, &v[N_A][k], t->round_p);
        ADD(&v[N_A][k], &v[N_A][k], &v[N_B][k]);
        mpfr_add_ui(t->t, &v[N_MUL][k], 1, MPFR_RNDN);
        MUL(&v[N_Z][k], &v[N_A][k], t->t);
        ADD(&v[N_Z][k], &v[N_Z][k], &v[N_ADD][k]);
    }
}

/* ---- reverse -------------------------------------------------------------------------------------- */

/* From y back to h; roundings pass the gradient on as it is. */
static void reverse_element(struct tape *t, size_t k)
{
    real **v = t->v;
    SET(&v[N_DZ][k], &v[N_DY][k]);
    mpfr_set_zero(&v[N_DGATE][k], 1);
    if (t->d->gate == TN_GATE_AFTER) { /* y = z act(gate) */
        MUL(&v[N_DZ][k], &v[N_DY][k], &v[N_ACT][k]);
        MUL(&v[N_DGATE][k], &v[N_DY][k], &v[N_Z][k]);
        MUL(&v[N_DGATE][k], &v[N_DGATE][k], &v[N_SLOPE][k]);
    }
    SET(&v[N_DADD][k], &v[N_DZ][k]); /* z = a (1 + mul) + add */
    MUL(&v[N_DMUL][k], &v[N_DZ][k], &v[N_A][k]);
    mpfr_add_ui(t->t, &v[N_MUL][k], 1, MPFR_RNDN);
    MUL(&v[N_DB][k], &v[N_DZ][k], t->t); /* a = w hr + b */
    MUL(&v[N_DW][k], &v[N_DB][k], &v[N_HR][k]);
    MUL(&v[N_DH][k], &v[N_DB][k], &v[N_W][k]);
}

/* dL/dmoment into t->t, from dL/dr = sum of dh d. */
static void reverse_statistics(struct tape *t)
{
    mpfr_set_zero(t->t, 1);
    for (size_t k = 0; k < t->n; k++) {
        MUL(t->t2, &t->v[N_DH][k], &t->v[N_D][k]);
        ADD(t->t, t->t, t->t2);
    }
    DIV(t->t, t->t, t->q); /* r = 1/q */
    DIV(t->t, t->t, t->q);
    mpfr_neg(t->t, t->t, MPFR_RNDN);
    bool clamped = t->d->eps_mode == TN_EPS_CLAMP && mpfr_cmp_d(t->sigma, t->d->eps) <= 0;
    if (clamped || mpfr_zero_p(t->sigma)) {
        mpfr_set_zero(t->t, 1);
        return;
    }
    DIV(t->t, t->t, t->sigma); /* sigma = sqrt(v (+ eps)) */
    mpfr_div_2ui(t->t, t->t, 1, MPFR_RNDN);
    if (t->d->kind != TN_L2) /* v = moment / divisor */
        mpfr_div_d(t->t, t->t, t->divisor, MPFR_RNDN);
}

void tape_reverse(struct tape *t)
{
    real **v = t->v;
    for (size_t k = 0; k < t->n; k++)
        reverse_element(t, k);
    reverse_statistics(t);
    mpfr_set_zero(t->t2, 1); /* dL/dmean */
    for (size_t k = 0; k < t->n; k++) {
        MUL(&v[N_DD][k], &v[N_DH][k], t->rr); /* h = d r */
        if (k < t->counted) {                 /* moment = sum of d^2 */
            MUL(&v[N_DS][k], &v[N_D][k], t->t);
            ADD(&v[N_DD][k], &v[N_DD][k], &v[N_DS][k]);
            ADD(&v[N_DD][k], &v[N_DD][k], &v[N_DS][k]);
        }
        SUB(t->t2, t->t2, &v[N_DD][k]); /* d = u - mean */
    }
    mpfr_div_d(t->t2, t->t2, t->divisor, MPFR_RNDN);
    for (size_t k = 0; k < t->n; k++) {
        SET(&v[N_DS][k], &v[N_DD][k]);
        if (k < t->counted && t->d->kind == TN_LAYER)
            ADD(&v[N_DS][k], &v[N_DS][k], t->t2);
        if (t->d->gate == TN_GATE_BEFORE) { /* u = s act(gate) */
            MUL(&v[N_DGATE][k], &v[N_DS][k], &v[N_S][k]);
            MUL(&v[N_DGATE][k], &v[N_DGATE][k], &v[N_SLOPE][k]);
            MUL(&v[N_DS][k], &v[N_DS][k], &v[N_ACT][k]);
        }
        ADD(&v[N_DS][k], &v[N_DS][k], &v[N_DSUM][k]); /* the sum is an output itself */
    }
}

/* ---- central differences -------------------------------------------------------------------------- */

/* L = sum of dy y + dsum s into out. */
static void loss(struct tape *t, mpfr_ptr out)
{
    tape_forward(t);
    mpfr_set_zero(out, 1);
    for (size_t k = 0; k < t->n; k++) {
        MUL(t->t, &t->v[N_DY][k], &t->v[N_Z][k]);
        if (t->d->gate == TN_GATE_AFTER)
            MUL(t->t, t->t, &t->v[N_ACT][k]);
        ADD(out, out, t->t);
        MUL(t->t, &t->v[N_DSUM][k], &t->v[N_S][k]);
        ADD(out, out, t->t);
    }
}

double tape_differences(struct tape *t)
{
    mpfr_t kept, high, low, analytic;
    double worst = 0, largest = 0;
    mpfr_inits2(TAPE_BITS, kept, high, low, analytic, (mpfr_ptr)0);
    for (int input = N_S; input <= N_ADD; input++)
        for (size_t k = 0; k < t->n; k++) {
            mpfr_ptr at = &t->v[input][k], result = &t->v[N_DS + input - N_S][k];
            SET(kept, at);
            SET(analytic, result);
            mpfr_set_ui_2exp(t->t, 1, mpfr_regular_p(kept) ? mpfr_get_exp(kept) - 80 : -80, MPFR_RNDN);
            ADD(at, kept, t->t);
            loss(t, high);
            SET(at, kept);
            mpfr_set_ui_2exp(t->t, 1, mpfr_regular_p(kept) ? mpfr_get_exp(kept) - 80 : -80, MPFR_RNDN);
            SUB(at, kept, t->t);
            loss(t, low);
            SET(at, kept);
            SUB(high, high, low);
            mpfr_mul_2si(result, high, 79 - (mpfr_regular_p(kept) ? mpfr_get_exp(kept) : 0), MPFR_RNDN);
            SUB(analytic, analytic, result);
            worst = fmax(worst, magnitude(analytic));
            largest = fmax(largest, magnitude(result));
        }
    mpfr_clears(kept, high, low, analytic, (mpfr_ptr)0);
    return largest > 0 ? worst / largest : worst;
}
