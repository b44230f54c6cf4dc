// The kernels' shared words: packed matrices, activations, the KV cache, and the table of functions that each
// instruction set fills in. Knows no model and no scheduler.
//
// Bit equality is the contract of every function here: one output is computed by the same float operations in the
// same order on every instruction set, for any number of neighbours and threads. Hence: 16 virtual lanes for every
// reduction (simd.h), explicit fused multiply-adds only, no libm, no contraction.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Part of the store's key and of the arithmetic id: change it when packed bytes or results change.
inline constexpr char kKernelVersion[] = "3";

inline constexpr int kStrip = 16;        // output rows that are packed together
inline constexpr int kGroup = 32;        // weights (and activations) that share a scale
inline constexpr int kBlockTokens = 16;  // tokens in a KV block
inline constexpr int kBlockRows = 64;    // rows of activations that meet a strip's weights together, at most
inline constexpr int kSegment = 256;     // attention is summed over segments of this many positions, from 0

// w = s·(q − zero_point) + m, with q unsigned; or plain floats.
enum class Container : int32_t { U4 = 0, U8 = 1, BF16 = 2, F32 = 3, U4K = 4, U8K = 5, U4H = 6, U8H = 7 };

// Internal linkage, here as everywhere: a function compiled for one instruction set must not serve another.
static inline bool is_integer(Container c) { return c != Container::BF16 && c != Container::F32; }
static inline bool is_wide(Container c) { return c == Container::U8 || c == Container::U8K || c == Container::U8H; }
static inline bool has_halves(Container c) { return c == Container::U4H || c == Container::U8H; }
static inline bool has_float_scales(Container c) {
  return static_cast<int32_t>(c) >= static_cast<int32_t>(Container::U4K);
}

// A packed weight matrix y = W·x. Rows are padded with zeros to whole strips. A strip (16 rows) holds, for each
// group of 32 columns in turn:
//   U4:  16 fp16 s, [16 fp16 m if has_min], then 4 vectors of 64 bytes. Vector g (0…3) holds, for row o and
//        i in 0…3, at byte 4·o + i: column 4·g + i in the low nibble, column 16 + 4·g + i in the high nibble.
//   U8:  16 fp16 s, [16 fp16 m if has_min], then 8 vectors of 64 bytes: byte 4·o + i of vector g is column 4·g + i.
//   U4K, U8K: the same with s and m in fp32, for products of a block's and a smaller group's scale.
//   U4H, U8H: the same with two of each in fp32, s of columns 0 … 15, s of 16 … 31, and then m likewise.
// and for floats, for each column in turn: 16 values (bf16 or fp32), one per row.
struct Matrix {
  const uint8_t* data = nullptr;  // 64-byte aligned
  int32_t rows = 0;
  int32_t cols = 0;  // a multiple of 32 for U4 and U8
  Container container = Container::F32;
  int32_t zero_point = 0;  // 0 if has_min
  int32_t has_min = 0;
  int64_t strip_bytes = 0;
  int32_t strips() const { return (rows + kStrip - 1) / kStrip; }
};

// Activations of some rows, in both forms: fp32 for float containers, int8 per group of 32 for integer ones.
// A value that holds more than half of its group's energy Σx² is an outlier: it would cost its neighbours their last
// bits, so it is multiplied in fp32 and counts as 0 in q, scale and sum (the mixed decomposition of LLM.int8(),
// Dettmers et al. 2022, with a threshold that knows only the group).
struct Input {
  const float* f32 = nullptr;       // [rows][cols]
  const int8_t* q = nullptr;        // [rows][cols]     round-to-nearest-even(x / scale), symmetric, |q| ≤ 127
  const float* scale = nullptr;     // [rows][cols/32]  max|x| / 127 (0 for an all-zero group)
  const int32_t* sum = nullptr;     // [rows][cols/16]  Σ q over each half of the group
  const int8_t* outlier = nullptr;  // [rows][cols/32]  its place in the group, 0 … 31; −1: none
  int32_t cols = 0;
};

