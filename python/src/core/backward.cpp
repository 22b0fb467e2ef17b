// backward.cpp - tn_norm_backward over arrays.
//
// The order in which rows are summed follows from the shapes alone: axes with the same sums are merged, and operands
// whose strides do not allow that are copied. Hence the same bits for any strides.
#include "calls.hpp"

#include <algorithm>
#include <numeric>

#include "norm_call.hpp"

namespace tn
{

namespace
{

struct Gradient {
    const char *name;
    tn_out tn_norm_grads::*member;
    bool column; // summed over rows
    const Array *like;
    npy_intp width;
    Array array{};
    nb::object result = nb::none();
    unsigned summed = 0; // axes, a bit for each
};

constexpr size_t GRADIENTS = 7;

class BackwardCall
{
  public:
    BackwardCall(const Keywords &kw, nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias);
    nb::object run();

  private:
    void check_names(const char *what, nb::handle names) const;
    bool wanted(const Gradient &g, nb::handle need) const;
    void allocate(Gradient &g, nb::handle given, nb::handle asked);
    void run_once(const std::vector<const Gradient *> &outputs, const std::vector<int> &order, int split);
    void run_patterns(const std::vector<unsigned> &patterns);
    std::vector<int> run_ends(const std::vector<const Gradient *> &outputs) const;
    int best_split(const std::vector<const Gradient *> &outputs) const;
    std::vector<int> natural_order() const;
    void fill(Layout &layout, const std::vector<const Gradient *> &outputs, tn_norm_grads &grads);

