// The runtime's memory and its tables, all allocated when it is made.
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "step_inner.h"

namespace octavo {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kPartialBytes = int64_t{64} << 20;

// Room for the parts of all sequences at their longest, but no more than kPartialBytes, where some stay whole; and in
// any case for those of a few, which alone could not keep the workers busy.
int64_t partials(const Sizes& sizes, const StepLimits& limits, int threads) {
  const int64_t segments = ceil_div(limits.max_model_len, kSegment), all = segments * limits.max_slots;
  const int64_t few = segments * (4 * threads / sizes.kv_heads + 1);
  const int64_t bytes = int64_t{sizes.heads} * (sizes.head_dim + 2) * static_cast<int64_t>(sizeof(float));
  return std::min(all, std::max(few, kPartialBytes / bytes));
}

const StepLimits& checked(const StepLimits& limits) {
  require("num_blocks", limits.num_blocks, 1, 1 << 30);
  require("max_slots", limits.max_slots, 1, 1 << 16);
  require("max_step_tokens", limits.max_step_tokens, 1, 1 << 20);
  require("max_model_len", limits.max_model_len, 1, 1 << 24);
  return limits;
}

}  // namespace

Mapping::Mapping(size_t bytes) : bytes_((std::max<size_t>(bytes, 1) + kHugePage - 1) / kHugePage * kHugePage) {
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(p);
  madvise(p, bytes_, MADV_HUGEPAGE);  // a wish; small pages do as well
}

Mapping::~Mapping() { munmap(data_, bytes_); }

