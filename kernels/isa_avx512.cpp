// The kernels for the avx512 instruction set. All but the table has internal linkage: no function compiled here can be
// taken for one of another set's.
#define OCTAVO_ISA_AVX512
#include "octavo.h"
#include "simd.h"

namespace octavo {
namespace {

#include "dots.inc"
#include "quantize.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#include "sampling.inc"

}  // namespace

const Kernels& kernels_avx512() {
  static constexpr Kernels table = {
      "avx512", quantize, prepare,   linear,          gated,  multiply_only, dequantize_row, rms_norm,
      rope,     kv_write, attention, attention_merge, choose, score,         random_words,
  };
  return table;
}

}  // namespace octavo
