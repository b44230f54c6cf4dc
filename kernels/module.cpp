// The extension module octavo._kernels. Knows what there is to bind, not how.
#include <nanobind/nanobind.h>

#include <cstdlib>

#include "bind.h"
#include "octavo.h"

NB_MODULE(_kernels, m) {
  m.doc() = "The native backend's kernels, and the runtime that runs a step with them.";
  if (const char* limit = std::getenv("OCTAVO_ISA")) octavo::set_default_limit(limit);
  octavo::bind_linear(m);
  octavo::bind_ops(m);
  octavo::bind_step(m);
}
