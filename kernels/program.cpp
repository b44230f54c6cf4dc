#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "pack.h"

namespace octavo {

void fail(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw std::invalid_argument(text);
}

namespace {

constexpr int32_t kLargest = 1 << 30;
const char* const kNames[kBuffers] = {"x", "h", "q", "k", "v", "a", "g"};

const char* name(Buffer b) { return kNames[static_cast<int>(b)]; }

Buffer buffer(int32_t id) {
  if (id < 0 || id >= kBuffers) fail("Buffer %d does not exist; there are 0 to %d.", id, kBuffers - 1);
  return static_cast<Buffer>(id);
}

void require_size(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail("%s is %lld; it must be %lld to %lld.", what, static_cast<long long>(value), static_cast<long long>(least),
         static_cast<long long>(most));
}

}  // namespace

int32_t Sizes::width(Buffer b) const {
  switch (b) {
    case Buffer::X:
    case Buffer::H: return hidden;
    case Buffer::Q:
    case Buffer::A: return heads * head_dim;
    case Buffer::K:
    case Buffer::V: return kv_heads * head_dim;
    case Buffer::G: break;
  }
  return ffn;
}

Program::Program(const uint8_t* weights, size_t bytes, const Sizes& sizes, RopeTable rope,
                 std::vector<int32_t> kv_layers)
    : weights_(weights), bytes_(bytes), sizes_(sizes), rope_(std::move(rope)), kv_layers_(std::move(kv_layers)) {
  if (reinterpret_cast<uintptr_t>(weights) % 64) fail("The weights are not 64-byte aligned; map the file from 0.");
  require_size("vocab", sizes.vocab, 1, kLargest);
  require_size("hidden", sizes.hidden, 1, 1 << 20);
  require_size("ffn", sizes.ffn, 1, 1 << 20);
  require_size("heads", sizes.heads, 1, 1 << 12);
  require_size("kv_heads", sizes.kv_heads, 1, sizes.heads);
  require_size("head_dim", sizes.head_dim, 1, 1 << 12);
  if (sizes.heads % sizes.kv_heads) fail("%d heads cannot share %d KV heads evenly.", sizes.heads, sizes.kv_heads);
  require_size("rope dim", rope_.dim, 2, sizes.head_dim);
  if (rope_.dim % 2) fail("rope dim is %d; it must be even.", rope_.dim);
  if (!(rope_.theta > 0) || !std::isfinite(rope_.theta)) fail("rope theta is %g; it must be above 0.", rope_.theta);
  if (!rope_.factors.empty() && rope_.factors.size() != static_cast<size_t>(rope_.dim / 2))
    fail("There are %zu rope factors; %d are needed.", rope_.factors.size(), rope_.dim / 2);
  for (double f : rope_.factors)
    if (!(f > 0) || !std::isfinite(f)) fail("A rope factor is %g; it must be above 0.", f);
  require_size("The number of KV groups", static_cast<int64_t>(kv_layers_.size()), 1, 64);
  for (int32_t n : kv_layers_) require_size("The number of layers in a KV group", n, 1, 1 << 12);
}

int32_t Program::matrix(int64_t offset, int64_t nbytes, int64_t rows, int64_t cols, const char* container,
                        int32_t zero_point, bool has_min) {
  require_size("The rows of a matrix", rows, 1, kLargest);
  require_size("The columns of a matrix", cols, 1, kMaxColumns);
  Matrix w;
  w.rows = static_cast<int32_t>(rows);
  w.cols = static_cast<int32_t>(cols);
  w.container = container_of(container);
  w.zero_point = zero_point;
  w.has_min = has_min;
  if (is_integer(w.container) && cols % kGroup)
    fail("A quantised matrix has %d columns, which %d does not divide.", w.cols, kGroup);
  if (!is_kind(w.container, zero_point, has_min))
    fail("A matrix in '%s' cannot have a zero point of %d %s minimum.", container, zero_point,
         has_min ? "and a" : "and no");
  require_size("zero_point", zero_point, 0, 255);
  w.strip_bytes = strip_bytes(w.container, has_min, cols);
  if (nbytes != packed_bytes(w))
    fail("A packed matrix of %d × %d has %lld bytes and should have %lld; convert the model again.", w.rows, w.cols,
         (long long)nbytes, (long long)packed_bytes(w));
  w.data = place(offset, nbytes);
  matrices_.push_back(w);
  return static_cast<int32_t>(matrices_.size()) - 1;
}

// The tensor's bytes, checked.
const uint8_t* Program::place(int64_t offset, int64_t nbytes) const {
  if (offset < 0 || offset % 64 || static_cast<uint64_t>(offset) > bytes_ ||
      static_cast<uint64_t>(nbytes) > bytes_ - static_cast<uint64_t>(offset))
    fail("A tensor of %lld bytes at offset %lld is not aligned, or not inside the %zu bytes of weights.",
         (long long)nbytes, (long long)offset, bytes_);
  return weights_ + offset;
}

int32_t Program::vector(int64_t offset, int64_t nbytes, int64_t size) {
  require_size("The size of a vector", size, 1, kLargest);
  if (nbytes != size * 4) fail("A vector of %lld floats has %lld bytes.", (long long)size, (long long)nbytes);
  vectors_.push_back({reinterpret_cast<const float*>(place(offset, nbytes)), size});
  return static_cast<int32_t>(vectors_.size()) - 1;
}

const Matrix& Program::matrix_at(int32_t id, Buffer source, int32_t rows, const char* what) {
  if (id < 0 || static_cast<size_t>(id) >= matrices_.size())
    fail("%s names matrix %d, which does not exist.", what, id);
  const Matrix& w = matrices_[static_cast<size_t>(id)];
  if (w.rows != rows || w.cols != sizes_.width(source))
    fail("%s has a matrix of %d × %d; %d × %d is needed.", what, w.rows, w.cols, rows, sizes_.width(source));
  if (is_integer(w.container)) quantized_[static_cast<int>(source)] = true;
  return w;
}

const float* Program::vector_at(int32_t id, int64_t size, const char* what) const {
  if (id < 0 || static_cast<size_t>(id) >= vectors_.size()) fail("%s names vector %d, which does not exist.", what, id);
  const Vector& v = vectors_[static_cast<size_t>(id)];
  if (v.size != size) fail("%s has a vector of %lld; %lld is needed.", what, (long long)v.size, (long long)size);
  return v.data;
}

Op& Program::append(OpKind kind, Buffer source) {
  if (!end_.empty()) fail("The program goes on after its final norm; only a head may follow.");
  if (body_.empty() && kind != OpKind::Embed) fail("The program does not start with an embedding.");
  if (rotating_ && kind != OpKind::Attention)
    fail("A rotation must stand right before attention to run on the native backend; use --backend reference.");
  Op op;
  op.kind = kind;
  op.layer = layer_;
  op.source = source;
  body_.push_back(std::move(op));
  return body_.back();
}

void Program::reads(Buffer b, const char* what) const {
  if (!written_[static_cast<int>(b)])
    fail(
        "%s reads '%s', which is not written before it in its layer; the native backend does not support this: "
        "use --backend reference.",
        what, name(b));
}

void Program::layer() {
  if (body_.empty()) fail("The program does not start with an embedding.");
  ++layer_;
  std::fill(written_, written_ + kBuffers, false);
  written_[static_cast<int>(Buffer::X)] = true;
}

void Program::embed(int32_t table, float scale) {
  if (!body_.empty()) fail("The embedding stands at the start of a program, once.");
  if (table < 0 || static_cast<size_t>(table) >= matrices_.size()) fail("embed names matrix %d.", table);
  const Matrix w = matrices_[static_cast<size_t>(table)];
  if (w.rows != sizes_.vocab || w.cols != sizes_.hidden)
    fail("embed has a table of %d × %d; %d × %d is needed.", w.rows, w.cols, sizes_.vocab, sizes_.hidden);
  Op& op = append(OpKind::Embed, Buffer::X);
  op.parts = {{w, nullptr, Buffer::X}};
  op.scale = scale;
  written_[static_cast<int>(Buffer::X)] = true;
}

void Program::norm(int32_t source, int32_t target, int32_t weight, float eps, float offset) {
  if (buffer(source) != Buffer::X || buffer(target) != Buffer::H)
    fail("norm goes from '%s' to '%s'; the native backend knows 'x' to 'h' only: use --backend reference.",
         name(buffer(source)), name(buffer(target)));
  reads(Buffer::X, "norm");
  const float* w = vector_at(weight, sizes_.hidden, "norm");
  if (!(eps >= 0) || !std::isfinite(eps)) fail("norm has eps %g; it must be 0 or more.", static_cast<double>(eps));
  Op& op = append(OpKind::Norm, Buffer::X);
  op.weight = w;
  op.eps = eps;
  op.offset = offset;
  written_[static_cast<int>(Buffer::H)] = true;
}

void Program::linear(int32_t source, const std::vector<int32_t>& targets, const std::vector<int32_t>& weights,
                     const std::vector<int32_t>& biases, bool add, float scale) {
  const Buffer from = buffer(source);
  if (from != Buffer::H && from != Buffer::A && from != Buffer::G)
    fail("linear reads '%s'; the native backend knows 'h', 'a' and 'g' only: use --backend reference.", name(from));
  reads(from, "linear");
  if (targets.empty() || targets.size() != weights.size() || (!biases.empty() && biases.size() != weights.size()))
    fail("linear has %zu targets, %zu weights and %zu biases.", targets.size(), weights.size(), biases.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Buffer to = buffer(targets[i]);
    if (to == Buffer::H || to == Buffer::A || to == Buffer::G || (to == Buffer::X && !add))
      fail("linear writes '%s'; the native backend writes 'q', 'k', 'v' or adds to 'x': use --backend reference.",
           name(to));
    for (size_t j = 0; j < i; ++j)
      if (targets[j] == targets[i]) fail("linear writes '%s' twice.", name(to));
    if (add) reads(to, "linear");
    const int32_t rows = sizes_.width(to);
    const float* bias = biases.empty() || biases[i] < 0 ? nullptr : vector_at(biases[i], rows, "linear's bias");
    parts.push_back({matrix_at(weights[i], from, rows, "linear"), bias, to});
  }
  Op& op = append(OpKind::Linear, from);
  for (const Part& part : parts) written_[static_cast<int>(part.target)] = true;
  op.parts = std::move(parts);
  op.add = add;
  op.scale = scale;
}

void Program::gated(int32_t source, int32_t target, int32_t gate, int32_t up) {
  if (buffer(source) != Buffer::H || buffer(target) != Buffer::G)
    fail("gated goes from '%s' to '%s'; the native backend knows 'h' to 'g' only: use --backend reference.",
         name(buffer(source)), name(buffer(target)));
  reads(Buffer::H, "gated");
  const Matrix& g = matrix_at(gate, Buffer::H, sizes_.ffn, "gated");
  const Matrix& u = matrix_at(up, Buffer::H, sizes_.ffn, "gated");
  append(OpKind::Gated, Buffer::H).parts = {{g, nullptr, Buffer::G}, {u, nullptr, Buffer::G}};
  written_[static_cast<int>(Buffer::G)] = true;
}

void Program::rope() {
  reads(Buffer::Q, "rope");
  reads(Buffer::K, "rope");
  if (rotating_) fail("q and k are rotated twice.");
  rotating_ = true;
}

void Program::attention(int32_t group, int32_t place, float scale) {
  if (layer_ < 0) fail("attention stands before the first layer.");
  for (Buffer b : {Buffer::Q, Buffer::K, Buffer::V}) reads(b, "attention");
  if (group < 0 || static_cast<size_t>(group) >= kv_layers_.size())
    fail("attention names KV group %d of %zu.", group, kv_layers_.size());
  require_size("The place of a layer in its KV group", place, 0, kv_layers_[static_cast<size_t>(group)] - 1);
  if (!std::isfinite(scale)) fail("attention has scale %g.", static_cast<double>(scale));
  for (const Op& op : body_)
    if (op.kind == OpKind::Attention && op.group == group && op.place == place)
      fail("Two attentions write place %d of KV group %d.", place, group);
  Op& op = append(OpKind::Attention, Buffer::Q);
  op.group = group;
  op.place = place;
  op.scale = scale;
  op.rotate = rotating_;
  rotating_ = false;
  std::fill(written_, written_ + kBuffers, false);
  written_[static_cast<int>(Buffer::X)] = written_[static_cast<int>(Buffer::A)] = true;
}

void Program::head(int32_t source, int32_t weight, float scale) {
  if (buffer(source) != Buffer::H || body_.empty() || body_.back().kind != OpKind::Norm)
    fail("The head must read 'h' right after the final norm to run on the native backend; use --backend reference.");
  const Matrix w = matrix_at(weight, Buffer::H, sizes_.vocab, "head");
  end_.push_back(std::move(body_.back()));
  body_.pop_back();
  Op op;
  op.kind = OpKind::Linear;
  op.source = Buffer::H;
  op.parts = {{w, nullptr, Buffer::X}};
  op.scale = scale;
  end_.push_back(std::move(op));
}

void Program::finish() const {
  if (end_.size() != 2) fail("The program does not end with a head.");
  const int64_t slice = static_cast<int64_t>(sizes_.heads / sizes_.kv_heads) * sizes_.head_dim;
  if (quantized(Buffer::A) && slice % kGroup)
    fail("%d query heads of %d for each KV head are not a multiple of %d values; use --backend reference.",
         sizes_.heads / sizes_.kv_heads, sizes_.head_dim, kGroup);
}

}  // namespace octavo
