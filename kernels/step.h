// The runtime: what it was told about each slot, the KV memory, and a step over both. Interprets a lowered program
// with the functions of one instruction set, inside one run of the pool. Knows no Python and no policy.
//
// A step runs in one of two ways, with equal bits:
//   few rows   every weight is read once: workers claim pieces of each matrix (so that a disturbed one gets fewer),
//              and norms are computed by each worker for itself. Five barriers a layer (tests count them).
//   many rows  workers claim tiles of rows and carry them through everything that lies between two attentions,
//              in memory of their own. Two barriers a layer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "octavo.h"
#include "plan.h"
#include "pool.h"
#include "program.h"

namespace octavo {

struct StepLimits {
  int32_t num_blocks = 0;       // per KV group
  int32_t max_slots = 0;        // running sequences
  int32_t max_step_tokens = 0;  // tokens in one plan
  int32_t max_model_len = 0;    // tokens in one sequence
};

// The answer to one sample. `token` −1: the row's logits hold a NaN, or the pooled vector something that is not finite.
struct Answer {
  int32_t token = -1;
  float logprob = 0;
  bool scored = false;
  Span top;                       // in top_ids and top_values
  const float* vector = nullptr;  // [hidden], of a slot that pools
};

// Anonymous memory, zero until touched, in huge pages where the system has them.
class Mapping {
 public:
  explicit Mapping(size_t bytes);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_;
  size_t bytes_;
};

class Runtime {
 public:
  // Everything that a step needs is allocated here. Raises std::invalid_argument, or std::bad_alloc.
  // The pool may be that of other runtimes too, as long as one of them works at a time.
  Runtime(const Program& program, const StepLimits& limits, KvType kv_type, std::shared_ptr<Pool> pool,
          const Kernels& kernels);

  // Runs the layers. Raises std::invalid_argument for a plan that breaks its contract; the slots that it names
  // then hold something undefined, and everything stays safe.
  void launch(const StepPlan& plan);
  // Chooses and scores for the plan launched last. `masks`: one pointer per sample, or nullptr for none at all;
  // each is nullptr or ceil(vocab / 32) words.
  void sample(const int32_t* const* masks);

  // The answers of the last sample(), valid until the next launch().
  const std::vector<Answer>& answers() const { return answers_; }
  const int32_t* top_ids() const { return top_ids_.data(); }
  const float* top_values() const { return top_values_.data(); }
  size_t samples() const { return samples_.size(); }  // that the plan launched last asks for

  int32_t vocab() const { return sizes_.vocab; }
  int32_t hidden() const { return sizes_.hidden; }
  int32_t groups() const { return static_cast<int32_t>(caches_.size()); }
  int64_t block_bytes() const;  // of all KV groups together

  // What a physical block holds, for reading and writing between two launches.
  struct BlockBytes {
    uint8_t* data;
    size_t bytes;
  };
  BlockBytes block(int32_t group, int32_t block) const;

  int threads() const { return threads_; }

  // (step << 16) + layer: moves while a step runs. Any thread may read it.
  uint64_t progress() const { return progress_->load(std::memory_order_relaxed); }
  // From now on it is written there, which another process may see too; `word` outlives the runtime.
  void set_progress(std::atomic<uint64_t>* word) { progress_ = word; }
  // Of the last launch and its sample: barriers of the layers, calls for heap memory, bytes of weights multiplied, and
  // of K and V that attention read.
  int64_t barriers() const { return barriers_; }
  int64_t allocations() const { return allocations_; }
  int64_t weight_bytes() const;
  int64_t kv_bytes() const;
  bool by_rows() const { return by_rows_; }  // how the last launch ran

  // Where the time goes: seconds that worker 0 spent per stage since the last call. Measured only when enabled.
  enum Stage { kEmbed, kNorm, kQkv, kRope, kAttention, kOut, kGated, kDown, kHead, kChoose, kWait, kStages };
  static const char* stage_name(int stage);
  void measure(bool enabled) { measuring_ = enabled; }
  void take_times(double* seconds);

