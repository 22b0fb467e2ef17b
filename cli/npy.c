#include "npy.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct cursor {
    const unsigned char *at, *end;
    char *err;
    size_t errlen;
};

__attribute__((format(printf, 2, 3))) static bool refuse(struct cursor *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->err, c->errlen, format, args);
    va_end(args);
    return false;
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || (*c->at >= '\t' && *c->at <= '\r')))
        c->at++;
}

/* Takes `wanted`, after any white space, if it comes next. */
static bool take(struct cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != (unsigned char)wanted)
        return false;
    c->at++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

/* A quoted string of printable ASCII without escapes; a longer one than `capacity` is refused. */
static bool take_string(struct cursor *c, char *text, size_t capacity)
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return refuse(c, "a string is missing in the header");
    unsigned char quote = *c->at++;
    size_t n = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at < ' ' || *c->at > '~' || *c->at == '\\' || n + 1 >= capacity)
            return refuse(c, "a string in the header is too long or holds an unexpected character");
        text[n++] = (char)*c->at;
    }
    if (c->at == c->end)
        return refuse(c, "a string in the header has no end");
    c->at++;
    text[n] = 0;
    return true;
}

static bool take_size(struct cursor *c, size_t *value)
{
    skip_space(c);
    const unsigned char *start = c->at;
    size_t v = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        size_t digit = (size_t)(*c->at - '0');
        if (v > ((size_t)PTRDIFF_MAX - digit) / 10)
            return refuse(c, "a size in the shape is too large");
        v = v * 10 + digit;
    }
    if (c->at == start)
        return refuse(c, "the shape is not a tuple of sizes");
    if (*start == '0' && c->at - start > 1)
        return refuse(c, "a size in the shape has a leading zero");
    if (c->at < c->end && *c->at == 'L') /* a long of Python 2 */
        c->at++;
    *value = v;
    return true;
}

static bool parse_shape(struct cursor *c, struct npy_header *h)
{
    if (!take(c, '('))
        return refuse(c, "the shape is not a tuple of sizes");
    bool comma = true;
    for (h->rank = 0; !take(c, ')'); h->rank++) {
        if (!comma)
            return refuse(c, "the shape is not a tuple of sizes");
        if (h->rank == NPY_MAX_RANK)
            return refuse(c, "the shape has more than %d axes", NPY_MAX_RANK);
        if (!take_size(c, &h->shape[h->rank]))
            return false;
        comma = take(c, ',');
    }
    if (h->rank == 1 && !comma)
        return refuse(c, "the shape is not a tuple of sizes"); /* "(3)" is a number in Python */
    return true;
}

/* "<f4": byte order, kind, bytes. */
static bool parse_descr(struct cursor *c, struct npy_header *h)
{
    skip_space(c);
    if (c->at < c->end && *c->at == '[')
        return refuse(c, "structured dtypes are not supported");
    if (!take_string(c, h->descr, sizeof h->descr))
        return false;
    const char *d = h->descr;
    size_t item = 0;
    size_t digits = d[0] && d[1] ? strspn(d + 2, "0123456789") : 0;
    bool letter = d[0] && ((d[1] >= 'a' && d[1] <= 'z') || (d[1] >= 'A' && d[1] <= 'Z'));
    if (!strchr("<>|", d[0]) || !letter || digits < 1 || digits > 6 || d[2 + digits])
        return refuse(c, "dtype '%s' is not supported", d);
    for (size_t i = 0; i < digits; i++)
        item = item * 10 + (size_t)(d[2 + i] - '0');
    if (item == 0)
        return refuse(c, "dtype '%s' is not supported", d);
    if (d[0] == '>' && item > 1)
        return refuse(c, "dtype '%s' is big-endian, which is not supported", d);
    h->kind = d[1];
    h->item = item;
    return true;
}

static bool parse_order(struct cursor *c, struct npy_header *h)
{
    skip_space(c);
    h->fortran_order = take_word(c, "True");
    if (h->fortran_order || take_word(c, "False"))
        return true;
    return refuse(c, "fortran_order is neither True nor False");
}

