#include "pack.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "pool.h"

namespace octavo {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 28;
constexpr const char* kNames[] = {"u4", "u8", "bf16", "f32", "u4k", "u8k", "u4h", "u8h"};

// A GGUF tensor type: `block` weights in `bytes`, and the container that holds them exactly.
struct Format {
  int32_t type;
  const char* name;
  int64_t block, bytes;
  Container container;
  int32_t zero_point;
  bool has_min;
};
enum GgmlType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kBF16 = 30
};
constexpr Format kFormats[] = {
    {kF32, "F32", 1, 4, Container::F32, 0, false},        {kF16, "F16", 1, 2, Container::F32, 0, false},
    {kBF16, "BF16", 1, 2, Container::BF16, 0, false},     {kQ4_0, "Q4_0", 32, 18, Container::U4, 8, false},
    {kQ4_1, "Q4_1", 32, 20, Container::U4, 0, true},      {kQ5_0, "Q5_0", 32, 22, Container::U8, 16, false},
    {kQ5_1, "Q5_1", 32, 24, Container::U8, 0, true},      {kQ8_0, "Q8_0", 32, 34, Container::U8, 128, false},
    {kQ2_K, "Q2_K", 256, 84, Container::U4H, 0, true},    {kQ3_K, "Q3_K", 256, 110, Container::U4H, 4, false},
    {kQ4_K, "Q4_K", 256, 144, Container::U4K, 0, true},   {kQ5_K, "Q5_K", 256, 176, Container::U8K, 0, true},
    {kQ6_K, "Q6_K", 256, 210, Container::U8H, 32, false}, {kIQ4_NL, "IQ4_NL", 32, 18, Container::U8, 128, false},
};

const Format& format_of(int32_t ggml_type) {
  std::string known;
  for (const Format& format : kFormats) {
    if (format.type == ggml_type) return format;
    known += (known.empty() ? "" : ", ") + std::string(format.name) + " (" + std::to_string(format.type) + ")";
  }
  throw std::invalid_argument("ggml_type " + std::to_string(ggml_type) + ": the native backend packs " + known +
                              "; use another file or the reference backend");
}

// Exact: every half is a float.
uint32_t half_bits(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  uint32_t exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent == 31) return sign | 0x7f800000u | fraction << 13;
  if (exponent == 0) {
    if (fraction == 0) return sign;
    exponent = 1;
    while (!(fraction & 1024)) {
      fraction <<= 1;
      --exponent;  // may pass below 0: the bias of a float is 112 larger
    }
    fraction &= 1023;
  }
  return sign | (exponent + 112) << 23 | fraction << 13;
}