// Some rows of activations, regrouped for the integer matrices of one kind (container and zero point): what a worker
// prepares once for all the strips that it multiplies.
inline constexpr int kPanelBytes = 256 * 1024;  // of int8; wider inputs have fewer rows in a block
inline constexpr int kColumnsAtOnce = 64;       // with outliers, whose weights wait in the first cache
struct Outlier {
  int32_t column;  // its place among those
  int32_t row;     // of the panel
  float x;
};
struct Panel {
  const float* x = nullptr;  // [rows][cols]
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t columns = 0;                // that have outliers
  alignas(64) int8_t q[kPanelBytes];  // the other arrays: see dots.inc
  alignas(64) float scale[kPanelBytes / kGroup];
  alignas(64) float shift[2 * kPanelBytes / kGroup];
  alignas(64) int32_t offset[2 * kPanelBytes / kGroup];
  int32_t column[kPanelBytes / kGroup];                 // ascending
  int32_t last[kPanelBytes / kGroup / kColumnsAtOnce];  // of the outliers that go with each kColumnsAtOnce columns
  Outlier outlier[kPanelBytes / kGroup];
};

// Bytes before the weights of a group of a strip: its scales and minima.
static inline int32_t header_bytes(Container c, bool has_min) {
  return kStrip * (has_float_scales(c) ? 4 : 2) * (has_halves(c) ? 2 : 1) * (has_min ? 2 : 1);
}
static inline int32_t group_bytes(Container c, bool has_min) {
  return header_bytes(c, has_min) + (is_wide(c) ? 512 : 256);
}

// How many rows a panel takes for products with w. AVX2 keeps activations for 8-bit weights in two parts.
static inline int32_t block_rows(const Matrix& w) {
  const int32_t fit = kPanelBytes / (w.cols * (is_wide(w.container) ? 2 : 1));
  return fit < kBlockRows ? (fit > 1 ? fit : 1) : kBlockRows;
}

// KV memory of one group of layers. A block is contiguous over layers: [block][layer][K | V].
// K of a (block, layer): [kv_head][head_dim][16 tokens]; V: [kv_head][16 tokens][head_dim].
// V starts at layer_bytes / 2, so that the runtime can pass kv_write a view of some heads only. For int8 the 16 scales
// (fp32, one per token) follow the values of each head: value = scale·q, scale = max|x| / 127 of the token's head.
enum class KvType : int32_t { F32 = 0, BF16 = 1, I8 = 2 };
struct KvCache {
  uint8_t* base = nullptr;
  int64_t block_bytes = 0;
  int64_t layer_bytes = 0;  // K and V of one layer in one block
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  KvType type = KvType::BF16;
};

// Bytes of K, or of V, of one head in one layer of a block.
static inline int64_t head_bytes(const KvCache& cache) {
  if (cache.type == KvType::I8) return (int64_t)kBlockTokens * (cache.head_dim + 4);
  return (int64_t)kBlockTokens * cache.head_dim * (cache.type == KvType::F32 ? 4 : 2);
}

// "fp32", "bf16", "int8"; raises std::invalid_argument for another name.
KvType kv_type_of(const char* name);

// Attention of a tile of consecutive query tokens of one sequence, for all query heads that share one KV head,
// over segments [segment_begin, segment_end). (Queries of several sequences may stand for them where the segments lie
// in the same blocks for all: with a position at the segments' end, each sees everything.)
// For each query and head, each segment s gives
//   m_s = max score,  l_s = Σ exp(score − m_s),  o_s = Σ exp(score − m_s)·V,
// and segments are merged in ascending order (the running result first). The merge is the same arithmetic
// whether this call does it (partial == nullptr: `out` gets the normalised result, all segments must be asked for)
// or attention_merge does it later from the partials.
struct AttentionItem {
  const KvCache* cache = nullptr;
  int32_t layer = 0;               // place inside the block
  const int32_t* table = nullptr;  // block table of the sequence
  const float* q = nullptr;        // first query token's row; head h at q + h·head_dim
  int64_t ldq = 0;                 // floats between rows
  int32_t position = 0;            // of the first query token; query i sees positions 0 … position + i
  int32_t queries = 0;
  int32_t kv_head = 0;
  int32_t group = 1;  // query heads per KV head; heads kv_head·group …
  float scale = 1.0f;
  int32_t segment_begin = 0;
  int32_t segment_end = 0;
  float* out = nullptr;  // first query token's row of a; head h at out + h·head_dim
  int64_t ldo = 0;
  float* partial = nullptr;  // [queries][group] times [segment_end − segment_begin][head_dim + 2] (o, m, l);
                             // (0, −inf, 0) where a query sees nothing of a segment: merging it changes nothing
  int64_t ldp = 0;           // floats between those of one query and head and those of the next
};