 private:
  struct Slot {
    int32_t tokens = -1;          // known ids; −1: never opened
    std::vector<int32_t> blocks;  // per group: entries of its table
    Rule rule;
    Pooling pooling = Pooling::None;
    int32_t summed = 0;  // tokens in its sum, from position 0 on
  };
  // Rows of one buffer, as floats and as int8 groups.
  struct Area {
    float* f32 = nullptr;
    int8_t* q = nullptr;
    float* scale = nullptr;
    int32_t* sum = nullptr;
    int8_t* outlier = nullptr;
    int32_t width = 0;
    Area from(int64_t row) const;
    Input input() const { return {f32, q, scale, sum, outlier, width}; }
  };
  struct View {
    Area areas[kBuffers];
    Area& operator[](Buffer b) { return areas[static_cast<int>(b)]; }
    const Area& operator[](Buffer b) const { return areas[static_cast<int>(b)]; }
  };
  struct Worker {
    View own;                   // h, and k, v, g of a tile
    Panel* panels[2] = {};      // the second for an up of another kind than its gate
    float* queries = nullptr;   // rows of q that a part of attention reads
    float* work = nullptr;      // [vocab]
    int32_t* counts = nullptr;  // [vocab]
    int64_t weight_bytes = 0, kv_bytes = 0;
  };
  // Attention of `count` consecutive tokens of a sequence, for some KV heads, over some segments. It may be a part of
  // one split; or of several, which share the segments: slot and tokens are then the first one's.
  struct Item {
    int32_t slot = 0;
    int32_t first = 0, count = 0;  // tokens of the step
    int32_t head_begin = 0, head_end = 0;
    int32_t segment_begin = 0, segment_end = 0;
    int32_t split_begin = 0, split_end = 0;
  };
  // A row of the plan whose attention is made in parts.
  struct Split {
    int32_t slot = 0;
    int32_t first = 0, count = 0;  // its tokens
    int32_t place = 0;             // of the first one among all that are split
    int32_t shared = 0;            // its first segments, which are read together with other rows
    int32_t parts = 0;             // items that each head waits for
  };
  // Tokens of the step whose final hidden states go into a slot's vector; `answer` −1: more will come.
  struct Pooled {
    int32_t slot = 0;
    int32_t first = 0, count = 0;
    int32_t answer = -1;
  };
  // Rows of order_ that read the same blocks in some segments.
  struct Run {
    int32_t begin = 0, end = 0;
    int32_t segment_begin = 0, segment_end = 0;
  };
  struct alignas(64) Counter {
    std::atomic<int32_t> value{0};
  };
  class Arena;
  class Lap;

  void allocate(Arena& arena);
  void open(const StepPlan& plan, const StepPlan::Open& open);
  void set_tables(const StepPlan& plan, int32_t slot, int32_t spans, const int32_t* at);
  void copy(const StepPlan::Copy& copy);
  void advance(const StepPlan& plan, size_t row);
  void accept(const StepPlan& plan, const StepPlan::Sample& sample);
  void run(const StepPlan& plan);
  void make_items(const StepPlan& plan);
  void add_row(const Item& row, int32_t heads);
  void find_runs(const StepPlan& plan);
  int compare_blocks(int32_t slot, int32_t other, int32_t segment) const;
  void share(const StepPlan& plan, int64_t most);
  int32_t add_split(int32_t slot, int32_t first, int32_t count, int32_t shared);
  void add_run(int32_t begin, int32_t end, const Run& run, int64_t most);
  void add_parts(Item item, int32_t begin, int32_t end, int32_t part_segments, int32_t heads);

  void run_strips(int worker);
  void run_rows(int worker);
  void run_tile(size_t begin, size_t end, int32_t first, int32_t count, Worker& own, Lap& lap);
  void embed(const Op& op, const View& view, int32_t first, int32_t row, int32_t rows) const;
  void norm(const Op& op, const float* x, const Area& h, int64_t row) const;
  void quantize(const Area& area, int64_t row, int32_t begin, int32_t end) const;
  void multiply(const Op& op, const View& view, int32_t rows, Worker& own, Claims* claims) const;
  void rotate(float* x, int32_t heads, int32_t token) const;
  void store(const Op& op, int32_t token, int32_t head_begin, int32_t head_end, float* k, const float* v) const;
  void attend(const Op& op, Worker& own, Claims& claims, bool fused);
  void attend_item(const Op& op, const Item& item, Worker& own, bool fused);
  void attend_part(const Op& op, const Item& item, AttentionItem& call, Worker& own, bool fused);
  void join(const Split& split, int32_t head) const;
  int64_t read_bytes(const AttentionItem& call) const;
  void choose(int worker);
  void answer(size_t index, const float* logits, Worker& own);
  void pool(const Pooled& pooled, Worker& own);
  void wait(int worker);
  void reach(int32_t layer);

