#include "step.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>

namespace octavo {

namespace {

constexpr int32_t kFewRows = 48;   // up to here each weight is read once, by one worker
constexpr int32_t kTileRows = 64;  // of a tile that one worker carries, at most
constexpr int32_t kHeadRows = 32;  // whose logits are in memory at once
constexpr int32_t kOwnRows = std::max({kFewRows, kTileRows, kHeadRows});
constexpr int32_t kAttentionRows = 96;  // query tokens × heads of an item of a prompt; what attention.inc takes at once
constexpr int32_t kMostTop = 1024;      // log-probabilities of one position
constexpr int32_t kPieces = 6;          // of a matrix, per worker: few enough that claiming them costs nothing
constexpr size_t kHugePage = size_t{2} << 20;

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Whether one panel serves both.
bool alike(const Matrix& a, const Matrix& b) {
  return a.container == b.container && a.zero_point == b.zero_point && a.cols == b.cols;
}

int32_t share(int32_t all, int worker, int workers) {
  return static_cast<int32_t>(static_cast<int64_t>(all) * worker / workers);
}

void require(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail("%s is %lld; it must be %lld to %lld.", what, static_cast<long long>(value), static_cast<long long>(least),
         static_cast<long long>(most));
}

int checked(int threads) {
  require("threads", threads, 1, 1024);
  return threads;
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
      a.sum = take<int32_t>(rows * (width / kGroup));
      a.outlier = take<int8_t>(rows * (width / kGroup));
    }
    return a;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

// Adds the time since the last call to a stage, on worker 0 and only when asked for.
class Runtime::Lap {
 public:
  Lap(Runtime& runtime, int worker) : times_(runtime.measuring_ && worker == 0 ? runtime.times_ : nullptr) {
    if (times_) last_ = Clock::now();
  }
  void operator()(Stage stage) {
    if (!times_) return;
    const Clock::time_point now = Clock::now();
    times_[stage] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* times_;
  Clock::time_point last_;
};

const char* Runtime::stage_name(int stage) {
  static const char* const names[kStages] = {"embed", "norm", "qkv",  "rope",   "attention", "out",
                                             "gated", "down", "head", "choose", "wait"};
  return names[stage];
}

void Runtime::take_times(double* seconds) {
  std::copy(times_, times_ + kStages, seconds);
  std::fill(times_, times_ + kStages, 0.0);
}

Runtime::Area Runtime::Area::from(int64_t row) const {
  Area a = *this;
  if (f32) a.f32 += row * width;
  if (q) {
    a.q += row * width;
    a.scale += row * (width / kGroup);
    a.sum += row * (width / kGroup);
    a.outlier += row * (width / kGroup);
  }
  return a;
}

Runtime::Runtime(const Program& program, const StepLimits& limits, KvType kv_type, int threads, const Kernels& kernels)
    : kernels_(kernels),
      sizes_(program.sizes()),
      limits_(checked(limits)),
      threads_(checked(threads)),
      group_size_(sizes_.heads / sizes_.kv_heads),
      max_blocks_(ceil_div(limits.max_model_len, kBlockTokens)),
      max_segments_(ceil_div(limits.max_model_len, kSegment)),
      max_splits_(4 * threads + sizes_.kv_heads),
      rope_(program.rope_table()),
      body_((program.finish(), program.body())),
      final_norm_(program.final_norm()),
      head_(program.head()),
      pool_(threads) {
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
    const int64_t element = kv_type == KvType::F32 ? 4 : 2;
    cache.layers = layers;
    cache.kv_heads = sizes_.kv_heads;
    cache.head_dim = sizes_.head_dim;
    cache.type = kv_type;
    cache.layer_bytes = 2 * element * sizes_.kv_heads * sizes_.head_dim * kBlockTokens;
    cache.block_bytes = layers * cache.layer_bytes;
    if (cache.block_bytes > (int64_t{1} << 46) / limits.num_blocks)
      fail("num_blocks is %d; blocks of %lld bytes do not fit an address space.", limits.num_blocks,
           (long long)cache.block_bytes);
    kv_memory_.push_back(std::make_unique<Mapping>(static_cast<size_t>(cache.block_bytes * limits.num_blocks)));
    cache.base = kv_memory_.back()->data();
    caches_.push_back(cache);
  }

