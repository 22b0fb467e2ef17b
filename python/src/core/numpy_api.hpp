// numpy_api.hpp - NumPy's C API, shared by all files of the module (module.cpp loads it).
#pragma once

#define PY_ARRAY_UNIQUE_SYMBOL truenorm_numpy_api
#ifndef TN_LOAD_NUMPY
#define NO_IMPORT_ARRAY
#endif
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <numpy/arrayobject.h>

#include <truenorm.h>

namespace nb = nanobind;
