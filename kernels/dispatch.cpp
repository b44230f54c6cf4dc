// Which instruction set this processor can run, and which the user allows. Knows no kernel.
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "octavo.h"

namespace octavo {
namespace {

struct Candidate {
  const char* name;
  const Kernels& (*table)();  // nullptr if this build lacks it
  bool runs;
};

// From the least to the best. AVX-512 comes last: with VNNI it makes twice the products of AVX-VNNI in an instruction,
// and a processor may have either without the other.
struct Candidates {
  Candidate list[4];
  int count;
};

#if defined(__x86_64__)

// Both need no register that AVX2 does not, and not every compiler's test knows their names.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
bool has_avxvnni() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

Candidates find_candidates() {
  // The compiler's cpuid test includes XCR0: whether the system keeps the registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#if defined(OCTAVO_EMULATE)
  const bool avxvnni = true, avx512 = true;
#else
  const bool avxvnni = avx2 && has_avxvnni();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
#endif
#if defined(OCTAVO_NO_AVXVNNI)
  const Candidate vnni = {"avxvnni", nullptr, false};
#else
  const Candidate vnni = {"avxvnni", kernels_avxvnni, avxvnni};
#endif
  return {{{"scalar", kernels_scalar, true}, {"avx2", kernels_avx2, avx2}, vnni, {"avx512", kernels_avx512, avx512}},
          4};
}

#elif defined(__aarch64__)

Candidates find_candidates() {
#if defined(__linux__)
  const bool neon = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
  const bool neon = true;  // every Mac has SDOT
#endif
  return {{{"scalar", kernels_scalar, true}, {"neon", kernels_neon, neon}}, 2};
}

#else

Candidates find_candidates() { return {{{"scalar", kernels_scalar, true}}, 1}; }

#endif

// Asked once: a virtual machine's host answers cpuid, which takes it microseconds.
const Candidates& candidates() {
  static const Candidates all = find_candidates();
  return all;
}

std::string default_limit;

}  // namespace

void set_default_limit(const char* limit) {
  select_kernels(limit);
  default_limit = limit;
}

const Kernels* runnable_kernels(int index) {
  const Candidates& all = candidates();
  for (int i = 0; i < all.count; ++i)
    if (all.list[i].runs && index-- == 0) return &all.list[i].table();
  return nullptr;
}

const Kernels& select_kernels(const char* limit) {
  if (!*limit) limit = default_limit.c_str();
  const Candidates& all = candidates();
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
