// Stands in for the compiler's header where the AVX-512 and AVX-VNNI kernels are tested on a processor without them:
// SIMDe's definitions, and here those that SIMDe 0.7.4 lacks. Knows no kernel.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cstring>

using __mmask16 = simde__mmask16;

template <class Wide, class Narrow>
static inline Wide in_quarters(const Narrow (&quarters)[4]) {
  static_assert(sizeof(Wide) == sizeof(quarters), "four quarters");
  Wide wide;
  std::memcpy(&wide, quarters, sizeof(wide));
  return wide;
}

static inline __m512 _mm512_cvtepi32_ps(__m512i a) {
  __m128i q[4];
  std::memcpy(q, &a, 64);
  return in_quarters<__m512, __m128>(
      {_mm_cvtepi32_ps(q[0]), _mm_cvtepi32_ps(q[1]), _mm_cvtepi32_ps(q[2]), _mm_cvtepi32_ps(q[3])});
}

static inline __m512i _mm512_cvtps_epi32(__m512 a) {
  __m128 q[4];
  std::memcpy(q, &a, 64);
  return in_quarters<__m512i, __m128i>(
      {_mm_cvtps_epi32(q[0]), _mm_cvtps_epi32(q[1]), _mm_cvtps_epi32(q[2]), _mm_cvtps_epi32(q[3])});
}

static inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  uint16_t narrow[16];
  uint32_t wide[16];
  std::memcpy(narrow, &a, 32);
  for (int i = 0; i < 16; ++i) wide[i] = narrow[i];
  return _mm512_loadu_si512(wide);
}

static inline __m512i _mm512_cvtepi8_epi32(__m128i a) {
  int8_t narrow[16];
  int32_t wide[16];
  std::memcpy(narrow, &a, 16);
  for (int i = 0; i < 16; ++i) wide[i] = narrow[i];
  return _mm512_loadu_si512(wide);
}

static inline __m128i _mm512_cvtepi32_epi8(__m512i a) {
  uint32_t wide[16];
  uint8_t narrow[16];
  _mm512_storeu_si512(wide, a);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<uint8_t>(wide[i]);
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(narrow));
}

static inline __m512 _mm512_cvtph_ps(__m256i a) {
  uint16_t half[16];
  float wide[16];
  std::memcpy(half, &a, 32);
  for (int i = 0; i < 16; ++i) wide[i] = simde_float16_to_float32(simde_uint16_as_float16(half[i]));
  return _mm512_loadu_ps(wide);
}

static inline __m256 _mm512_extractf32x8_ps(__m512 a, int part) {
  float wide[16];
  _mm512_storeu_ps(wide, a);
  return _mm256_loadu_ps(wide + 8 * part);
}

// SIMDe's own rounds the product and the sum; the processor's rounds once, and so must these.
template <class Vector>
static inline Vector octavo_fmadd(Vector a, Vector b, Vector c) {
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
  float x[kLanes], y[kLanes], z[kLanes];
  std::memcpy(x, &a, sizeof(x));
  std::memcpy(y, &b, sizeof(y));
  std::memcpy(z, &c, sizeof(z));
  for (int i = 0; i < kLanes; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  std::memcpy(&c, z, sizeof(z));
  return c;
}
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps(a, b, c) octavo_fmadd<__m512>(a, b, c)
#undef _mm256_fmadd_ps
#define _mm256_fmadd_ps(a, b, c) octavo_fmadd<__m256>(a, b, c)

// AVX-VNNI's form of the instruction has a name of its own.
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32
