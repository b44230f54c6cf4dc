// A layer program, lowered: operations over named buffers with their weights found in a mapping, every shape and
// range checked while it is built. Mirrors models/program.py. Knows no slot, no step and no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo.h"

namespace octavo {

enum class Buffer : int32_t { X = 0, H, Q, K, V, A, G };
inline constexpr int kBuffers = 7;
enum class OpKind : int32_t { Embed, Norm, Linear, Gated, Attention };  // the head is a Linear

// One matrix of an operation, and where its product goes.
struct Part {
  Matrix w;
  const float* bias = nullptr;
  Buffer target = Buffer::X;
};

struct Op {
  OpKind kind = OpKind::Embed;
  int32_t layer = -1;  // −1 before the first layer
  Buffer source = Buffer::X;
  std::vector<Part> parts;        // Embed: one; Linear: each; Gated: gate, up
  const float* weight = nullptr;  // Norm
  float eps = 0, offset = 0;
  float scale = 1;
  bool add = false;
  int32_t group = 0, place = 0;  // Attention: the KV group, and the layer's place inside its blocks
  bool rotate = false;           // Attention: q and k are rotated first
};

struct Sizes {
  int32_t vocab = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int32_t width(Buffer b) const;
};

struct RopeTable {
  double theta = 0;
  int32_t dim = 0;
  bool interleaved = false;
  std::vector<double> factors;  // dim/2, or none
};

// Built by calls in program order; each raises std::invalid_argument with one sentence. What is supported is what
// the runtime's two ways of running allow (step.h): h, k, v and g do not outlive their layer's attention, rotation
// stands right before attention, and the program ends with Norm and Head.
class Program {
 public:
  // `weights` must stay mapped as long as the program lives, and be 64-byte aligned. `kv_layers`: layers per group.
  Program(const uint8_t* weights, size_t bytes, const Sizes& sizes, RopeTable rope, std::vector<int32_t> kv_layers);

  int32_t matrix(int64_t offset, int64_t nbytes, int64_t rows, int64_t cols, const char* container, int32_t zero_point,
                 bool has_min);
  int32_t vector(int64_t offset, int64_t nbytes, int64_t size);

  void layer();  // what follows belongs to the next layer
  void embed(int32_t table, float scale);
  void norm(int32_t source, int32_t target, int32_t weight, float eps, float offset);
  void linear(int32_t source, const std::vector<int32_t>& targets, const std::vector<int32_t>& weights,
              const std::vector<int32_t>& biases, bool add, float scale);  // biases: −1 where there is none
  void gated(int32_t source, int32_t target, int32_t gate, int32_t up);
  void rope();
  void attention(int32_t group, int32_t place, float scale);
  void head(int32_t source, int32_t weight, float scale);
  void finish() const;  // checks the whole

  const Sizes& sizes() const { return sizes_; }
  const RopeTable& rope_table() const { return rope_; }
  const std::vector<int32_t>& kv_layers() const { return kv_layers_; }
  int32_t layers() const { return layer_ + 1; }
  // After finish(): the operations before the final norm; then that norm and the head.
  const std::vector<Op>& body() const { return body_; }
  const Op& final_norm() const { return end_[0]; }
  const Op& head() const { return end_[1]; }
  bool quantized(Buffer b) const { return quantized_[static_cast<int>(b)]; }  // read by an integer matrix

 private:
  struct Vector {
    const float* data;
    int64_t size;
  };
  const Matrix& matrix_at(int32_t id, Buffer source, int32_t rows, const char* what);
  const float* vector_at(int32_t id, int64_t size, const char* what) const;
  const uint8_t* place(int64_t offset, int64_t nbytes) const;
  Op& append(OpKind kind, Buffer source);
  void reads(Buffer b, const char* what) const;

  const uint8_t* weights_;
  size_t bytes_;
  Sizes sizes_;
  RopeTable rope_;
  std::vector<int32_t> kv_layers_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  std::vector<Op> body_, end_;
  int32_t layer_ = -1;
  bool rotating_ = false;
  bool written_[kBuffers] = {};
  bool quantized_[kBuffers] = {};
};

// Throws std::invalid_argument with a printf-formatted sentence.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace octavo
