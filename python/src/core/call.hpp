// call.hpp - the keywords of a call, the options among them, and its status as an exception.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "array.hpp"

namespace tn
{

// Keywords of all functions of this module.
// clang-format off
#define TN_KEYWORDS(K) \
    K(kind) K(eps) K(eps_mode) K(cast) K(grade) K(weight_offset) K(divisor) K(group) K(partial) \
    K(positions) K(residual) K(sum) K(sum_dtype) K(sum_out) K(gate) K(gate_order) K(act) K(mod_scale) \
    K(mod_shift) K(round_rstd) K(round_offset) K(round_product) K(out_dtype) K(out) K(stats) K(threads) \
    K(mean) K(rstd) K(dtype) K(scale) K(scale_dtype) K(dsum) K(need) K(dtypes) K(accumulate)
// clang-format on

enum class Key {
#define K(name) name,
    TN_KEYWORDS(K)
#undef K
        count
};

using KeySet = uint64_t;
template <typename... Keys> constexpr KeySet key_set(Keys... keys)
{
    return (KeySet(0) | ... | (KeySet(1) << static_cast<int>(keys)));
}

// What describes the arithmetic of a norm and its inputs.
constexpr KeySet NORM_KEYS =
    key_set(Key::kind, Key::eps, Key::eps_mode, Key::cast, Key::grade, Key::weight_offset, Key::divisor,
            Key::group, Key::partial, Key::positions, Key::residual, Key::sum, Key::sum_dtype, Key::gate,
            Key::gate_order, Key::act, Key::mod_scale, Key::mod_shift, Key::round_rstd, Key::round_offset,
            Key::round_product, Key::threads);

class Keywords
{
  public:
    // TypeError for a keyword that is unknown or not among those of `function`.
    Keywords(const char *function, const nb::kwargs &given, KeySet taken);

    // The value, or an invalid handle if it was left out or is None.
    nb::handle get(Key key) const
    {
        nb::handle h = values_[static_cast<size_t>(key)];
        return h.is_valid() && !h.is_none() ? h : nb::handle();
    }
    bool is_none(Key key) const
    {
        nb::handle h = values_[static_cast<size_t>(key)];
        return h.is_valid() && h.is_none();
    }
    bool flag(Key key) const;
    double number(Key key, double otherwise) const;
    // A size of at least 1, or 0 if it was left out.
    size_t size(Key key) const;
    // Which of the words it is; the first one if it was left out.
    int choice(Key key, std::initializer_list<const char *> words) const;

  private:
    std::array<nb::handle, static_cast<size_t>(Key::count)> values_{};
};

const char *key_name(Key key);
// Makes the interned keyword names; once.
void load_keywords();

// The descriptor that the options give; rows and n are left alone. x's dtype decides what eps=None means.
tn_norm_desc parse_desc(const Keywords &kw, tn_dtype x);
// The dtype of y: the one asked for, or the cast mode's own.
tn_dtype result_dtype(const Keywords &kw, const tn_norm_desc &desc, tn_dtype x, tn_dtype weight);
size_t thread_count(const Keywords &kw);

// Nothing for TN_OK, else the exception for it.
void check_status(tn_status status);

} // namespace tn