// How one row's token is chosen; see ChoiceRule in backends/base.py, whose steps these are.
struct Choice {
  const float* logits = nullptr;  // [vocab], raw; not modified
  float* work = nullptr;          // [vocab] scratch
  int32_t* counts = nullptr;      // [vocab] scratch, all zero before and after
  int32_t vocab = 0;
  const int32_t* history = nullptr;  // ids up to and including the row's position
  int32_t history_tokens = 0;
  int32_t prompt_tokens = 0;
  uint64_t seed = 0;
  float temperature = 0, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  float repetition = 1, frequency = 0, presence = 0;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  int32_t bias_count = 0;
  const int32_t* banned = nullptr;  // banned_early if still before min_tokens, else none
  int32_t banned_count = 0;
  const int32_t* mask = nullptr;  // bit words, or nullptr: everything is allowed
};

struct Kernels {
  const char* isa;

  void (*quantize)(const float* x, int32_t cols, int8_t* q, float* scale, int32_t* sum, int8_t* outlier);  // one row
  // Rows [row_begin, row_begin + rows) of `in`, rows ≤ block_rows(w), for products with matrices like w.
  void (*prepare)(const Matrix& w, const Input& in, int32_t row_begin, int32_t rows, Panel* panel);
  // out[r][o] = scale·(W·x_r + bias)[o]  or, with add, out[r][o] += that; for the panel's rows (out: of its first)
  // and the outputs of strips [strip_begin, strip_end). Padded rows are never written.
  void (*linear)(const Matrix& w, const Panel& panel, int32_t strip_begin, int32_t strip_end, float* out, int64_t ldo,
                 const float* bias, float scale, bool add);
  // out[r][o] = silu(gate·x_r)[o] · (up·x_r)[o]; gate and up may differ in kind.
  void (*gated)(const Matrix& gate, const Matrix& up, const Panel& gate_panel, const Panel& up_panel,
                int32_t strip_begin, int32_t strip_end, float* out, int64_t ldo);
  int64_t (*multiply_only)(int64_t rounds);                                       // for benchmarks: see dots.inc
  void (*dequantize_row)(const Matrix& w, int32_t row, float scale, float* out);  // out[cols] = scale·W[row]

  void (*rms_norm)(const float* x, const float* weight, float eps, float offset, int32_t cols, float* out);
  // cos, sin: [dim/2] of this token's position. Rotates all heads in place.
  void (*rope)(float* x, int32_t heads, int32_t head_dim, int32_t dim, bool interleaved, const float* cos,
               const float* sin);
  // K and V of one token, all KV heads ([kv_heads][head_dim] each), into `offset` (0…15) of `block`.
  void (*kv_write)(const KvCache& cache, int32_t layer, int32_t block, int32_t offset, const float* k, const float* v);
  void (*attention)(const AttentionItem& item);
  // One query and head: partials [segments][head_dim + 2] → out[head_dim].
  void (*attention_merge)(const float* partial, int32_t segments, int32_t head_dim, float* out);

  // The chosen id; −1 if a logit is NaN or every id is masked.
  int32_t (*choose)(const Choice& choice);
  // Raw log-softmax: returns ln p(token); fills the `top` most likely ids (ties: lowest id; −1
  // where there are fewer) and their values.
  float (*score)(const float* logits, int32_t vocab, int32_t token, int32_t top, int32_t* top_ids, float* top_values);
  // The random words behind the choice of the sequence's token `index`, of ids 0 … count − 1.
  void (*random_words)(uint64_t seed, uint32_t index, int32_t count, uint32_t* words);
};

const Kernels& kernels_scalar();
#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avxvnni();
const Kernels& kernels_avx512();
#elif defined(__aarch64__)
const Kernels& kernels_neon();
#endif
// Number `index` of the tables that this processor runs, from the least to the best; nullptr after the last.
const Kernels* runnable_kernels(int index);
// The best of them, or a lower one named by `limit` ("scalar"; on x86 "avx2", "avxvnni", "avx512"; on ARM "neon";
// "" = the limit set before, at first none). Raises std::invalid_argument for another name.
const Kernels& select_kernels(const char* limit);
void set_default_limit(const char* limit);  // not while kernels are being selected

}  // namespace octavo