static bool parse_dict(struct cursor *c, struct npy_header *h)
{
    static const struct {
        const char *key;
        bool (*parse)(struct cursor *, struct npy_header *);
    } keys[] = {{"descr", parse_descr}, {"fortran_order", parse_order}, {"shape", parse_shape}};
    bool seen[3] = {false, false, false}, comma = true;

    if (!take(c, '{'))
        return refuse(c, "the header is not a dictionary");
    while (!take(c, '}')) {
        char name[16];
        unsigned k = 0;
        if (!comma)
            return refuse(c, "the header is not a dictionary");
        if (!take_string(c, name, sizeof name))
            return false;
        while (k < 3 && strcmp(name, keys[k].key) != 0)
            k++;
        if (k == 3 || seen[k])
            return refuse(c, "key '%s' in the header is %s", name, k == 3 ? "unknown" : "there twice");
        if (!take(c, ':'))
            return refuse(c, "the header is not a dictionary");
        if (!keys[k].parse(c, h))
            return false;
        seen[k] = true;
        comma = take(c, ',');
    }
    for (unsigned k = 0; k < 3; k++)
        if (!seen[k])
            return refuse(c, "key '%s' is missing in the header", keys[k].key);
    skip_space(c);
    return c->at == c->end || refuse(c, "the header goes on after its dictionary");
}

bool npy_count(const size_t *shape, unsigned rank, size_t item, size_t *count)
{
    size_t bytes = item, n = 1;
    for (unsigned i = 0; i < rank; i++) {
        n *= shape[i];
        if (shape[i] && bytes > (size_t)PTRDIFF_MAX / shape[i])
            return false;
        bytes *= shape[i] ? shape[i] : 1;
    }
    *count = n;
    return true;
}

bool npy_parse(const unsigned char *buf, size_t len, struct npy_header *out, char *err, size_t errlen)
{
    struct cursor c = {buf, buf, err, errlen};
    memset(out, 0, sizeof *out);
    if (len < 10 || memcmp(buf, "\x93NUMPY", 6) != 0)
        return refuse(&c, "not a .npy file");
    if (buf[6] < 1 || buf[6] > 3 || buf[7] != 0)
        return refuse(&c, "format version %d.%d is not supported", buf[6], buf[7]);
    size_t start = buf[6] == 1 ? 10 : 12;
    size_t text = (size_t)buf[8] | (size_t)buf[9] << 8;
    if (start == 12 && len >= 12)
        text |= (size_t)buf[10] << 16 | (size_t)buf[11] << 24;
    if (len < start || len - start < text)
        return refuse(&c, "the file ends within its header");
    c.at = buf + start;
    c.end = c.at + text;
    if (!parse_dict(&c, out))
        return false;
    if (!npy_count(out->shape, out->rank, out->item, &out->count))
        return refuse(&c, "the array is too large");
    out->data_offset = start + text;
    size_t have = len - out->data_offset, want = out->count * out->item;
    if (have != want)
        return refuse(&c, "the header asks for %zu bytes of data, the file has %zu", want, have);
    return true;
}

void npy_shape_text(char *buf, size_t capacity, const size_t *shape, unsigned rank)
{
    size_t at = 0;
    for (unsigned i = 0; i < rank && at < capacity; i++)
        at += (size_t)snprintf(buf + at, capacity - at, "%s%zu", i ? ", " : "(", shape[i]);
    if (at < capacity)
        snprintf(buf + at, capacity - at, rank == 0 ? "()" : rank == 1 ? ",)" : ")");
}

size_t npy_write_header(unsigned char *buf, size_t capacity, const char *descr, bool fortran_order,
                        unsigned rank, const size_t *shape)
{
    char sizes[24 * NPY_MAX_RANK], text[NPY_HEADER_MAX];
    if (rank > NPY_MAX_RANK)
        return 0;
    npy_shape_text(sizes, sizeof sizes, shape, rank);
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", descr,
                     fortran_order ? "True" : "False", sizes);
    if (n < 0 || (size_t)n >= sizeof text)
        return 0;
    size_t used = (size_t)n, total = (10 + used + 1 + 63) / 64 * 64;
    if (total > capacity)
        return 0;
    memcpy(buf, "\x93NUMPY\x01\x00", 8);
    buf[8] = (unsigned char)((total - 10) & 255);
    buf[9] = (unsigned char)((total - 10) >> 8);
    memcpy(buf + 10, text, used);
    memset(buf + 10 + used, ' ', total - 10 - used);
    buf[total - 1] = '\n';
    return total;
}
