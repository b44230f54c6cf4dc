#include "pack.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "pool.h"

namespace octavo {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 28;
constexpr const char* kNames[] = {"u4", "u8", "bf16", "f32"};

// A GGUF tensor type: `block` weights in `bytes`, and the container that holds them exactly.
struct Format {
  int32_t type;
  int64_t block, bytes;
  Container container;
  int32_t zero_point;
  bool has_min;
};
enum GgmlType : int32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };
constexpr Format kFormats[] = {
    {kF32, 1, 4, Container::F32, 0, false},   {kF16, 1, 2, Container::F32, 0, false},
    {kBF16, 1, 2, Container::BF16, 0, false}, {kQ4_0, 32, 18, Container::U4, 8, false},
    {kQ4_1, 32, 20, Container::U4, 0, true},  {kQ8_0, 32, 34, Container::U8, 128, false},
};

const Format& format_of(int32_t ggml_type) {
  for (const Format& format : kFormats)
    if (format.type == ggml_type) return format;
  throw std::invalid_argument(
      "ggml_type " + std::to_string(ggml_type) +
      ": the native backend packs F32 (0), F16 (1), Q4_0 (2), Q4_1 (3), Q8_0 (8) and BF16 (30); "
      "use another file or the reference backend");
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

// One strip. `raw` is its first row, `rows` (1…16) are there; the rest stays zero.
void pack_blocks(const Format& f, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* out) {
  const int64_t row_bytes = cols / f.block * f.bytes;
  const int64_t scales = 2 * kStrip * (f.has_min ? 2 : 1);  // bytes
  const int64_t header = f.has_min ? 4 : 2;                 // of a block in the file
  const int64_t words = f.container == Container::U4 ? 4 : 8;
  const uint32_t flip = f.type == kQ8_0 ? 0x80808080u : 0;  // signed to unsigned
  for (int64_t g = 0; g < cols / kGroup; ++g, out += scales + words * 64) {
    for (int64_t o = 0; o < rows; ++o) {
      const uint8_t* block = raw + o * row_bytes + g * f.bytes;
      std::memcpy(out + 2 * o, block, 2);
      if (f.has_min) std::memcpy(out + 2 * (kStrip + o), block + 2, 2);
      for (int64_t v = 0; v < words; ++v) {  // 4 columns of a row are 4 bytes there and here
        uint32_t word;
        std::memcpy(&word, block + header + 4 * v, 4);
        word ^= flip;
        std::memcpy(out + scales + 64 * v + 4 * o, &word, 4);
      }
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
  for (int i = 0; i < 4; ++i)
    if (std::strcmp(name, kNames[i]) == 0) return static_cast<Container>(i);
  throw std::invalid_argument("container '" + std::string(name) + "': must be u4, u8, bf16 or f32");
}

int64_t strip_bytes(Container container, bool has_min, int64_t cols) {
  const int64_t scales = 2 * kStrip * (has_min ? 2 : 1);
  switch (container) {
    case Container::U4: return cols / kGroup * (scales + 4 * 64);
    case Container::U8: return cols / kGroup * (scales + 8 * 64);
    case Container::BF16: return cols * kStrip * 2;
    case Container::F32: return cols * kStrip * 4;
  }
  return 0;
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
        if (f.block == kGroup)
          pack_blocks(f, first, here, cols, out);
        else
          pack_floats(f, first, here, cols, out);
      }
    }
  });
}

}  // namespace octavo
