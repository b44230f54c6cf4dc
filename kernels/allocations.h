// How often this library has asked the heap for memory: so that a test can require that a step never does.
#pragma once

#include <cstdint>

namespace octavo {

int64_t
allocations();  // since the library was loaded, by all threads; 0 in a build with sanitizers, which count their own

}  // namespace octavo