float half_value(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  const uint32_t bits = half_bits(half);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// 32 weights of one row: unsigned, with their scales and minima as the container keeps them.
struct Unpacked {
  uint8_t q[kGroup];
  uint8_t half_s[2], half_m[2];  // fp16, as in the file
  float s[2], m[2];              // of each half of the group; for U4K and U8K the first is for all
};

// Blocks of 32 with fp16 scales. Formats by ggml's public definitions (ggml-quants); gguf's dequantisation is the
// oracle.
void unpack_short(const Format& f, const uint8_t* block, Unpacked* out) {
  static constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  std::memcpy(out->half_s, block, 2);
  if (f.has_min) std::memcpy(out->half_m, block + 2, 2);
  const uint8_t* q = block + (f.has_min ? 4 : 2);
  if (f.type == kQ8_0) {
    for (int k = 0; k < kGroup; ++k) out->q[k] = static_cast<uint8_t>(q[k] ^ 0x80);  // signed to unsigned
    return;
  }
  uint32_t fifth = 0;  // the fifth bits
  if (f.type == kQ5_0 || f.type == kQ5_1) {
    std::memcpy(&fifth, q, 4);
    q += 4;
  }
  for (int k = 0; k < kGroup; ++k) {
    const uint8_t nibble = k < 16 ? q[k] & 15 : q[k - 16] >> 4;
    out->q[k] = f.type == kIQ4_NL ? static_cast<uint8_t>(kNonLinear[nibble] + 128)
                                  : static_cast<uint8_t>(nibble | (fifth >> k & 1) << 4);
  }
}

// Group `g` (0 … 7) of a block of 256. A scale is the block's (fp16) times the group's (an integer): exact in fp32.
void unpack_long(const Format& f, const uint8_t* block, int g, Unpacked* out) {
  const int chunk = g / 4, place = g % 4;  // of 128 weights, and of 32 in it
  float d = 0, least = 0;
  switch (f.type) {
    case kQ2_K: {  // 16 bytes of scales and minima, 64 of weights, d, dmin
      const uint8_t *scales = block, *q = block + 16 + 32 * chunk;
      d = half_value(block + 80);
      least = half_value(block + 82);
      for (int k = 0; k < kGroup; ++k) out->q[k] = q[k] >> 2 * place & 3;
      for (int half = 0; half < 2; ++half) {
        out->s[half] = d * static_cast<float>(scales[2 * g + half] & 15);
        out->m[half] = -(least * static_cast<float>(scales[2 * g + half] >> 4));
      }
      return;
    }
    case kQ3_K: {  // 32 bytes of third bits, 64 of low bits, 12 of scales, d
      const uint8_t *third = block, *q = block + 32 + 32 * chunk, *scales = block + 96;
      d = half_value(block + 108);
      for (int k = 0; k < kGroup; ++k)
        out->q[k] = static_cast<uint8_t>((q[k] >> 2 * place & 3) | (third[k] >> g & 1) << 2);
      for (int half = 0; half < 2; ++half) {
        const int i = 2 * g + half;
        const int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4, high = scales[8 + i % 4] >> 2 * (i / 4) & 3;
        out->s[half] = d * static_cast<float>((low | high << 4) - 32);
      }
      return;
    }
    case kQ4_K:
    case kQ5_K: {  // d, dmin, 12 bytes of scales and minima, [32 of fifth bits], 128 of weights
      const uint8_t *scales = block + 4, *fifth = block + 16;
      const uint8_t* q = block + (f.type == kQ5_K ? 48 : 16) + 32 * (g / 2);
      d = half_value(block);
      least = half_value(block + 2);
      const int s = g < 4 ? scales[g] & 63 : (scales[g + 4] & 15) | scales[g - 4] >> 6 << 4;
      const int m = g < 4 ? scales[g + 4] & 63 : scales[g + 4] >> 4 | scales[g] >> 6 << 4;
      for (int k = 0; k < kGroup; ++k) {
        out->q[k] = g % 2 ? q[k] >> 4 : q[k] & 15;
        if (f.type == kQ5_K) out->q[k] = static_cast<uint8_t>(out->q[k] | (fifth[k] >> g & 1) << 4);
      }
      out->s[0] = d * static_cast<float>(s);
      out->m[0] = -(least * static_cast<float>(m));
      return;
    }
    default: {  // Q6_K: 128 bytes of low bits, 64 of high ones, 16 of signed scales, d
      const uint8_t *low = block + 64 * chunk + 32 * (place % 2), *high = block + 128 + 32 * chunk;
      d = half_value(block + 208);
      for (int k = 0; k < kGroup; ++k)
        out->q[k] = static_cast<uint8_t>((place < 2 ? low[k] & 15 : low[k] >> 4) | (high[k] >> 2 * place & 3) << 4);
      for (int half = 0; half < 2; ++half)
        out->s[half] = d * static_cast<float>(static_cast<int8_t>(block[192 + 2 * g + half]));
    }
  }
}

// One strip. `raw` is its first row, `rows` (1…16) are there; the rest stays zero.
void pack_blocks(const Format& f, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* out) {
  const int64_t row_bytes = cols / f.block * f.bytes, groups_each = f.block / kGroup;
  const bool floats = has_float_scales(f.container), wide = is_wide(f.container);
  const int64_t header = header_bytes(f.container, f.has_min), parts = has_halves(f.container) ? 2 : 1;
  Unpacked u;
  for (int64_t g = 0; g < cols / kGroup; ++g, out += group_bytes(f.container, f.has_min)) {
    for (int64_t o = 0; o < rows; ++o) {
      const uint8_t* block = raw + o * row_bytes + g / groups_each * f.bytes;
      if (floats) {
        unpack_long(f, block, static_cast<int>(g % groups_each), &u);
        for (int64_t i = 0; i < parts; ++i) {
          std::memcpy(out + 4 * (kStrip * i + o), &u.s[i], 4);
          if (f.has_min) std::memcpy(out + 4 * (kStrip * (parts + i) + o), &u.m[i], 4);
        }
      } else {
        unpack_short(f, block, &u);
        std::memcpy(out + 2 * o, u.half_s, 2);
        if (f.has_min) std::memcpy(out + 2 * (kStrip + o), u.half_m, 2);
      }
      uint8_t* to = out + header + 4 * o;
      for (int k = 0; k < (wide ? kGroup : kGroup / 2); ++k)
        to[64 * (k / 4) + k % 4] = wide ? u.q[k] : static_cast<uint8_t>(u.q[k] | u.q[k + 16] << 4);
    }
  }
}

void pack_floats(const Format& f, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* out) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t o = 0; o < rows; ++o) {
      const uint8_t* value = raw + (o * cols + c) * f.bytes;
      if (f.type == kF16) {
        uint16_t half;
        std::memcpy(&half, value, 2);
        const uint32_t bits = half_bits(half);
        std::memcpy(out + (c * kStrip + o) * 4, &bits, 4);
      } else {
        std::memcpy(out + (c * kStrip + o) * f.bytes, value, static_cast<size_t>(f.bytes));
      }
    }
  }
}

}  // namespace