  int32_t last_segment(int32_t token) const { return positions_[token] / kSegment + 1; }
  int32_t* history(int32_t slot) const { return histories_ + static_cast<int64_t>(slot) * limits_.max_model_len; }
  int32_t* table(int32_t slot, int32_t group) const {
    return tables_ + (static_cast<int64_t>(group) * limits_.max_slots + slot) * max_blocks_;
  }
  // What is kept for a KV head of split token `place`: [group][split_segments_][head_dim + 2].
  float* partial(int32_t head, int32_t place) const {
    return partials_ + (int64_t{head} * split_tokens_ + place) * group_size_ * split_segments_ * (sizes_.head_dim + 2);
  }
  Counter& joined(const Split& split, int32_t head) const {
    return joined_[(&split - splits_.data()) * sizes_.kv_heads + head];
  }
  int32_t* token_blocks(int32_t group) const {
    return token_blocks_ + static_cast<int64_t>(group) * limits_.max_step_tokens;
  }

  const Kernels& kernels_;
  const Sizes sizes_;
  const StepLimits limits_;
  const int32_t threads_;
  const int32_t group_size_;    // query heads per KV head
  const int32_t max_blocks_;    // in a block table
  const int32_t part_tokens_;   // whose queries a part of attention takes at once
  const int64_t max_partials_;  // of each query head: split tokens × split segments
  const RopeTable rope_;
  const std::vector<Op> body_;
  const Op final_norm_, head_;
  std::vector<uint8_t> barrier_before_;  // per operation of the body, when strips are divided
  bool quantized_[kBuffers];
  const std::shared_ptr<Pool> shared_pool_;
  Pool& pool_;

  std::vector<std::unique_ptr<Mapping>> kv_memory_;
  std::unique_ptr<Mapping> memory_;
  std::vector<KvCache> caches_;
  std::vector<Slot> slots_;
  int32_t* histories_ = nullptr;
  int32_t* tables_ = nullptr;
  float* cos_ = nullptr;  // [max_model_len][rope dim / 2]
  float* sin_ = nullptr;
  View shared_;  // x, q, a of a step; k, v, g of few rows
  float* logits_ = nullptr;
  double* sums_ = nullptr;    // [max_slots][hidden], of slots that pool
  float* vectors_ = nullptr;  // [max_slots][hidden]
  float* partials_ = nullptr;
  std::vector<Worker> workers_;

  // This step.
  int64_t serial_ = 0;
  int64_t* row_of_slot_ = nullptr;  // [max_slots]: serial of the last plan with a row of this slot
  int64_t* writer_ = nullptr;       // [groups][num_blocks]: serial of the last plan that wrote the block
  int32_t tokens_ = 0;
  int32_t* ids_ = nullptr;  // [max_step_tokens] each
  int32_t* positions_ = nullptr;
  int32_t* token_blocks_ = nullptr;  // [groups][max_step_tokens]
  std::vector<int32_t> row_first_;   // per row of the plan: its first token
  std::vector<StepPlan::Sample> samples_;
  std::vector<int32_t> sample_tokens_;  // the token that each sample reads
  std::vector<int32_t> logit_samples_;  // those that need logits
  std::vector<Pooled> pooled_;
  std::vector<Item> items_;
  std::vector<Split> splits_;
  int32_t split_tokens_ = 0, split_segments_ = 0;  // of all, and of the longest
  std::vector<int32_t> order_;                     // rows of the plan: those of a run side by side
  std::vector<int32_t> splits_before_;             // each place of order_, and its end
  std::vector<int32_t> split_of_row_;              // −1: none
  std::vector<Run> runs_;
  std::unique_ptr<Counter[]> joined_;  // [max_slots][kv_heads]: parts done, over all layers
  int32_t tile_rows_ = 0;
  bool by_rows_ = false;
  bool sample_due_ = false;
  const int32_t* const* masks_ = nullptr;

  std::vector<Answer> answers_;
  std::vector<int32_t> top_ids_;
  std::vector<float> top_values_;
  std::vector<int32_t> previous_;  // tokens chosen for the plan before

  std::atomic<uint64_t> own_progress_{0};
  std::atomic<uint64_t>* progress_ = &own_progress_;
  int64_t barriers_ = 0;
  int64_t allocations_ = 0;
  bool measuring_ = false;
  double times_[kStages] = {};
};

}  // namespace octavo
