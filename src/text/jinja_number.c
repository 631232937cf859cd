/* Numbers: Python's arithmetic, within 64 bits and doubles. What would need more is refused, never rounded. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"

_Noreturn static void too_big(struct render *r) {
    jinja_fail(r, FAULT_SUPPORT, "an integer beyond 64 bits cannot be computed with");
}

double value_to_double(struct render *r, struct value v) {
    if (value_is_whole(v)) return (double)v.as.i;
    if (v.kind == VALUE_FLOAT) return v.as.f;
    if (v.kind != VALUE_BIG) jinja_fail(r, FAULT_TYPE, "must be real number, not %s", value_type(v));
    double f = strtod(v.as.text->bytes, NULL); /* its text ends with a zero byte: number_parse_int copies it so */
    if (isinf(f)) jinja_fail(r, FAULT_OVERFLOW, "int too large to convert to float");
    return f;
}

int64_t value_index(struct render *r, struct value v) {
    if (value_is_whole(v)) return v.as.i;
    if (v.kind == VALUE_BIG) return v.as.text->bytes[0] == '-' ? INT64_MIN / 4 : INT64_MAX / 4;
    if (v.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, v);
    jinja_fail(r, FAULT_TYPE, "'%s' object cannot be interpreted as an integer", value_type(v));
}

static int big_compare(const struct text *a, const struct text *b) {
    int minus_a = a->bytes[0] == '-', minus_b = b->bytes[0] == '-';
    if (minus_a != minus_b) return minus_a ? -1 : 1;
    int c = a->n != b->n ? (a->n > b->n ? 1 : -1) : memcmp(a->bytes, b->bytes, a->n);
    c = (c > 0) - (c < 0);
    return minus_a ? -c : c;
}

int number_compare(struct value a, struct value b) {
    if (a.kind == VALUE_BIG && b.kind == VALUE_BIG) return big_compare(a.as.text, b.as.text);
    if (a.kind == VALUE_BIG && value_is_whole(b)) return a.as.text->bytes[0] == '-' ? -1 : 1;
    if (b.kind == VALUE_BIG && value_is_whole(a)) return b.as.text->bytes[0] == '-' ? 1 : -1;
    if (value_is_whole(a) && value_is_whole(b)) return (a.as.i > b.as.i) - (a.as.i < b.as.i);
    long double x = value_is_whole(a) ? (long double)a.as.i : a.kind == VALUE_BIG ? strtod(a.as.text->bytes, NULL) : a.as.f;
    long double y = value_is_whole(b) ? (long double)b.as.i : b.kind == VALUE_BIG ? strtod(b.as.text->bytes, NULL) : b.as.f;
    if (isnan(x) || isnan(y)) return 2;
    return (x > y) - (x < y);
}

static int64_t floor_div(int64_t a, int64_t b, int64_t *mod) {
    int64_t q = a / b, m = a % b;
    if (m && (m < 0) != (b < 0)) q--, m += b;
    *mod = m;
    return q;
}

static struct value whole_power(struct render *r, int64_t base, int64_t power) {
    int64_t out = 1;
    while (power > 0) {
        if (power & 1 && __builtin_mul_overflow(out, base, &out)) too_big(r);
        power >>= 1;
        if (power && __builtin_mul_overflow(base, base, &base)) too_big(r);
    }
    return value_int(out);
}

static struct value whole_binary(struct render *r, int op, int64_t a, int64_t b) {
    int64_t out, mod;
    switch (op) {
    case '+': if (__builtin_add_overflow(a, b, &out)) too_big(r); return value_int(out);
    case '-': if (__builtin_sub_overflow(a, b, &out)) too_big(r); return value_int(out);
    case '*': if (__builtin_mul_overflow(a, b, &out)) too_big(r); return value_int(out);
    case '/':
        if (!b) jinja_fail(r, FAULT_ZERO, "division by zero");
        return value_float((double)((long double)a / (long double)b));
    case 'p':
        if (b >= 0) return whole_power(r, a, b);
        if (!a) jinja_fail(r, FAULT_ZERO, "0.0 cannot be raised to a negative power");
        return value_float(pow((double)a, (double)b));
    default:
        if (!b) jinja_fail(r, FAULT_ZERO, op == 'f' ? "integer division or modulo by zero" : "integer modulo by zero");
        if (b == -1) {
            if (op == '%') return value_int(0);
            if (a == INT64_MIN) too_big(r);
            return value_int(-a);
        }
        out = floor_div(a, b, &mod);
        return value_int(op == 'f' ? out : mod);
    }
}

