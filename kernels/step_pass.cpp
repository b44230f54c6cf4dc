// The layers, by strips or by rows of tokens.
#include <cstring>

#include "step_inner.h"

namespace octavo {

namespace {

// Whether one panel serves both.
bool alike(const Matrix& a, const Matrix& b) {
  return a.container == b.container && a.zero_point == b.zero_point && a.cols == b.cols;
}

}  // namespace

const char* Runtime::stage_name(int stage) {
  static const char* const names[kStages] = {"embed", "norm", "qkv",  "rope",   "attention", "out",
                                             "gated", "down", "head", "choose", "wait"};
  return names[stage];
}

void Runtime::take_times(double* seconds) {
  std::copy(times_, times_ + kStages, seconds);
  std::fill(times_, times_ + kStages, 0.0);
}

void Runtime::wait(int worker) {
  if (worker == 0) ++barriers_;
  pool_.barrier(worker);
}

int64_t Runtime::weight_bytes() const {
  int64_t bytes = 0;
  for (const Worker& own : workers_) bytes += own.weight_bytes;
  return bytes;
}

int64_t Runtime::kv_bytes() const {
  int64_t bytes = 0;
  for (const Worker& own : workers_) bytes += own.kv_bytes;
  return bytes;
}

void Runtime::reach(int32_t layer) {
  const uint64_t step = progress_->load(std::memory_order_relaxed) >> 16;
  progress_->store(step << 16 | static_cast<uint64_t>(std::max(layer, 0)), std::memory_order_relaxed);
}

void Runtime::run_strips(int worker) {
  Worker& own = workers_[static_cast<size_t>(worker)];
  Claims claims(pool_);
  View view = shared_;
  view[Buffer::H] = own.own[Buffer::H];
  Lap lap(*this, worker);
  for (size_t i = 0; i < body_.size(); ++i) {
    const Op& op = body_[i];
    if (barrier_before_[i]) {
      wait(worker);
      claims.restart();
      lap(kWait);
    }
    if (pool_.behind(worker)) continue;
    switch (op.kind) {
      case OpKind::Embed: {
        for (int32_t t; (t = claims.take(tokens_)) >= 0;) embed(op, view, t, t, 1);
        lap(kEmbed);
        break;
      }
      case OpKind::Norm:
        if (worker == 0) reach(op.layer);
        for (int32_t r = 0; r < tokens_; ++r)
          norm(op, view[Buffer::X].f32 + int64_t{r} * sizes_.hidden, view[Buffer::H], r);
        lap(kNorm);
        break;
      case OpKind::Linear:
      case OpKind::Gated:
        multiply(op, view, tokens_, own, &claims);
        lap(op.kind == OpKind::Gated ? kGated : op.source == Buffer::H ? kQkv : op.source == Buffer::A ? kOut : kDown);
        break;
      case OpKind::Attention:
        attend(op, own, claims, true);
        lap(kAttention);
        break;
    }
  }
}

void Runtime::run_rows(int worker) {
  Lap lap(*this, worker);
  for (size_t begin = 0; begin < body_.size();) {
    size_t end = begin;
    while (end < body_.size() && body_[end].kind != OpKind::Attention) ++end;
    if (worker == 0) reach(body_[begin].layer);
    while (!pool_.behind(worker)) {
      const int64_t first = pool_.claim(tile_rows_);
      if (first >= tokens_) break;
      run_tile(begin, end, static_cast<int32_t>(first), std::min(tile_rows_, tokens_ - static_cast<int32_t>(first)),
               workers_[static_cast<size_t>(worker)], lap);
    }
    if (end == body_.size()) return;
    wait(worker);
    lap(kWait);
    if (!pool_.behind(worker)) {
      Claims claims(pool_);
      attend(body_[end], workers_[static_cast<size_t>(worker)], claims, false);
    }
    lap(kAttention);
    wait(worker);
    lap(kWait);
    begin = end + 1;
  }
}

// Operations [begin, end), and the writing of k and v for the attention at `end`, for some tokens.
void Runtime::run_tile(size_t begin, size_t end, int32_t first, int32_t count, Worker& own, Lap& lap) {
  View view = own.own;
  for (Buffer b : {Buffer::X, Buffer::Q, Buffer::A}) view[b] = shared_[b].from(first);
  for (size_t i = begin; i < end; ++i) {
    const Op& op = body_[i];
    switch (op.kind) {
      case OpKind::Embed:
        embed(op, view, first, 0, count);
        lap(kEmbed);
        break;
      case OpKind::Norm:
        for (int32_t r = 0; r < count; ++r)
          norm(op, view[Buffer::X].f32 + int64_t{r} * sizes_.hidden, view[Buffer::H], r);
        lap(kNorm);
        break;
      case OpKind::Linear:
      case OpKind::Gated:
        multiply(op, view, count, own, nullptr);
        lap(op.kind == OpKind::Gated ? kGated : op.source == Buffer::H ? kQkv : op.source == Buffer::A ? kOut : kDown);
        break;
      case OpKind::Attention: break;
    }
  }
  if (end == body_.size()) return;
  const Op& op = body_[end];
  const Area &q = view[Buffer::Q], &k = view[Buffer::K], &v = view[Buffer::V];
  for (int32_t r = 0; r < count; ++r) {
    if (op.rotate) rotate(q.f32 + int64_t{r} * q.width, sizes_.heads, first + r);
    store(op, first + r, 0, sizes_.kv_heads, k.f32 + int64_t{r} * k.width, v.f32 + int64_t{r} * v.width);
  }
  lap(kRope);
}

// Tokens first … of the step into rows row … of x.
void Runtime::embed(const Op& op, const View& view, int32_t first, int32_t row, int32_t rows) const {
  const Area& x = view[Buffer::X];
  for (int32_t r = 0; r < rows; ++r)
    kernels_.dequantize_row(op.parts[0].w, ids_[first + r], op.scale, x.f32 + int64_t{row + r} * x.width);
}

void Runtime::norm(const Op& op, const float* x, const Area& h, int64_t row) const {
  kernels_.rms_norm(x, op.weight, op.eps, op.offset, h.width, h.f32 + row * h.width);
  if (h.q) quantize(h, row, 0, h.width);
}

void Runtime::quantize(const Area& area, int64_t row, int32_t begin, int32_t end) const {
  const int64_t group = row * (area.width / kGroup) + begin / kGroup;
  kernels_.quantize(area.f32 + row * area.width + begin, end - begin, area.q + row * area.width + begin,
                    area.scale + group, area.sum + 2 * group, area.outlier + group);
}

// A Linear or Gated for rows 0 … of the view: all of it, or with `claims` what this worker gets of it. Its pieces are
// pairs of strips, so that what a worker wrote of g is whole groups, which it quantises at once.
void Runtime::multiply(const Op& op, const View& view, int32_t rows, Worker& own, Claims* claims) const {
  const Input in = view[op.source].input();
  const bool pair = op.kind == OpKind::Gated;
  int32_t most = kBlockRows, pairs = 0;
  for (const Part& part : op.parts) {
    most = std::min(most, block_rows(part.w));
    pairs += ceil_div(part.w.strips(), 2);
  }
  const int32_t piece = claims ? std::max(1, (pair ? pairs / 2 : pairs) / (kPieces * threads_)) : pairs;
  const int32_t blocks = ceil_div(rows, most), block = ceil_div(rows, blocks);
  for (int32_t row = 0; row < rows; row += block) {
    const int32_t count = std::min(block, rows - row);
    const Matrix* prepared = nullptr;
    for (size_t i = 0; i < (pair ? 1 : op.parts.size()); ++i) {
      const Part& part = op.parts[i];
      const int32_t pieces = ceil_div(ceil_div(part.w.strips(), 2), piece);
      const Area out = view[part.target].from(row);
      for (int32_t at = 0; claims ? (at = claims->take(pieces)) >= 0 : at < pieces; ++at) {
        const int32_t low = 2 * piece * at, high = std::min(low + 2 * piece, part.w.strips());
        if (!prepared || !alike(*prepared, part.w)) kernels_.prepare(part.w, in, row, count, own.panels[0]);
        if (!pair) {
          kernels_.linear(part.w, *own.panels[0], low, high, out.f32, out.width, part.bias, op.scale, op.add);
        } else {
          const Matrix& up = op.parts[1].w;
          const bool one = alike(part.w, up);
          if (!prepared && !one) kernels_.prepare(up, in, row, count, own.panels[1]);
          kernels_.gated(part.w, up, *own.panels[0], *own.panels[one ? 0 : 1], low, high, out.f32, out.width);
          if (out.q)
            for (int32_t r = 0; r < count; ++r) quantize(out, r, low * kStrip, std::min(high * kStrip, out.width));
        }
        own.weight_bytes += (high - low) * (part.w.strip_bytes + (pair ? op.parts[1].w.strip_bytes : 0));
        prepared = &part.w;
      }
    }
  }
}

void Runtime::rotate(float* x, int32_t heads, int32_t token) const {
  const int64_t at = int64_t{positions_[token]} * (rope_.dim / 2);
  kernels_.rope(x, heads, sizes_.head_dim, rope_.dim, rope_.interleaved, cos_ + at, sin_ + at);
}

// Rotates k (in place) and writes k and v of one token to the cache, for some KV heads. A cache of some heads is a
// view of the whole one, since V starts in the middle of a layer.
void Runtime::store(const Op& op, int32_t token, int32_t head_begin, int32_t head_end, float* k, const float* v) const {
  KvCache cache = caches_[static_cast<size_t>(op.group)];
  const int64_t skip = int64_t{head_begin} * sizes_.head_dim;
  if (op.rotate) rotate(k + skip, head_end - head_begin, token);
  cache.base += head_begin * head_bytes(cache);
  cache.kv_heads = head_end - head_begin;
  kernels_.kv_write(cache, op.place, token_blocks(op.group)[token], positions_[token] % kBlockTokens, k + skip,
                    v + skip);
}

void Runtime::attend(const Op& op, Worker& own, Claims& claims, bool fused) {
  const int32_t items = static_cast<int32_t>(items_.size());
  for (int32_t i; (i = claims.take(items)) >= 0;) attend_item(op, items_[static_cast<size_t>(i)], own, fused);
}

// `fused`: q and k are not rotated yet, and k and v not written. The item with the newest position writes.
void Runtime::attend_item(const Op& op, const Item& item, Worker& own, bool fused) {
  const Area &q = shared_[Buffer::Q], &k = shared_[Buffer::K], &v = shared_[Buffer::V], &a = shared_[Buffer::A];
  const int32_t end = item.first + item.count, slice = group_size_ * sizes_.head_dim;
  if (fused && item.segment_end == last_segment(end - 1))
    for (int32_t t = item.first; t < end; ++t)
      store(op, t, item.head_begin, item.head_end, k.f32 + int64_t{t} * k.width, v.f32 + int64_t{t} * v.width);
  AttentionItem call;
  call.cache = &caches_[static_cast<size_t>(op.group)];
  call.layer = op.place;
  call.table = table(item.slot, op.group);
  call.position = positions_[item.first];
  call.queries = item.count;
  call.group = group_size_;
  call.scale = op.scale;
  call.segment_begin = item.segment_begin;
  call.segment_end = item.segment_end;
  if (item.split_begin < item.split_end) {
    attend_part(op, item, call, own, fused);
  } else {
    if (fused && op.rotate)
      for (int32_t t = item.first; t < end; ++t)
        rotate(q.f32 + int64_t{t} * q.width + item.head_begin * slice, (item.head_end - item.head_begin) * group_size_,
               t);
    call.q = q.f32 + int64_t{item.first} * q.width;
    call.ldq = q.width;
    call.out = a.f32 + int64_t{item.first} * a.width;
    call.ldo = a.width;
    for (call.kv_head = item.head_begin; call.kv_head < item.head_end; ++call.kv_head) kernels_.attention(call);
    for (int32_t t = item.first; t < end && a.q; ++t) quantize(a, t, item.head_begin * slice, item.head_end * slice);
  }
  own.kv_bytes += (item.head_end - item.head_begin) * read_bytes(call);
}

// Bytes of K and V of one head that `call` reads: all that its last query sees, once for every kAttentionRows.
int64_t Runtime::read_bytes(const AttentionItem& call) const {
  const int32_t rows = call.queries * group_size_;
  int64_t blocks = 0;
  for (int32_t end = std::min(kAttentionRows, rows); end; end = end < rows ? std::min(end + kAttentionRows, rows) : 0) {
    const int32_t seen = std::min(call.position + (end - 1) / group_size_ + 1, call.segment_end * kSegment);
    blocks += std::max(0, ceil_div(seen - call.segment_begin * kSegment, kBlockTokens));
  }
  return 2 * blocks * head_bytes(*call.cache);
}

}  // namespace octavo