// Hands out 64-byte aligned pieces of one allocation; without memory it only counts.
class Runtime::Arena {
 public:
  explicit Arena(uint8_t* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  Area area(int64_t rows, int32_t width, bool quantized) {
    Area a;
    a.width = width;
    a.f32 = take<float>(rows * width);
    if (quantized) {
      a.q = take<int8_t>(rows * width);
      a.scale = take<float>(rows * (width / kGroup));
      a.sum = take<int32_t>(rows * 2 * (width / kGroup));
      a.outlier = take<int8_t>(rows * (width / kGroup));
    }
    return a;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

KvType kv_type_of(const char* name) {
  for (const auto& [known, type] : {std::pair{"fp32", KvType::F32}, {"bf16", KvType::BF16}, {"int8", KvType::I8}})
    if (std::strcmp(name, known) == 0) return type;
  fail("kv is '%s'; it must be fp32, bf16 or int8.", name);
}

Runtime::Area Runtime::Area::from(int64_t row) const {
  Area a = *this;
  if (f32) a.f32 += row * width;
  if (q) {
    a.q += row * width;
    a.scale += row * (width / kGroup);
    a.sum += row * 2 * (width / kGroup);
    a.outlier += row * (width / kGroup);
  }
  return a;
}

Runtime::Runtime(const Program& program, const StepLimits& limits, KvType kv_type, std::shared_ptr<Pool> pool,
                 const Kernels& kernels)
    : kernels_(kernels),
      sizes_(program.sizes()),
      limits_(checked(limits)),
      threads_(pool->threads()),
      group_size_(sizes_.heads / sizes_.kv_heads),
      max_blocks_(ceil_div(limits.max_model_len, kBlockTokens)),
      part_tokens_(std::max(1, kAttentionRows / group_size_)),
      max_partials_(partials(sizes_, limits, threads_)),
      rope_(program.rope_table()),
      body_((program.finish(), program.body())),
      final_norm_(program.final_norm()),
      head_(program.head()),
      shared_pool_(std::move(pool)),
      pool_(*shared_pool_) {
  for (int b = 0; b < kBuffers; ++b) quantized_[b] = program.quantized(static_cast<Buffer>(b));

  // A barrier stands before an operation that reads what others wrote since the last one, or writes what they may
  // still read. h is each worker's own.
  bool written[kBuffers] = {}, read[kBuffers] = {};
  for (const Op& op : body_) {
    std::vector<Buffer> reads, writes;
    if (op.kind == OpKind::Attention)
      reads = {Buffer::Q, Buffer::K, Buffer::V}, writes = {Buffer::A};
    else if (op.kind == OpKind::Norm)
      reads = {Buffer::X};
    else
      for (const Part& part : op.parts) writes.push_back(part.target);
    if ((op.kind == OpKind::Linear || op.kind == OpKind::Gated) && op.source != Buffer::H) reads.push_back(op.source);
    bool barrier = false;
    for (Buffer b : reads) barrier |= written[static_cast<int>(b)];
    for (Buffer b : writes) barrier |= written[static_cast<int>(b)] || read[static_cast<int>(b)];
    if (barrier) {
      std::fill(written, written + kBuffers, false);
      std::fill(read, read + kBuffers, false);
    }
    for (Buffer b : reads) read[static_cast<int>(b)] = true;
    for (Buffer b : writes) written[static_cast<int>(b)] = true;
    barrier_before_.push_back(barrier);
  }

  for (int32_t layers : program.kv_layers()) {
    KvCache cache;
    cache.layers = layers;
    cache.kv_heads = sizes_.kv_heads;
    cache.head_dim = sizes_.head_dim;
    cache.type = kv_type;
    cache.layer_bytes = 2 * sizes_.kv_heads * head_bytes(cache);
    cache.block_bytes = layers * cache.layer_bytes;
    if (cache.block_bytes > (int64_t{1} << 46) / limits.num_blocks)
      fail("num_blocks is %d; blocks of %lld bytes do not fit an address space.", limits.num_blocks,
           (long long)cache.block_bytes);
    kv_memory_.push_back(std::make_unique<Mapping>(static_cast<size_t>(cache.block_bytes * limits.num_blocks)));
    cache.base = kv_memory_.back()->data();
    caches_.push_back(cache);
  }

  workers_.resize(static_cast<size_t>(threads_));
  Arena count(nullptr);
  allocate(count);
  memory_ = std::make_unique<Mapping>(count.used());
  Arena arena(memory_->data());
  allocate(arena);

  // angle = position · theta^(−2i / dim) / factor, all in double.
  const int32_t half = rope_.dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double factor = rope_.factors.empty() ? 1.0 : rope_.factors[static_cast<size_t>(i)];
    const double frequency = std::pow(rope_.theta, -2.0 * i / rope_.dim) / factor;
    for (int64_t position = 0; position < limits.max_model_len; ++position) {
      cos_[position * half + i] = static_cast<float>(std::cos(static_cast<double>(position) * frequency));
      sin_[position * half + i] = static_cast<float>(std::sin(static_cast<double>(position) * frequency));
    }
  }

  slots_.resize(static_cast<size_t>(limits.max_slots));
  for (Slot& slot : slots_) slot.blocks.resize(caches_.size());
  const size_t most_samples = static_cast<size_t>(limits.max_step_tokens) + static_cast<size_t>(limits.max_slots);
  row_first_.reserve(slots_.size());
  samples_.reserve(most_samples);
  sample_tokens_.reserve(most_samples);
  logit_samples_.reserve(most_samples);
  pooled_.reserve(slots_.size());
  answers_.reserve(most_samples);
  previous_.reserve(most_samples);
  // Each part fills at least one token's place for one segment.
  items_.reserve(static_cast<size_t>((limits.max_step_tokens + max_partials_) * sizes_.kv_heads));
  splits_.reserve(slots_.size());
  order_.reserve(slots_.size());
  splits_before_.reserve(slots_.size() + 1);
  split_of_row_.reserve(slots_.size());
  runs_.reserve(slots_.size());  // each loses a row, or divides
  joined_ = std::make_unique<Counter[]>(slots_.size() * static_cast<size_t>(sizes_.kv_heads));
}

void Runtime::allocate(Arena& arena) {
  const int64_t step = limits_.max_step_tokens, slots = limits_.max_slots;
  const int64_t groups = static_cast<int64_t>(caches_.size());
  histories_ = arena.take<int32_t>(slots * limits_.max_model_len);
  tables_ = arena.take<int32_t>(groups * slots * max_blocks_);
  cos_ = arena.take<float>(int64_t{limits_.max_model_len} * (rope_.dim / 2));
  sin_ = arena.take<float>(int64_t{limits_.max_model_len} * (rope_.dim / 2));
  row_of_slot_ = arena.take<int64_t>(slots);
  writer_ = arena.take<int64_t>(groups * limits_.num_blocks);
  ids_ = arena.take<int32_t>(step);
  positions_ = arena.take<int32_t>(step);
  token_blocks_ = arena.take<int32_t>(groups * step);
  for (Buffer b : {Buffer::X, Buffer::Q, Buffer::A})
    shared_[b] = arena.area(step, sizes_.width(b), b == Buffer::A && quantized_[static_cast<int>(b)]);
  const int64_t few = std::min<int64_t>(step, kFewRows);
  for (Buffer b : {Buffer::K, Buffer::V, Buffer::G})
    shared_[b] = arena.area(few, sizes_.width(b), b == Buffer::G && quantized_[static_cast<int>(b)]);
  logits_ = arena.take<float>(int64_t{kHeadRows} * sizes_.vocab);
  sums_ = arena.take<double>(slots * sizes_.hidden);
  vectors_ = arena.take<float>(slots * sizes_.hidden);
  partials_ = arena.take<float>(max_partials_ * sizes_.heads * (sizes_.head_dim + 2));
  for (Worker& own : workers_) {
    for (Buffer b : {Buffer::H, Buffer::K, Buffer::V, Buffer::G})
      own.own[b] = arena.area(kOwnRows, sizes_.width(b), quantized_[static_cast<int>(b)]);
    for (Panel*& panel : own.panels) panel = arena.take<Panel>(1);
    own.queries = arena.take<float>(int64_t{part_tokens_} * sizes_.width(Buffer::Q));
    own.work = arena.take<float>(sizes_.vocab);
    own.counts = arena.take<int32_t>(sizes_.vocab);
  }
}

int64_t Runtime::block_bytes() const {
  int64_t bytes = 0;
  for (const KvCache& cache : caches_) bytes += cache.block_bytes;
  return bytes;
}

}  // namespace octavo
