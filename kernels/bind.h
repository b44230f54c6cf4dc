// What the bind_*.cpp share: what each adds to the extension module, and how they take arrays. Knows no kernel.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

namespace octavo {

void bind_linear(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_step(nanobind::module_& m);

template <class T, int N>
using In = nanobind::ndarray<const T, nanobind::ndim<N>, nanobind::c_contig, nanobind::device::cpu>;
template <class T, int N>
using Out = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<N>>;

// A ValueError in Python.
inline void require(bool good, const std::string& what) {
  if (!good) throw std::invalid_argument(what);
}

}  // namespace octavo