static struct value float_binary(struct render *r, int op, double a, double b) {
    double mod, div;
    switch (op) {
    case '+': return value_float(a + b);
    case '-': return value_float(a - b);
    case '*': return value_float(a * b);
    case '/':
        if (b == 0) jinja_fail(r, FAULT_ZERO, "float division by zero");
        return value_float(a / b);
    case 'p':
        if (a == 0 && b < 0) jinja_fail(r, FAULT_ZERO, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && b != floor(b)) jinja_fail(r, FAULT_SUPPORT, "complex numbers are not supported");
        div = pow(a, b);
        if (isinf(div) && isfinite(a) && isfinite(b)) jinja_fail(r, FAULT_OVERFLOW, "numerical result out of range");
        return value_float(div);
    default:
        if (b == 0) jinja_fail(r, FAULT_ZERO, op == 'f' ? "float floor division by zero" : "float modulo");
        mod = fmod(a, b), div = (a - mod) / b;
        if (mod == 0) mod = copysign(0, b);
        else if ((b < 0) != (mod < 0)) mod += b, div -= 1;
        if (op == '%') return value_float(mod);
        if (div == 0) return value_float(copysign(0, a / b));
        return value_float(div - floor(div) > 0.5 ? floor(div) + 1 : floor(div));
    }
}

struct value number_binary(struct render *r, int op, struct value a, struct value b) {
    if (value_is_whole(a) && value_is_whole(b)) return whole_binary(r, op, a.as.i, b.as.i);
    if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT) too_big(r);
    return float_binary(r, op, value_to_double(r, a), value_to_double(r, b));
}

static struct value repeat(struct render *r, struct value v, struct value times) {
    int64_t count = times.kind == VALUE_BIG ? value_index(r, times) : times.as.i;
    size_t n = value_is_text(v) ? v.as.text->n : v.as.list->n, size = value_is_text(v) ? 1 : sizeof(struct value);
    if (count <= 0) count = 0;
    if (n && (uint64_t)count > r->left.bytes / (n * size)) jinja_fail_memory(r);
    char *out = jinja_room(r, n * (size_t)count, size);
    jinja_step(r, (int64_t)n * count / 16);
    const void *from = value_is_text(v) ? (const void *)v.as.text->bytes : (const void *)v.as.list->at;
    for (int64_t i = 0; i < count && n; i++) memcpy(out + (size_t)i * n * size, from, n * size);
    if (value_is_text(v)) {
        struct value text = value_text_n(r, out, n * (size_t)count);
        return v.as.text->markup ? value_markup(r, text) : text;
    }
    return (v.kind == VALUE_LIST ? value_list : value_tuple)(r, (struct value *)(void *)out, n * (size_t)count);
}

static int is_sequence(struct value v) { return value_is_text(v) || v.kind == VALUE_LIST || v.kind == VALUE_TUPLE; }

struct value value_binary(struct render *r, int op, struct value a, struct value b) {
    if (value_is_number(a) && value_is_number(b)) return number_binary(r, op, a, b);
    if (op == '%' && value_is_text(a)) return format_percent(r, a, b);
    if (a.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, a);
    if (b.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, b);
    if (op == '+' && value_is_text(a) && value_is_text(b)) {
        if (a.as.text->markup || b.as.text->markup)
            return value_markup(r, value_concat(r, text_escape(r, a), text_escape(r, b)));
        return value_concat(r, a, b);
    }
    if (op == '+' && a.kind == b.kind && is_sequence(a)) return value_list_concat(r, a, b);
    if (op == '*' && is_sequence(a) && (value_is_whole(b) || b.kind == VALUE_BIG)) return repeat(r, a, b);
    if (op == '*' && is_sequence(b) && (value_is_whole(a) || a.kind == VALUE_BIG)) return repeat(r, b, a);
    if (op == '+' && is_sequence(a))
        jinja_fail(r, FAULT_TYPE, "can only concatenate %s (not \"%s\") to %s", value_type(a), value_type(b), value_type(a));
    char sign[3] = {(char)op, 0, 0};
    jinja_fail(r, FAULT_TYPE, "unsupported operand type(s) for %s: '%s' and '%s'",
               op == 'f'   ? "//"
               : op == 'p' ? "** or pow()"
                           : sign,
               value_type(a), value_type(b));
}

struct value value_negate(struct render *r, struct value v, int minus) {
    if (v.kind == VALUE_FLOAT) return value_float(minus ? -v.as.f : v.as.f);
    if (value_is_whole(v) && !(minus && v.as.i == INT64_MIN)) return value_int(minus ? -v.as.i : v.as.i);
    if (value_is_number(v)) too_big(r);
    if (v.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, v);
    jinja_fail(r, FAULT_TYPE, "bad operand type for unary %c: '%s'", minus ? '-' : '+', value_type(v));
}

/* Digits of `base` with single underscores between them; 0 if there is anything else. */
static int take_digits(const char *s, size_t n, int base, char *out, size_t *n_out) {
    *n_out = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)s[i];
        if (c == '_' && i > 0 && i + 1 < n && s[i - 1] != '_') continue;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
        if (digit >= base) return 0;
        if (*n_out || digit) out[(*n_out)++] = (char)c;
    }
    return n > 0;
}

static const char *skip_space(const char *s, size_t *n) {
    size_t used;
    while (*n && char_is_space(text_char(s, *n, &used))) s += used, *n -= used;
    while (*n) {
        size_t at = *n;
        do at--;
        while (at > 0 && (s[at] & 0xc0) == 0x80);
        if (!char_is_space(text_char(s + at, *n - at, &used))) break;
        *n = at;
    }
    return s;
}

