// Sixteen virtual lanes: the one vector type that every kernel is written in. Knows no kernel.
//
// A translation unit defines OCTAVO_ISA_SCALAR, OCTAVO_ISA_AVX2 or OCTAVO_ISA_AVX512 before including this. All
// functions have internal linkage, so that no AVX code can leak into another instruction set's path. Each operation
// rounds once, identically on all three; horizontal sums use one fixed tree (8, 4, 2, 1).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVX512)
#include <immintrin.h>
#endif

namespace {

#define OCTAVO_INLINE static inline __attribute__((always_inline))

// clang-format off: one operation a line, so that the three sets can be compared
#if defined(OCTAVO_ISA_AVX512)

struct vf { __m512 v; };
struct vi { __m512i v; };
struct vm { __mmask16 v; };

OCTAVO_INLINE vf vf_set1(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE vf vf_load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE void vf_store(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE vf vf_add(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE vf vf_sub(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE vf vf_mul(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE vf vf_div(vf a, vf b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE vf vf_fma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a·b + c
OCTAVO_INLINE vf vf_max(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }               // b if either is NaN
OCTAVO_INLINE vf vf_min(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE vf vf_abs(vf a) { return {_mm512_abs_ps(a.v)}; }
OCTAVO_INLINE vm vf_lt(vf a, vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
OCTAVO_INLINE vf vf_select(vm m, vf yes, vf no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
OCTAVO_INLINE uint32_t vm_bits(vm m) { return m.v; }
OCTAVO_INLINE vm vm_set(uint32_t bits) { return {(__mmask16)bits}; }  // lane i is bit i
OCTAVO_INLINE uint32_t vf_nan_bits(vf a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
OCTAVO_INLINE vi vf_round_i(vf a) { return {_mm512_cvtps_epi32(a.v)}; }  // nearest even
OCTAVO_INLINE vf vi_float(vi a) { return {_mm512_cvtepi32_ps(a.v)}; }
OCTAVO_INLINE vi vi_set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
OCTAVO_INLINE vi vi_load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE void vi_store(int32_t* p, vi a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE vi vi_add(vi a, vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
OCTAVO_INLINE vi vi_shl(vi a, int n) { return {_mm512_slli_epi32(a.v, n)}; }
OCTAVO_INLINE vi vi_shr(vi a, int n) { return {_mm512_srli_epi32(a.v, n)}; }  // zeros come in
OCTAVO_INLINE vi vi_xor(vi a, vi b) { return {_mm512_xor_si512(a.v, b.v)}; }
OCTAVO_INLINE vi vi_mul(vi a, vi b) { return {_mm512_mullo_epi32(a.v, b.v)}; }  // low halves
OCTAVO_INLINE vi vi_mul_high(vi a, vi b) {                                      // high halves, unsigned
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, b.v), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {_mm512_mask_blend_epi32(0xaaaa, even, odd)};
}
OCTAVO_INLINE vf vi_as_f(vi a) { return {_mm512_castsi512_ps(a.v)}; }
OCTAVO_INLINE vf vf_load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
OCTAVO_INLINE vf vf_load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
OCTAVO_INLINE vf vf_load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}

#elif defined(OCTAVO_ISA_AVX2)

struct vf { __m256 lo, hi; };
struct vi { __m256i lo, hi; };
struct vm { __m256 lo, hi; };

OCTAVO_INLINE vf vf_set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
OCTAVO_INLINE vf vf_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE void vf_store(float* p, vf a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
OCTAVO_INLINE vf vf_add(vf a, vf b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
OCTAVO_INLINE vf vf_sub(vf a, vf b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
OCTAVO_INLINE vf vf_mul(vf a, vf b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
OCTAVO_INLINE vf vf_div(vf a, vf b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
OCTAVO_INLINE vf vf_fma(vf a, vf b, vf c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
OCTAVO_INLINE vf vf_max(vf a, vf b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
OCTAVO_INLINE vf vf_min(vf a, vf b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
OCTAVO_INLINE vf vf_abs(vf a) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
OCTAVO_INLINE vm vf_lt(vf a, vf b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
OCTAVO_INLINE vf vf_select(vm m, vf yes, vf no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
OCTAVO_INLINE uint32_t vm_bits(vm m) {
  return (uint32_t)_mm256_movemask_ps(m.lo) | ((uint32_t)_mm256_movemask_ps(m.hi) << 8);
}
OCTAVO_INLINE vm vm_set(uint32_t bits) {  // lane i is bit i
  const __m256i b = _mm256_set1_epi32((int)bits);
  const __m256i lo = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), hi = _mm256_slli_epi32(lo, 8);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(b, lo), lo)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(b, hi), hi))};
}
OCTAVO_INLINE uint32_t vf_nan_bits(vf a) {
  return vm_bits({_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)});
}
OCTAVO_INLINE vi vf_round_i(vf a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
OCTAVO_INLINE vf vi_float(vi a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
OCTAVO_INLINE vi vi_set1(int32_t x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
OCTAVO_INLINE vi vi_load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
OCTAVO_INLINE void vi_store(int32_t* p, vi a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
}
OCTAVO_INLINE vi vi_add(vi a, vi b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
OCTAVO_INLINE vi vi_shl(vi a, int n) { return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)}; }
OCTAVO_INLINE vi vi_shr(vi a, int n) { return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)}; }
OCTAVO_INLINE vi vi_xor(vi a, vi b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
OCTAVO_INLINE vi vi_mul(vi a, vi b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
OCTAVO_INLINE __m256i high_half(__m256i a, __m256i b) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  return _mm256_blend_epi32(even, odd, 0xaa);
}
OCTAVO_INLINE vi vi_mul_high(vi a, vi b) { return {high_half(a.lo, b.lo), high_half(a.hi, b.hi)}; }
OCTAVO_INLINE vf vi_as_f(vi a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
OCTAVO_INLINE vf vf_load_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
OCTAVO_INLINE vf vf_load_bf16(const uint16_t* p) {
  __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
OCTAVO_INLINE vf vf_load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}

#else  // scalar

struct vf { float v[16]; };
struct vi { int32_t v[16]; };
struct vm { uint32_t v; };

#define OCTAVO_LANES(expr) { vf r; for (int i = 0; i < 16; ++i) r.v[i] = (expr); return r; }
OCTAVO_INLINE vf vf_set1(float x) OCTAVO_LANES(x)
OCTAVO_INLINE vf vf_load(const float* p) OCTAVO_LANES(p[i])
OCTAVO_INLINE void vf_store(float* p, vf a) { std::memcpy(p, a.v, 64); }
OCTAVO_INLINE vf vf_add(vf a, vf b) OCTAVO_LANES(a.v[i] + b.v[i])
OCTAVO_INLINE vf vf_sub(vf a, vf b) OCTAVO_LANES(a.v[i] - b.v[i])
OCTAVO_INLINE vf vf_mul(vf a, vf b) OCTAVO_LANES(a.v[i] * b.v[i])
OCTAVO_INLINE vf vf_div(vf a, vf b) OCTAVO_LANES(a.v[i] / b.v[i])
// One rounding, by the C library's fmaf: exact everywhere, slow where the processor has none.
OCTAVO_INLINE vf vf_fma(vf a, vf b, vf c) OCTAVO_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i]))
OCTAVO_INLINE vf vf_max(vf a, vf b) OCTAVO_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i])
OCTAVO_INLINE vf vf_min(vf a, vf b) OCTAVO_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i])
OCTAVO_INLINE vf vf_abs(vf a) OCTAVO_LANES(__builtin_fabsf(a.v[i]))
OCTAVO_INLINE vm vf_lt(vf a, vf b) {
  vm r{0};
  for (int i = 0; i < 16; ++i) r.v |= (uint32_t)(a.v[i] < b.v[i]) << i;
  return r;
}
OCTAVO_INLINE vf vf_select(vm m, vf yes, vf no) OCTAVO_LANES((m.v >> i) & 1 ? yes.v[i] : no.v[i])
OCTAVO_INLINE uint32_t vm_bits(vm m) { return m.v; }
OCTAVO_INLINE vm vm_set(uint32_t bits) { return {bits & 0xffff}; }
OCTAVO_INLINE uint32_t vf_nan_bits(vf a) {
  uint32_t r = 0;
  for (int i = 0; i < 16; ++i) r |= (uint32_t)(a.v[i] != a.v[i]) << i;
  return r;
}
OCTAVO_INLINE vi vf_round_i(vf a) {
  vi r;
  for (int i = 0; i < 16; ++i) r.v[i] = (int32_t)__builtin_nearbyintf(a.v[i]);
  return r;
}
OCTAVO_INLINE vf vi_float(vi a) OCTAVO_LANES((float)a.v[i])
OCTAVO_INLINE vi vi_set1(int32_t x) { vi r; for (int i = 0; i < 16; ++i) r.v[i] = x; return r; }
OCTAVO_INLINE vi vi_load(const int32_t* p) { vi r; std::memcpy(r.v, p, 64); return r; }
OCTAVO_INLINE void vi_store(int32_t* p, vi a) { std::memcpy(p, a.v, 64); }
OCTAVO_INLINE vi vi_add(vi a, vi b) { vi r; for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] + b.v[i]; return r; }
OCTAVO_INLINE vi vi_shl(vi a, int n) {
  vi r;
  for (int i = 0; i < 16; ++i) r.v[i] = (int32_t)((uint32_t)a.v[i] << n);
  return r;
}
OCTAVO_INLINE vi vi_shr(vi a, int n) {
  vi r;
  for (int i = 0; i < 16; ++i) r.v[i] = (int32_t)((uint32_t)a.v[i] >> n);
  return r;
}
OCTAVO_INLINE vi vi_xor(vi a, vi b) { vi r; for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] ^ b.v[i]; return r; }
OCTAVO_INLINE vi vi_mul(vi a, vi b) {
  vi r;
  for (int i = 0; i < 16; ++i) r.v[i] = (int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i]);
  return r;
}
OCTAVO_INLINE vi vi_mul_high(vi a, vi b) {
  vi r;
  for (int i = 0; i < 16; ++i) r.v[i] = (int32_t)(((uint64_t)(uint32_t)a.v[i] * (uint32_t)b.v[i]) >> 32);
  return r;
}
OCTAVO_INLINE vf vi_as_f(vi a) { vf r; std::memcpy(r.v, a.v, 64); return r; }
OCTAVO_INLINE float bits_f(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }
OCTAVO_INLINE vf vf_load_i8(const int8_t* p) OCTAVO_LANES((float)p[i])
OCTAVO_INLINE vf vf_load_bf16(const uint16_t* p) OCTAVO_LANES(bits_f((uint32_t)p[i] << 16))
OCTAVO_INLINE float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
  if (e == 31) return bits_f(sign | 0x7f800000u | (m << 13));
  if (e) return bits_f(sign | ((e + 112) << 23) | (m << 13));
  float f = (float)m * 0x1p-24f;
  return sign ? -f : f;
}
OCTAVO_INLINE vf vf_load_f16(const uint16_t* p) OCTAVO_LANES(half_to_float(p[i]))
#undef OCTAVO_LANES

#endif
// clang-format on

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

// The one tree: lane i + lane i+8, then 4, 2, 1.
#if defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVX512)
#if defined(OCTAVO_ISA_AVX512)
OCTAVO_INLINE __m256 vf_low(vf a) { return _mm512_castps512_ps256(a.v); }
OCTAVO_INLINE __m256 vf_high(vf a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
OCTAVO_INLINE __m256 vf_low(vf a) { return a.lo; }
OCTAVO_INLINE __m256 vf_high(vf a) { return a.hi; }
#endif
OCTAVO_INLINE float vf_sum(vf a) {
  const __m256 t8 = _mm256_add_ps(vf_low(a), vf_high(a));
  const __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
  const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
  return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}
OCTAVO_INLINE float vf_hmax(vf a) {
  const __m256 t8 = _mm256_max_ps(vf_low(a), vf_high(a));
  const __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
  const __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
  return _mm_cvtss_f32(_mm_max_ss(t2, _mm_movehdup_ps(t2)));
}
#else
OCTAVO_INLINE float vf_sum(vf a) {
  for (int w = 8; w; w >>= 1)
    for (int i = 0; i < w; ++i) a.v[i] += a.v[i + w];
  return a.v[0];
}
OCTAVO_INLINE float vf_hmax(vf a) {
  for (int w = 8; w; w >>= 1)
    for (int i = 0; i < w; ++i) a.v[i] = a.v[i] > a.v[i + w] ? a.v[i] : a.v[i + w];
  return a.v[0];
}
#endif

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
