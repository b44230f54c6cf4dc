// The kernels for the avxvnni instruction set. All but the table has internal linkage: no function compiled here can be
// taken for one of another set's.
#define OCTAVO_ISA_AVXVNNI
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

const Kernels& kernels_avxvnni() {
  static constexpr Kernels table = {
      "avxvnni", quantize, prepare,   linear,          gated,  multiply_only, dequantize_row, rms_norm,
      rope,      kv_write, attention, attention_merge, choose, score,         random_words,
  };
  return table;
}

}  // namespace octavo