    NormCall call_;
    Array dy_, dsum_;
    bool accumulate_;
    Gradient gradients_[GRADIENTS];
    Axes axes_;
};

BackwardCall::BackwardCall(const Keywords &kw, nb::handle dy, nb::handle x, nb::handle weight,
                           nb::handle bias)
    : call_(kw, x, weight, bias), dy_(take_input(dy, "dy")), dsum_(take_input(kw.get(Key::dsum), "dsum")),
      accumulate_(kw.flag(Key::accumulate)),
      gradients_{
          {"dx", &tn_norm_grads::dx, false, &call_.x, call_.n()},
          {"dresidual", &tn_norm_grads::dresidual, false, &call_.residual, call_.n()},
          {"dgate", &tn_norm_grads::dgate, false, &call_.gate, call_.n()},
          {"dweight", &tn_norm_grads::dweight, true, &call_.weight, call_.params()},
          {"dbias", &tn_norm_grads::dbias, true, &call_.bias, call_.params()},
          {"dmod_scale", &tn_norm_grads::dmod_scale, true, &call_.mod_scale, call_.n()},
          {"dmod_shift", &tn_norm_grads::dmod_shift, true, &call_.mod_shift, call_.n()},
      }
{
    if (!dy_)
        throw_type("dy: expected an array, got None");
    if (call_.mean_in && call_.desc.kind != TN_LAYER)
        call_.mean_in = Array();
    if (call_.rstd_in && !call_.mean_in && call_.desc.kind == TN_LAYER)
        throw_type("mean: kind 'layer' with rstd needs it");
    const nb::handle need = kw.get(Key::need), out = kw.get(Key::out), dtypes = kw.get(Key::dtypes);
    for (auto [what, handle] : {std::pair{"out", out}, std::pair{"dtypes", dtypes}}) {
        if (handle.is_valid() && !PyDict_Check(handle.ptr()))
            throw_type(std::string(what) + ": expected a dict by names of gradients");
        check_names(what, handle);
    }
    check_names("need", need);
    if (accumulate_ && !out.is_valid())
        throw_value("accumulate: there is no out to add to");
    call_.io.y.dtype = result_dtype(kw, call_.desc, call_.x.dtype, call_.weight.dtype);
    if (kw.get(Key::sum_dtype).is_valid())
        call_.io.sum.dtype = parse_dtype(kw.get(Key::sum_dtype), "sum_dtype");
    const Layout shape(call_.leading(), call_.x.shape());
    axes_ = shape.axes();
    auto entry = [](nb::handle dict, const char *name) {
        return dict.is_valid() ? nb::handle(PyDict_GetItemString(dict.ptr(), name)) : nb::handle();
    };
    for (Gradient &g : gradients_) {
        if (!wanted(g, need))
            continue;
        allocate(g, entry(out, g.name), entry(dtypes, g.name));
        if (g.column)
            g.summed = shape.summed(g.array, g.width);
    }
}

// Of a collection that a user gave: are all of them gradients?
void BackwardCall::check_names(const char *what, nb::handle names) const
{
    if (!names.is_valid())
        return;
    if (PyUnicode_Check(names.ptr()) || !nb::hasattr(names, "__iter__"))
        throw_type(std::string(what) + ": expected a collection of names of gradients");
    for (nb::handle name : nb::iter(names)) {
        bool known = false;
        for (const Gradient &g : gradients_)
            known = known || (PyUnicode_Check(name.ptr()) &&
                              PyUnicode_CompareWithASCIIString(name.ptr(), g.name) == 0);
        if (!known)
            throw_value(std::string(what) + ": there is no gradient " +
                        nb::cast<std::string>(nb::repr(name)));
    }
}

bool BackwardCall::wanted(const Gradient &g, nb::handle need) const
{
    if (!need.is_valid())
        return static_cast<bool>(*g.like);
    int found = PySequence_Contains(need.ptr(), nb::str(g.name).ptr());
    if (found < 0)
        throw nb::python_error();
    const bool alone = g.member == &tn_norm_grads::dweight || g.member == &tn_norm_grads::dbias;
    if (found && !*g.like && !alone)
        throw_value(std::string("need: ") + g.name + " without " + (g.name + 1));
    return found != 0;
}

void BackwardCall::allocate(Gradient &g, nb::handle given, nb::handle asked)
{
    const Array &own = *g.like ? *g.like : g.column && call_.weight ? call_.weight : Array();
    if (given.is_valid() && !given.is_none()) {
        g.array = take_output(given, g.name);
        g.result = nb::borrow(given);
    } else {
        tn_dtype dtype = asked.is_valid() && !asked.is_none() ? parse_dtype(asked, g.name)
                         : own                                ? own.dtype
                                                              : call_.x.dtype;
        if (dtype >= TN_I8)
            throw_type(std::string(g.name) + ": float64, float32, float16 or bfloat16");
        const npy_intp row = g.width;
        g.array = !g.column ? make_array(dtype, call_.x.axes(), call_.x.shape())
                  : own     ? make_array(dtype, own.axes(), own.shape())
                            : make_array(dtype, 1, &row);
        g.result = g.array.owner;
    }
    if (g.array.dtype >= TN_I8)
        throw_type(std::string(g.name) + ": float64, float32, float16 or bfloat16");
    const Array &like = g.column ? own : call_.x;
    const npy_intp row = g.width;
    const std::string want = like ? shape_text(like.axes(), like.shape()) : shape_text(1, &row);
    if (shape_text(g.array.axes(), g.array.shape()) != want)
        throw_value(std::string(g.name) + ": shape " + shape_text(g.array.axes(), g.array.shape()) +
                    " is not " + want);
}

void BackwardCall::fill(Layout &layout, const std::vector<const Gradient *> &outputs, tn_norm_grads &grads)
{
    call_.add_inputs(layout);
    layout.input("dy", dy_, call_.n(), &grads.dy);
    layout.input("dsum", dsum_, call_.n(), &grads.dsum);
    for (const Gradient *g : outputs) {
        if (g->column)
            layout.sums(g->name, g->array, g->width, &(grads.*g->member), accumulate_);
        else
            layout.output(g->name, g->array, g->width, &(grads.*g->member));
    }
}

// One call over at most two axes; with split < 0 as many calls as it takes, for outputs without sums.
void BackwardCall::run_once(const std::vector<const Gradient *> &outputs, const std::vector<int> &order,
                            int split)
{
    tn_norm_grads grads = tn_grads_init();
    grads.accumulate = accumulate_;
    Layout layout(call_.leading(), call_.x.shape());
    fill(layout, outputs, grads);
    if (split < 0)
        layout.merge();
    else
        layout.fold(order, split, accumulate_);
    layout.check_overlap();
    Executor executor(thread_count(call_.kw));
    tn_status status = TN_OK;
    auto calls = [&] {
        for (size_t i = 0, count = layout.calls(); i < count && status == TN_OK; i++) {
            layout.place(i, call_.desc);
            status = tn_norm_backward(&call_.desc, &call_.io, &grads, executor.get());
        }
    };
    if (layout.bytes() >= RELEASE_BYTES) {
        nb::gil_scoped_release release;
        calls();
    } else {
        calls();
    }
    layout.check(status);
    layout.finish();
}

// Where runs of axes end that all these outputs treat alike.
std::vector<int> BackwardCall::run_ends(const std::vector<const Gradient *> &outputs) const
{
    std::vector<int> ends;
    for (int k = 1; k <= axes_.count; k++) {
        bool differs = k == axes_.count;
        for (const Gradient *g : outputs)
            differs = differs || (g->column && (g->summed >> k & 1) != (g->summed >> (k - 1) & 1));
        if (differs)
            ends.push_back(k);
    }
    return ends;
}

std::vector<int> BackwardCall::natural_order() const
{
    std::vector<int> order(static_cast<size_t>(axes_.count));
    std::iota(order.begin(), order.end(), 0);
    return order;
}

// Axes that are all summed over, or none of them, may be cut in two anywhere: that does not show in the sums. Where the
// fewest operands have to be copied.
int BackwardCall::best_split(const std::vector<const Gradient *> &outputs) const
{
    int best = axes_.count;
    size_t fewest = ~size_t(0);
    tn_norm_grads grads;
    BackwardCall *self = const_cast<BackwardCall *>(this);
    Layout layout(call_.leading(), call_.x.shape());
    self->fill(layout, outputs, grads);
    for (int split = axes_.count; split >= 1; split--) {
        size_t misfits = layout.misfits(split);
        if (misfits < fewest) {
            fewest = misfits;
            best = split;
        }
    }
    return best;
}

// A call for each way of summing; the last one makes the gradients of elements, which may overwrite dy.
void BackwardCall::run_patterns(const std::vector<unsigned> &patterns)
{
    for (unsigned pattern : patterns) {
        std::vector<const Gradient *> outputs;
        for (const Gradient &g : gradients_)
            if (g.array && (g.column ? g.summed == pattern : pattern == patterns.back()))
                outputs.push_back(&g);
        const std::vector<int> ends = run_ends(outputs);
        std::vector<int> order = natural_order();
        int split = ends.empty() ? 0 : ends.front();
        if (ends.size() > 2) {
            auto kept =
                std::stable_partition(order.begin(), order.end(), [&](int k) { return !(pattern >> k & 1); });
            split = static_cast<int>(kept - order.begin());
        }
        run_once(outputs, order, split);
    }
}

nb::object BackwardCall::run()
{
    std::vector<const Gradient *> outputs;
    std::vector<unsigned> patterns;
    for (const Gradient &g : gradients_) {
        if (!g.array)
            continue;
        outputs.push_back(&g);
        if (g.column && std::find(patterns.begin(), patterns.end(), g.summed) == patterns.end())
            patterns.push_back(g.summed);
    }
    if (outputs.empty())
        throw_value("need: no gradient is asked for");
    const std::vector<int> ends = run_ends(outputs);
    if (patterns.empty())
        run_once(outputs, {}, -1);
    else if (ends.size() == 2)
        run_once(outputs, natural_order(), ends.front());
    else if (ends.size() < 2)
        run_once(outputs, natural_order(), axes_.count < 2 ? axes_.count : best_split(outputs));
    else
        run_patterns(patterns);
    nb::list results;
    for (const Gradient &g : gradients_)
        results.append(g.result);
    return nb::tuple(results);
}

} // namespace

nb::object backward(nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias,
                    const nb::kwargs &options)
{
    const Keywords kw("norm_backward", options,
                      NORM_KEYS | key_set(Key::out, Key::out_dtype, Key::mean, Key::rstd, Key::dsum,
                                          Key::need, Key::dtypes, Key::accumulate));
    return BackwardCall(kw, dy, x, weight, bias).run();
}

} // namespace tn
