// What each bind_*.cpp adds to the extension module. Knows only names.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_linear(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_step(nanobind::module_& m);

}  // namespace octavo
