// Which instruction set this processor can run, and which the user allows. Knows no kernel.
#include <cstring>
#include <stdexcept>
#include <string>

#include "octavo.h"

namespace octavo {
namespace {

struct Candidate {
  const char* name;
  const Kernels& (*table)();
  bool runs;
};

// From the least to the best.
struct Candidates {
  Candidate list[3];
  int count;
};

Candidates candidates() {
#if defined(__x86_64__)
  // The compiler's cpuid test includes XCR0: whether the system keeps the registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#if defined(OCTAVO_EMULATE_AVX512)
  const bool avx512 = true;
#else
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
#endif
  return {{{"scalar", kernels_scalar, true}, {"avx2", kernels_avx2, avx2}, {"avx512", kernels_avx512, avx512}}, 3};
#else
  return {{{"scalar", kernels_scalar, true}}, 1};
#endif
}

std::string default_limit;

}  // namespace

void set_default_limit(const char* limit) {
  select_kernels(limit);
  default_limit = limit;
}

const Kernels& select_kernels(const char* limit) {
  if (!*limit) limit = default_limit.c_str();
  const Candidates all = candidates();
  const Kernels* best = nullptr;
  bool known = false;
  for (int i = 0; i < all.count && !known; ++i) {
    if (all.list[i].runs) best = &all.list[i].table();
    known = std::strcmp(limit, all.list[i].name) == 0;
  }
  if (*limit && !known) {
    std::string names;
    for (int i = 0; i < all.count; ++i) names += std::string(i ? ", " : "") + all.list[i].name;
    throw std::invalid_argument("instruction set '" + std::string(limit) + "' (OCTAVO_ISA): must be one of " + names +
                                ", or empty for the best that this processor runs");
  }
  return *best;
}

}  // namespace octavo
