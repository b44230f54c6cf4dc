// Sixteen virtual lanes: the one vector type that every kernel is written in. Knows no kernel.
//
// A translation unit defines OCTAVO_ISA_SCALAR, _AVX2, _AVXVNNI, _AVX512 or _NEON before including this. All functions
// have internal linkage, so that no AVX code can leak into another instruction set's path. Each operation rounds once,
// identically on all sets. Horizontal sums and maxima use one fixed tree: lane i with lane i + 8, then 4, 2, 1. Where
// a lane is NaN, max and min give the second operand, as x86 does; only conversions to integers may differ between
// processors there, and for what does not fit an int32: no kernel depends on them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(OCTAVO_ISA_NEON)
#include <arm_neon.h>
#elif !defined(OCTAVO_ISA_SCALAR)
#include <immintrin.h>
#endif

namespace {

#define OCTAVO_INLINE static inline __attribute__((always_inline))

#if defined(OCTAVO_ISA_AVX512)
#include "simd_avx512.inc"
#include "simd_halves.inc"
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVXVNNI)
#include "simd_avx2.inc"
#include "simd_halves.inc"
#elif defined(OCTAVO_ISA_NEON)
#include "simd_neon.inc"
#else
#include "simd_scalar.inc"
#endif

OCTAVO_INLINE vf vf_zero() { return vf_set1(0.0f); }
OCTAVO_INLINE vm vm_first(int n) { return vm_set((1u << n) - 1); }  // lanes 0 … n − 1, n ≤ 16

// The ends of arrays that are no multiple of 16 long: n < 16 values; the other lanes are `fill`, or are not stored.
OCTAVO_INLINE vf vf_load_first(const float* p, int n, float fill) {
  float t[16];
  for (int i = 0; i < 16; ++i) t[i] = i < n ? p[i] : fill;
  return vf_load(t);
}
OCTAVO_INLINE void vf_store_first(float* p, vf a, int n) {
  float t[16];
  vf_store(t, a);
  std::memcpy(p, t, (size_t)n * sizeof(float));
}

// fp32 → bf16, round to nearest even; NaN stays NaN.
OCTAVO_INLINE uint16_t to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 64);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

OCTAVO_INLINE float from_bf16(uint16_t h) {
  const uint32_t u = (uint32_t)h << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// exp(x) for x ≤ 88; below −87.3 it is 0, and NaN stays NaN. Cody–Waite reduction by ln 2, then a degree-6 polynomial
// on [−ln2/2, ln2/2] (coefficients 1/k!, relative error below 2e-7).
OCTAVO_INLINE vf vf_exp(vf x) {
  const vf low = vf_set1(-87.3f);
  const vm under = vf_lt(x, low);
  x = vf_max(low, x);
  const vi n = vf_round_i(vf_mul(x, vf_set1(1.44269504088896341f)));
  const vf nf = vi_float(n);
  vf r = vf_fma(nf, vf_set1(-0.693359375f), x);
  r = vf_fma(nf, vf_set1(2.12194440e-4f), r);
  vf p = vf_set1(1.0f / 720);
  p = vf_fma(p, r, vf_set1(1.0f / 120));
  p = vf_fma(p, r, vf_set1(1.0f / 24));
  p = vf_fma(p, r, vf_set1(1.0f / 6));
  p = vf_fma(p, r, vf_set1(0.5f));
  p = vf_fma(p, r, vf_set1(1.0f));
  p = vf_fma(p, r, vf_set1(1.0f));
  const vf scale = vi_as_f(vi_shl(vi_add(n, vi_set1(127)), 23));
  return vf_select(under, vf_zero(), vf_mul(p, scale));
}

}  // namespace