const char* container_name(Container container) { return kNames[static_cast<int>(container)]; }

Container container_of(const char* name) {
  for (int i = 0; i < 8; ++i)
    if (std::strcmp(name, kNames[i]) == 0) return static_cast<Container>(i);
  throw std::invalid_argument("container '" + std::string(name) + "': must be u4, u4k, u4h, u8, u8k, u8h, bf16 or f32");
}

bool is_kind(Container container, int32_t zero_point, bool has_min) {
  if (zero_point < 0 || zero_point > 255 || (zero_point && has_min)) return false;
  switch (container) {
    case Container::BF16:
    case Container::F32: return !zero_point && !has_min;
    case Container::U4K:
    case Container::U8K: return has_min;
    case Container::U8H: return !has_min;
    default: return true;
  }
}

int64_t strip_bytes(Container container, bool has_min, int64_t cols) {
  if (is_integer(container)) return cols / kGroup * group_bytes(container, has_min);
  return cols * kStrip * (container == Container::BF16 ? 2 : 4);
}

Matrix packed_shape(int32_t ggml_type, int64_t rows, int64_t cols) {
  const Format& f = format_of(ggml_type);
  if (rows < 1 || rows > kMaxRows)
    throw std::invalid_argument("rows " + std::to_string(rows) + ": must be from 1 to " + std::to_string(kMaxRows));
  if (cols < 1 || cols > kMaxColumns)
    throw std::invalid_argument("cols " + std::to_string(cols) + ": must be from 1 to " + std::to_string(kMaxColumns));
  if (cols % f.block != 0)
    throw std::invalid_argument("cols " + std::to_string(cols) + ": must be a multiple of " + std::to_string(f.block) +
                                ", the block of ggml_type " + std::to_string(ggml_type));
  Matrix shape;
  shape.rows = static_cast<int32_t>(rows);
  shape.cols = static_cast<int32_t>(cols);
  shape.container = f.container;
  shape.zero_point = f.zero_point;
  shape.has_min = f.has_min;
  shape.strip_bytes = strip_bytes(f.container, f.has_min, cols);
  return shape;
}

int64_t packed_bytes(const Matrix& shape) { return shape.strip_bytes * shape.strips(); }

int64_t ggml_bytes(int32_t ggml_type, int64_t rows, int64_t cols) {
  packed_shape(ggml_type, rows, cols);  // so that nothing below overflows
  const Format& f = format_of(ggml_type);
  return rows * (cols / f.block * f.bytes);
}

void pack_matrix(const uint8_t* raw, int32_t ggml_type, int64_t rows, int64_t cols, uint8_t* packed, int threads) {
  const Matrix shape = packed_shape(ggml_type, rows, cols);
  const Format& f = format_of(ggml_type);
  const int64_t strips = shape.strips(), chunk = 16;
  Pool pool(static_cast<int>(strips < chunk * threads ? 1 : threads));
  pool.run([&](int, Pool& workers) {
    for (int64_t s; (s = workers.claim(chunk)) < strips;) {
      for (const int64_t end = s + chunk < strips ? s + chunk : strips; s < end; ++s) {
        const int64_t row = s * kStrip, here = rows - row < kStrip ? rows - row : kStrip;
        uint8_t* out = packed + s * shape.strip_bytes;
        if (here < kStrip) std::memset(out, 0, static_cast<size_t>(shape.strip_bytes));
        const uint8_t* first = raw + row * (cols / f.block * f.bytes);
        if (is_integer(f.container))
          pack_blocks(f, first, here, cols, out);
        else
          pack_floats(f, first, here, cols, out);
      }
    }
  });
}

}  // namespace octavo