  workers_.resize(static_cast<size_t>(threads));
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
  answers_.reserve(most_samples);
  previous_.reserve(most_samples);
  items_.reserve(static_cast<size_t>(limits.max_step_tokens + max_splits_ * max_segments_) *
                 static_cast<size_t>(sizes_.kv_heads));
  splits_.reserve(static_cast<size_t>(max_splits_));
  joined_ = std::make_unique<Counter[]>(static_cast<size_t>(max_splits_));
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
  partials_ = arena.take<float>(int64_t{max_splits_} * group_size_ * max_segments_ * (sizes_.head_dim + 2));
  for (Worker& own : workers_) {
    for (Buffer b : {Buffer::H, Buffer::K, Buffer::V, Buffer::G})
      own.own[b] = arena.area(kOwnRows, sizes_.width(b), quantized_[static_cast<int>(b)]);
    for (Panel*& panel : own.panels) panel = arena.take<Panel>(1);
    own.rotated = arena.take<float>(sizes_.width(Buffer::Q));
    own.pieces = arena.take<float>(int64_t{max_segments_} * (sizes_.head_dim + 2));
    own.work = arena.take<float>(sizes_.vocab);
    own.counts = arena.take<int32_t>(sizes_.vocab);
  }
}

int64_t Runtime::block_bytes() const {
  int64_t bytes = 0;
  for (const KvCache& cache : caches_) bytes += cache.block_bytes;
  return bytes;
}

// ---- The plan enters ----

void Runtime::launch(const StepPlan& plan) {
  if (sample_due_)
    fail("Step %lld is launched before the samples of the one before were chosen.", (long long)plan.step);
  previous_.clear();
  for (const Answer& a : answers_) previous_.push_back(a.token);
  ++serial_;
  tokens_ = 0;
  row_first_.clear();
  samples_.clear();
  sample_tokens_.clear();
  answers_.clear();
  top_ids_.clear();
  top_values_.clear();

  for (const StepPlan::Open& each : plan.opens) open(plan, each);
  for (const StepPlan::Copy& each : plan.copies) copy(each);
  for (size_t row = 0; row < plan.rows.size(); ++row) advance(plan, row);
  for (const StepPlan::Sample& each : plan.samples) accept(plan, each);
  top_values_.resize(top_ids_.size());
  sample_due_ = !samples_.empty();
  barriers_ = 0;
  if (!tokens_) return;

  make_items(plan);
  progress_.store(static_cast<uint64_t>(plan.step) << 16, std::memory_order_relaxed);
  if (by_rows_)
    pool_.run([this](int worker, Pool&) { run_rows(worker); });
  else
    pool_.run([this](int worker, Pool&) { run_strips(worker); });
}

void Runtime::open(const StepPlan& plan, const StepPlan::Open& open) {
  require("opens: slot", open.slot, 0, limits_.max_slots - 1);
  Slot& slot = slots_[static_cast<size_t>(open.slot)];
  slot.tokens = -1;
  std::fill(slot.blocks.begin(), slot.blocks.end(), 0);
  require("opens: the length of history", open.history.count, 0, limits_.max_model_len);
  int32_t* to = history(open.slot);
  for (int32_t i = 0; i < open.history.count; ++i) {
    const int32_t id = plan.ids[static_cast<size_t>(open.history.begin + i)];
    require("opens: a token id of history", id, 0, sizes_.vocab - 1);
    to[i] = id;
  }
  set_tables(plan, open.slot, open.tables, nullptr);

  const Rule& rule = plan.rules[static_cast<size_t>(&open - plan.opens.data())];
  const auto real = [](const char* what, float value, float least, float most) {
    if (!(value >= least && value <= most))
      fail("rule: %s is %g; it must be %g to %g.", what, static_cast<double>(value), static_cast<double>(least),
           static_cast<double>(most));
  };
  constexpr float kFinite = 3.4e38f;
  require("rule: prompt_tokens", rule.prompt_tokens, 0, limits_.max_model_len);
  real("temperature", rule.temperature, 0, kFinite);
  require("rule: top_k", rule.top_k, 0, INT32_MAX);
  real("top_p", rule.top_p, 0, 1);
  real("min_p", rule.min_p, 0, 1);
  real("repetition", rule.repetition, 1e-6f, kFinite);
  real("frequency", rule.frequency, -kFinite, kFinite);
  real("presence", rule.presence, -kFinite, kFinite);
  require("rule: min_tokens", rule.min_tokens, 0, INT32_MAX);
  require("rule: logprobs", rule.logprobs, -1, std::min(kMostTop, sizes_.vocab));
  for (size_t i = 0; i < rule.bias_ids.size(); ++i) {
    require("rule: a bias id", rule.bias_ids[i], i ? rule.bias_ids[i - 1] + 1 : 0, sizes_.vocab - 1);
    real("bias", rule.bias_values[i], -kFinite, kFinite);
  }
  for (int32_t id : rule.banned_early) require("rule: a banned id", id, 0, sizes_.vocab - 1);
  slot.rule = rule;
  slot.tokens = open.history.count;
}

// `at`: per group, the logical block from which its span is written; nullptr: from 0.
void Runtime::set_tables(const StepPlan& plan, int32_t slot, int32_t spans, const int32_t* at) {
  for (int32_t group = 0; group < groups(); ++group) {
    const Span span = plan.spans[static_cast<size_t>(spans + group)];
    int32_t& length = slots_[static_cast<size_t>(slot)].blocks[static_cast<size_t>(group)];
    const int32_t from = at ? at[group] : 0;
    require("tables_at", from, 0, length);
    require("The length of a block table", int64_t{from} + span.count, 0, max_blocks_);
    int32_t* to = table(slot, group) + from;
    for (int32_t i = 0; i < span.count; ++i) {
      const int32_t block = plan.ids[static_cast<size_t>(span.begin + i)];
      require("A block id", block, 0, limits_.num_blocks - 1);
      to[i] = block;
    }
    length = std::max(length, from + span.count);
  }
}

void Runtime::copy(const StepPlan::Copy& copy) {
  require("copies: group", copy.group, 0, groups() - 1);
  require("copies: source", copy.source, 0, limits_.num_blocks - 1);
  require("copies: target", copy.target, 0, limits_.num_blocks - 1);
  if (copy.source == copy.target) fail("copies: block %d is copied onto itself.", copy.source);
  const KvCache& cache = caches_[static_cast<size_t>(copy.group)];
  std::memcpy(cache.base + copy.target * cache.block_bytes, cache.base + copy.source * cache.block_bytes,
              static_cast<size_t>(cache.block_bytes));
}

void Runtime::advance(const StepPlan& plan, size_t index) {
  const StepPlan::Row& row = plan.rows[index];
  require("rows: slot", row.slot, 0, limits_.max_slots - 1);
  Slot& slot = slots_[static_cast<size_t>(row.slot)];
  if (slot.tokens < 0) fail("rows: slot %d was never opened.", row.slot);
  if (row_of_slot_[row.slot] == serial_) fail("rows: slot %d appears twice in one plan.", row.slot);
  row_of_slot_[row.slot] = serial_;
  require("rows: count", row.count, 1, limits_.max_step_tokens - tokens_);
  require("rows: start", row.start, 0, limits_.max_model_len - row.count);
  const int32_t end = row.start + row.count;

  require("rows: the number of new tokens", row.tokens.count, 0, row.count);
  const int32_t known = end - row.tokens.count;
  if (known > slot.tokens)
    fail("rows: slot %d knows %d tokens; position %d cannot be computed.", row.slot, slot.tokens, known - 1);
  int32_t* ids = history(row.slot);
  for (int32_t i = 0; i < row.tokens.count; ++i) {
    int32_t id = plan.ids[static_cast<size_t>(row.tokens.begin + i)];
    if (id < 0) {
      const int64_t sample = -int64_t{id} - 1;
      require("rows: a token's sample of the plan before", sample, 0, static_cast<int64_t>(previous_.size()) - 1);
      // A sample that failed is −1: its sequence is about to end, so any id will do.
      id = std::max(previous_[static_cast<size_t>(sample)], 0);
    }
    require("rows: a token id", id, 0, sizes_.vocab - 1);
    ids[known + i] = id;
  }
  if (row.tokens.count) slot.tokens = end;

  if (row.tables >= 0) set_tables(plan, row.slot, row.tables, plan.ids.data() + row.at);
  for (int32_t group = 0; group < groups(); ++group) {
    const int32_t length = slot.blocks[static_cast<size_t>(group)];
    if (ceil_div(end, kBlockTokens) > length)
      fail("rows: slot %d has %d blocks in group %d; %d tokens need %d.", row.slot, length, group, end,
           ceil_div(end, kBlockTokens));
    const int32_t* blocks = table(row.slot, group);
    int64_t* writers = writer_ + int64_t{group} * limits_.num_blocks;
    for (int32_t b = row.start / kBlockTokens; b <= (end - 1) / kBlockTokens; ++b) {
      if (writers[blocks[b]] == serial_) fail("rows: block %d is written twice in one plan.", blocks[b]);
      writers[blocks[b]] = serial_;
    }
    for (int32_t i = 0; i < row.count; ++i) token_blocks(group)[tokens_ + i] = blocks[(row.start + i) / kBlockTokens];
  }
  for (int32_t i = 0; i < row.count; ++i) {
    ids_[tokens_ + i] = ids[row.start + i];
    positions_[tokens_ + i] = row.start + i;
  }
  row_first_.push_back(tokens_);
  tokens_ += row.count;
}

void Runtime::accept(const StepPlan& plan, const StepPlan::Sample& sample) {
  require("samples: their number", static_cast<int64_t>(plan.samples.size()), 0,
          int64_t{limits_.max_step_tokens} + limits_.max_slots);
  require("samples: row", sample.row, 0, static_cast<int64_t>(plan.rows.size()) - 1);
  const StepPlan::Row& row = plan.rows[static_cast<size_t>(sample.row)];
  require("samples: offset", sample.offset, 0, row.count - 1);
  require("samples: slot", sample.slot, 0, limits_.max_slots - 1);
  require("samples: target", sample.target, -1, sizes_.vocab - 1);
  require("samples: top", sample.top, 0, std::min(kMostTop, sizes_.vocab));
  const Slot& slot = slots_[static_cast<size_t>(sample.slot)];
  int32_t top = sample.top;
  if (sample.target < 0) {
    const int32_t tokens = row.start + sample.offset + 1;
    if (tokens > slot.tokens) fail("samples: slot %d knows %d tokens of %d.", sample.slot, slot.tokens, tokens);
    if (tokens < slot.rule.prompt_tokens)
      fail("samples: slot %d would choose a token inside its prompt of %d.", sample.slot, slot.rule.prompt_tokens);
    top = std::max(slot.rule.logprobs, 0);
  }
  Answer answer;
  answer.top = {static_cast<int32_t>(top_ids_.size()), top};
  top_ids_.resize(top_ids_.size() + static_cast<size_t>(top));
  answers_.push_back(answer);
  samples_.push_back(sample);
  sample_tokens_.push_back(row_first_[static_cast<size_t>(sample.row)] + sample.offset);
}

// Attention's items are the same in every layer. Those of long sequences are divided by segments where whole ones
// would leave a worker idle.
void Runtime::make_items(const StepPlan& plan) {
  by_rows_ = tokens_ > kFewRows;
  const int32_t tiles = ceil_div(ceil_div(tokens_, kTileRows), threads_) * threads_;
  tile_rows_ = std::min(kTileRows, ceil_div(tokens_, tiles));
  items_.clear();
  splits_.clear();
  int64_t work = 0;  // in segments of one query token
  for (int32_t i = 0; i < tokens_; ++i) work += int64_t{last_segment(i)} * sizes_.kv_heads;
  const int64_t most = std::max<int64_t>(1, work / (4 * threads_) + 1);
  const bool whole = plan.rows.size() >= static_cast<size_t>(4 * threads_);
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const int32_t segments = last_segment(row_first_[i] + plan.rows[i].count - 1);
    const bool divided = plan.rows[i].count == 1 && segments > most &&
                         splits_.size() + static_cast<size_t>(sizes_.kv_heads) <= static_cast<size_t>(max_splits_);
    add_row(plan.rows[i].slot, row_first_[i], plan.rows[i].count, whole, divided ? static_cast<int32_t>(most) : 0);
  }
  for (size_t i = 0; i < splits_.size(); ++i) joined_[i].value.store(0, std::memory_order_relaxed);
}

// `whole`: there are enough sequences, so all heads of one stay together. `part_segments`: 0, or how to divide.
void Runtime::add_row(int32_t slot, int32_t first, int32_t count, bool whole, int32_t part_segments) {
  Item item;
  item.slot = slot;
  item.first = first;
  item.count = count;
  item.segment_end = last_segment(first + count - 1);
  const int32_t heads = sizes_.kv_heads;
  if (part_segments) {
    const int32_t segments = item.segment_end;
    const int64_t floats = int64_t{group_size_} * max_segments_ * (sizes_.head_dim + 2);
    for (int32_t head = 0; head < heads; ++head) {
      item.split = static_cast<int32_t>(splits_.size());
      item.head_begin = head;
      item.head_end = head + 1;
      splits_.push_back({segments, part_segments, partials_ + item.split * floats});
      for (int32_t s = 0; s < segments; s += part_segments) {
        item.segment_begin = s;
        item.segment_end = std::min(s + part_segments, segments);
        items_.push_back(item);
      }
    }
    return;
  }
  // A prompt's tiles, the costly last one first. When k and v are written by the items themselves (few rows), one
  // item must hold all tokens of a head.
  const int32_t tile = by_rows_ ? std::max(1, kAttentionRows / group_size_) : count;
  const int32_t heads_each = whole && count <= tile ? heads : 1;
  for (int32_t head = 0; head < heads; head += heads_each) {
    item.head_begin = head;
    item.head_end = head + heads_each;
    for (int32_t begin = (count - 1) / tile * tile; begin >= 0; begin -= tile) {
      item.first = first + begin;
      item.count = std::min(tile, count - begin);
      item.segment_end = last_segment(item.first + item.count - 1);
      items_.push_back(item);
    }
  }
}

// ---- The pass ----

void Runtime::wait(int worker) {
  if (worker == 0) ++barriers_;
  pool_.barrier();
}

void Runtime::reach(int32_t layer) {
  const uint64_t step = progress_.load(std::memory_order_relaxed) >> 16;
  progress_.store(step << 16 | static_cast<uint64_t>(std::max(layer, 0)), std::memory_order_relaxed);
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
    switch (op.kind) {
      case OpKind::Embed: {
        const int32_t begin = share(tokens_, worker, threads_);
        embed(op, view, begin, begin, share(tokens_, worker + 1, threads_) - begin);
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
    for (;;) {
      const int64_t first = pool_.claim(tile_rows_);
      if (first >= tokens_) break;
      run_tile(begin, end, static_cast<int32_t>(first), std::min(tile_rows_, tokens_ - static_cast<int32_t>(first)),
               workers_[static_cast<size_t>(worker)], lap);
    }
    if (end == body_.size()) return;
    wait(worker);
    lap(kWait);
    Claims claims(pool_);
    attend(body_[end], workers_[static_cast<size_t>(worker)], claims, false);
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
                    area.scale + group, area.sum + group, area.outlier + group);
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
  cache.base += skip * kBlockTokens * (cache.type == KvType::F32 ? 4 : 2);
  cache.kv_heads = head_end - head_begin;
  kernels_.kv_write(cache, op.place, token_blocks(op.group)[token], positions_[token] % kBlockTokens, k + skip,
                    v + skip);
}

void Runtime::attend(const Op& op, Worker& own, Claims& claims, bool fused) {
  const int32_t items = static_cast<int32_t>(items_.size());
  for (int32_t i; (i = claims.take(items)) >= 0;) attend_item(op, items_[static_cast<size_t>(i)], own, fused);
}

// `fused`: q and k are not rotated yet, and k and v not written. Of a divided head, every part rotates its own copy
// of q, and the part with the newest position writes.
void Runtime::attend_item(const Op& op, const Item& item, Worker& own, bool fused) {
  const Area &q = shared_[Buffer::Q], &k = shared_[Buffer::K], &v = shared_[Buffer::V], &a = shared_[Buffer::A];
  const int32_t slice = group_size_ * sizes_.head_dim;
  const float* query = q.f32 + int64_t{item.first} * q.width;
  const bool newest = item.segment_end == last_segment(item.first + item.count - 1);
  if (fused) {
    for (int32_t t = item.first; t < item.first + item.count && newest; ++t)
      store(op, t, item.head_begin, item.head_end, k.f32 + int64_t{t} * k.width, v.f32 + int64_t{t} * v.width);
    const int32_t begin = item.head_begin * slice, heads = (item.head_end - item.head_begin) * group_size_;
    if (op.rotate && item.split >= 0) {
      std::memcpy(own.rotated + begin, query + begin, static_cast<size_t>(slice) * sizeof(float));
      rotate(own.rotated + begin, heads, item.first);
      query = own.rotated;
    } else if (op.rotate) {
      for (int32_t t = item.first; t < item.first + item.count; ++t)
        rotate(q.f32 + int64_t{t} * q.width + begin, heads, t);
    }
  }
  AttentionItem call;
  call.cache = &caches_[static_cast<size_t>(op.group)];
  call.layer = op.place;
  call.table = table(item.slot, op.group);
  call.q = query;
  call.ldq = q.width;
  call.position = positions_[item.first];
  call.queries = item.count;
  call.group = group_size_;
  call.scale = op.scale;
  call.segment_begin = item.segment_begin;
  call.segment_end = item.segment_end;
  call.out = a.f32 + int64_t{item.first} * a.width;
  call.ldo = a.width;
  if (item.split >= 0) {
    const Split& split = splits_[static_cast<size_t>(item.split)];
    call.kv_head = item.head_begin;
    call.partial = split.partial + int64_t{item.segment_begin} * group_size_ * (sizes_.head_dim + 2);
    kernels_.attention(call);
    const int32_t done = joined_[item.split].value.fetch_add(1, std::memory_order_acq_rel) + 1;
    if (done % split.parts()) return;
    join(item, own);
  } else {
    for (call.kv_head = item.head_begin; call.kv_head < item.head_end; ++call.kv_head) kernels_.attention(call);
  }
  if (a.q)
    for (int32_t t = item.first; t < item.first + item.count; ++t)
      quantize(a, t, item.head_begin * slice, item.head_end * slice);
}

// The last part to be ready merges all of a head, in ascending order whoever computed them.
void Runtime::join(const Item& item, Worker& own) const {
  const Split& split = splits_[static_cast<size_t>(item.split)];
  const int64_t piece = sizes_.head_dim + 2;
  float* out = shared_[Buffer::A].f32 + int64_t{item.first} * shared_[Buffer::A].width;
  for (int32_t g = 0; g < group_size_; ++g) {
    for (int32_t s = 0; s < split.segments; s += split.part_segments) {
      const int32_t count = std::min(split.part_segments, split.segments - s);
      std::memcpy(own.pieces + s * piece, split.partial + (int64_t{s} * group_size_ + int64_t{g} * count) * piece,
                  static_cast<size_t>(count * piece) * sizeof(float));
    }
    kernels_.attention_merge(own.pieces, split.segments, sizes_.head_dim,
                             out + (int64_t{item.head_begin} * group_size_ + g) * sizes_.head_dim);
  }
}

// ---- The choice ----

void Runtime::sample(const int32_t* const* masks) {
  if (!sample_due_) return;
  sample_due_ = false;
  masks_ = masks;
  pool_.run([this](int worker, Pool&) { choose(worker); });
  masks_ = nullptr;
}

void Runtime::choose(int worker) {
  Worker& own = workers_[static_cast<size_t>(worker)];
  View view = own.own;
  const Area& h = view[Buffer::H];
  view[Buffer::X].f32 = logits_;  // what the head writes
  view[Buffer::X].width = sizes_.vocab;
  const int32_t samples = static_cast<int32_t>(samples_.size());
  Lap lap(*this, worker);
  for (int32_t first = 0; first < samples; first += kHeadRows) {
    const int32_t rows = std::min(kHeadRows, samples - first);
    Claims claims(pool_);
    for (int32_t r = 0; r < rows; ++r)
      norm(final_norm_,
           shared_[Buffer::X].f32 + int64_t{sample_tokens_[static_cast<size_t>(first + r)]} * sizes_.hidden, h, r);
    multiply(head_, view, rows, own, &claims);
    lap(kHead);
    pool_.barrier();
    lap(kWait);
    for (int64_t r; (r = pool_.claim()) < rows;)
      answer(static_cast<size_t>(first + r), logits_ + r * sizes_.vocab, own);
    lap(kChoose);
    if (first + rows < samples) pool_.barrier();
    lap(kWait);
  }
}

void Runtime::answer(size_t index, const float* logits, Worker& own) {
  const StepPlan::Sample& sample = samples_[index];
  Answer& answer = answers_[index];
  answer.scored = true;
  answer.token = sample.target;
  if (sample.target < 0) {
    const Slot& slot = slots_[static_cast<size_t>(sample.slot)];
    const Rule& rule = slot.rule;
    Choice choice;
    choice.logits = logits;
    choice.work = own.work;
    choice.counts = own.counts;
    choice.vocab = sizes_.vocab;
    choice.history = history(sample.slot);
    choice.history_tokens = positions_[sample_tokens_[index]] + 1;
    choice.prompt_tokens = rule.prompt_tokens;
    choice.seed = rule.seed;
    choice.temperature = rule.temperature;
    choice.top_p = rule.top_p;
    choice.min_p = rule.min_p;
    choice.top_k = rule.top_k;
    choice.repetition = rule.repetition;
    choice.frequency = rule.frequency;
    choice.presence = rule.presence;
    choice.bias_ids = rule.bias_ids.data();
    choice.bias_values = rule.bias_values.data();
    choice.bias_count = static_cast<int32_t>(rule.bias_ids.size());
    choice.banned = rule.banned_early.data();
    if (choice.history_tokens - rule.prompt_tokens < rule.min_tokens)
      choice.banned_count = static_cast<int32_t>(rule.banned_early.size());
    choice.mask = masks_ ? masks_[index] : nullptr;
    answer.token = kernels_.choose(choice);
    answer.scored = rule.logprobs >= 0 && answer.token >= 0;
  }
  if (!answer.scored) return;
  answer.logprob = kernels_.score(logits, sizes_.vocab, answer.token, answer.top.count,
                                  top_ids_.data() + answer.top.begin, top_values_.data() + answer.top.begin);
  if (std::isnan(answer.logprob)) answer = Answer{};  // the model's arithmetic failed for this row, and no other
}

}  // namespace octavo
