// calls.hpp - the functions of the module _core; _core.pyi documents their Python side.
#pragma once

#include "numpy_api.hpp"

namespace tn
{

nb::object forward(nb::handle x, nb::handle weight, nb::handle bias, const nb::kwargs &options);
nb::object quantized(nb::handle x, nb::handle weight, nb::handle bias, const nb::kwargs &options);
nb::object apply(nb::handle x, nb::handle weight, nb::handle bias, const nb::kwargs &options);
nb::object moments(nb::handle x, const nb::kwargs &options);
nb::object merge_moments(double count_a, nb::handle mean_a, nb::handle moment2_a, double count_b,
                         nb::handle mean_b, nb::handle moment2_b);
nb::object rstd_from_moments(nb::handle moment2, double count, const nb::kwargs &options);
nb::object backward(nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias,
                    const nb::kwargs &options);

} // namespace tn
