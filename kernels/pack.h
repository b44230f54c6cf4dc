// From the weights of a GGUF file to the layout that the kernels read (octavo.h), and back. Knows no instruction set.
#pragma once

#include <cstdint>

#include "octavo.h"

namespace octavo {

// The wider an input, the fewer rows share the work of unpacking a weight; beyond this it would be none.
inline constexpr int64_t kMaxColumns = 32768;

// A matrix without data: container, zero point, minimum and strip size for a GGUF tensor type. Knows Q4_0, Q4_1, Q5_0,
// Q5_1, Q8_0, Q2_K … Q6_K, IQ4_NL, F16 (widened), BF16 and F32. Raises std::invalid_argument for another type or a
// size that the kernels do not take.
Matrix packed_shape(int32_t ggml_type, int64_t rows, int64_t cols);
int64_t packed_bytes(const Matrix& shape);
int64_t ggml_bytes(int32_t ggml_type, int64_t rows, int64_t cols);  // of the tensor as the file has it

// `raw`: ggml_bytes() of rows in order. `packed`: packed_bytes(packed_shape()), written whole.
void pack_matrix(const uint8_t* raw, int32_t ggml_type, int64_t rows, int64_t cols, uint8_t* packed, int threads);

// Whether the kernels have products for such a matrix.
bool is_kind(Container container, int32_t zero_point, bool has_min);

// The bytes of a strip of any container.
int64_t strip_bytes(Container container, bool has_min, int64_t cols);

const char* container_name(Container container);  // "u4" …
Container container_of(const char* name);         // raises std::invalid_argument

}  // namespace octavo