/* int(text, base). Integers beyond 64 bits keep their decimal digits; in another base they are refused. */
int number_parse_int(const char *s, size_t n, int base, struct render *r, struct value *out) {
    s = skip_space(s, &n);
    int minus = n && s[0] == '-', prefix = 0;
    if (n && (s[0] == '-' || s[0] == '+')) s++, n--;
    if (n > 1 && s[0] == '0') {
        int mark = s[1] | 32, of = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        if (of && (base == of || base == 0)) base = of, s += 2, n -= 2, prefix = 1;
        if (prefix && n && s[0] == '_') s++, n--;
    }
    if (base == 0) base = 10;
    if (base < 2 || base > 36 || !n) return 0;
    char *digits = jinja_room(r, n + 2, 1);
    size_t count;
    digits[0] = '-';
    if (!take_digits(s, n, base, digits + 1, &count)) return 0;
    digits[count + 1] = 0;
    errno = 0;
    long long i = strtoll(minus ? digits : digits + 1, NULL, base);
    *out = value_int(count ? i : 0);
    if (errno != ERANGE) return 1;
    if (base != 10) too_big(r);
    *out = value_text_n(r, minus ? digits : digits + 1, count + (size_t)minus);
    out->kind = VALUE_BIG;
    return 1;
}

int number_parse_float(const char *s, size_t n, double *out) {
    char room[512];
    size_t m = 0, digits = 0;
    s = skip_space(s, &n);
    if (!n || n >= sizeof room) return 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)s[i];
        int digit = c >= '0' && c <= '9';
        if (c == '_') {
            if (!i || i + 1 == n || s[i - 1] < '0' || s[i - 1] > '9' || s[i + 1] < '0' || s[i + 1] > '9') return 0;
            continue;
        }
        digits += (size_t)digit;
        if (c == 'x' || c == 'X' || c == '(') return 0; /* strtod would read them */
        room[m++] = (char)c;
    }
    room[m] = 0;
    char *end;
    *out = strtod(room, &end);
    return end == room + m && (digits || isinf(*out) || isnan(*out));
}

/* The `n_digits` decimal digits nearest to f, or the next ones up. Returns whether they read back as f. */
static int try_digits(double f, int n_digits, int up, char *out) {
    snprintf(out, 64, "%.*e", n_digits - 1, f);
    if (up) {
        int at = n_digits == 1 ? 0 : n_digits; /* the last digit, behind the point */
        for (; at >= 0; at--) {
            if (out[at] == '.') continue;
            if (out[at]++ != '9') break;
            out[at] = '0';
        }
        if (at < 0) return 0;
    }
    return strtod(out, NULL) == f;
}

void number_show(double f, char out[NUMBER_ROOM]) {
    if (isnan(f) || isinf(f)) { strcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf"); return; }
    char e[64], *w = out;
    if (signbit(f)) *w++ = '-', f = -f;
    int n = 1, exponent;
    /* Where the spacing changes, at powers of two, the nearest digits may fail and the next ones up still read back. */
    while (n < 17 && !try_digits(f, n, 0, e) && !(frexp(f, &exponent) == 0.5 && try_digits(f, n, 1, e))) n++;
    if (n == 17) snprintf(e, sizeof e, "%.16e", f);
    char digits[32];
    int count = 0;
    for (const char *p = e; *p && *p != 'e'; p++)
        if (*p != '.') digits[count++] = *p;
    exponent = atoi(strchr(e, 'e') + 1);
    while (count > 1 && digits[count - 1] == '0') count--;
    digits[count] = 0;
    if (exponent < -4 || exponent >= 16) {
        *w++ = digits[0];
        if (count > 1) w += sprintf(w, ".%s", digits + 1);
        sprintf(w, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        sprintf(w, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else if (count <= exponent + 1) {
        sprintf(w, "%s%.*s.0", digits, exponent + 1 - count, "0000000000000000");
    } else {
        sprintf(w, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
}

struct value number_round(struct render *r, struct value v, int64_t digits) {
    if (v.kind == VALUE_BIG && digits < 0) too_big(r);
    if (v.kind != VALUE_FLOAT) {
        if (digits >= 0 || v.kind == VALUE_BIG) return v.kind == VALUE_BIG ? v : value_int(v.as.i);
        if (digits < -18) return value_int(0);
        int64_t unit = whole_power(r, 10, -digits).as.i, mod, down = floor_div(v.as.i, unit, &mod) * unit;
        int up = mod > unit - mod || (mod == unit - mod && (down / unit) % 2);
        return number_binary(r, '+', value_int(down), value_int(up ? unit : 0));
    }
    double f = v.as.f;
    if (!isfinite(f) || digits > 330) return v;
    if (digits < 0) {
        double unit = digits < -308 ? INFINITY : pow(10, (double)-digits);
        return value_float(isinf(unit) ? copysign(0, f) : rint(f / unit) * unit);
    }
    char text[700];
    snprintf(text, sizeof text, "%.*f", (int)digits, f);
    return value_float(strtod(text, NULL));
}
