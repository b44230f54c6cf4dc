// A plan enters: what it says is checked against its contract and what each slot knows, and attention is divided.
#include <cstring>

#include "allocations.h"
#include "step_inner.h"

namespace octavo {

void Runtime::launch(const StepPlan& plan) {
  if (sample_due_)
    fail("Step %lld is launched before the samples of the one before were chosen.", (long long)plan.step);
  const int64_t before = octavo::allocations();
  previous_.clear();
  for (const Answer& a : answers_) previous_.push_back(a.token);
  ++serial_;
  tokens_ = 0;
  row_first_.clear();
  samples_.clear();
  sample_tokens_.clear();
  logit_samples_.clear();
  pooled_.clear();
  answers_.clear();
  top_ids_.clear();
  top_values_.clear();

  for (const StepPlan::Open& each : plan.opens) open(plan, each);
  for (const StepPlan::Copy& each : plan.copies) copy(each);
  for (size_t row = 0; row < plan.rows.size(); ++row) advance(plan, row);
  for (const StepPlan::Sample& each : plan.samples) accept(plan, each);
  top_values_.resize(top_ids_.size());
  sample_due_ = !samples_.empty() || !pooled_.empty();
  barriers_ = 0;
  for (Worker& own : workers_) own.weight_bytes = own.kv_bytes = 0;
  if (tokens_) run(plan);
  allocations_ = octavo::allocations() - before;
}

void Runtime::run(const StepPlan& plan) {
  make_items(plan);
  progress_->store(static_cast<uint64_t>(plan.step) << 16, std::memory_order_relaxed);
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
  slot.pooling = open.pooling;
  slot.summed = 0;
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

Runtime::BlockBytes Runtime::block(int32_t group, int32_t block) const {
  require("A block's group", group, 0, groups() - 1);
  require("A block id", block, 0, limits_.num_blocks - 1);
  const KvCache& cache = caches_[static_cast<size_t>(group)];
  return {cache.base + block * cache.block_bytes, static_cast<size_t>(cache.block_bytes)};
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
  if (slot.pooling == Pooling::Mean) {
    if (row.start != slot.summed)
      fail("rows: slot %d has pooled %d tokens, and the row starts at %d.", row.slot, slot.summed, row.start);
    if (end > slot.rule.prompt_tokens)
      fail("rows: slot %d pools a prompt of %d tokens, and the row ends at %d.", row.slot, slot.rule.prompt_tokens,
           end);
    slot.summed = end;
    pooled_.push_back({row.slot, tokens_, row.count, -1});
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
  const bool pools = sample.target < 0 && slot.pooling != Pooling::None;
  const int32_t index = static_cast<int32_t>(samples_.size()),
                token = row_first_[static_cast<size_t>(sample.row)] + sample.offset;
  if (pools) {
    top = 0;
    if (sample.slot != row.slot || row.start + sample.offset + 1 != slot.rule.prompt_tokens)
      fail("samples: slot %d pools; it answers at the last token of its own prompt.", sample.slot);
    const auto same = [&](const Pooled& one) { return one.slot == sample.slot; };
    const auto sums = std::find_if(pooled_.begin(), pooled_.end(), same);
    if (sums != pooled_.end() && sums->answer >= 0) fail("samples: slot %d answers twice.", sample.slot);
    if (sums != pooled_.end())
      sums->answer = index;
    else
      pooled_.push_back({sample.slot, token, 1, index});
  } else {
    logit_samples_.push_back(index);
  }
  Answer answer;
  answer.top = {static_cast<int32_t>(top_ids_.size()), top};
  top_ids_.resize(top_ids_.size() + static_cast<size_t>(top));
  answers_.push_back(answer);
  samples_.push_back(sample);
  sample_tokens_.push_back(token);
}

// Attention's items are the same in every layer. Those of long sequences are divided by segments where whole ones
// would leave a worker idle; segments that several rows share are read by items of their own.
void Runtime::make_items(const StepPlan& plan) {
  // Workers that share a matrix wait for each other after each; those with rows of their own read all weights, which
  // costs less from a few rows on.
  by_rows_ = tokens_ > std::min(kFewRows, kFewEach * threads_);
  const int32_t tiles = ceil_div(ceil_div(tokens_, kTileRows), threads_) * threads_;
  tile_rows_ = std::min(kTileRows, ceil_div(tokens_, tiles));
  items_.clear();
  splits_.clear();
  split_tokens_ = split_segments_ = 0;
  split_of_row_.assign(plan.rows.size(), -1);
  int64_t work = 0;  // in segments of one query token
  for (int32_t i = 0; i < tokens_; ++i) work += int64_t{last_segment(i)} * sizes_.kv_heads;
  const int64_t most = std::max<int64_t>(1, work / (4 * threads_) + 1);
  share(plan, most);
  // Where there are enough sequences, all heads of one stay together.
  const int32_t heads = plan.rows.size() >= static_cast<size_t>(4 * threads_) ? sizes_.kv_heads : 1;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    Item item;
    item.slot = plan.rows[i].slot;
    item.first = row_first_[i];
    item.count = plan.rows[i].count;
    item.segment_end = last_segment(item.first + item.count - 1);
    int32_t split = split_of_row_[i];
    const int32_t begin = split < 0 ? 0 : splits_[static_cast<size_t>(split)].shared;
    const bool divided = item.count == 1 && item.segment_end - begin > most;
    if (divided && split < 0) split = add_split(item.slot, item.first, item.count, 0);
    if (split < 0) {
      add_row(item, heads);
    } else {
      item.split_begin = split;
      item.split_end = split + 1;
      const int32_t segments = divided ? static_cast<int32_t>(most) : item.segment_end - begin;
      add_parts(item, begin, item.segment_end, segments, divided ? 1 : heads);
    }
  }
}

// The items of a row that is not split. A prompt is cut into tiles, the costly last one first; when k and v are written
// by the items themselves (few rows), one item must hold all tokens of a head.
void Runtime::add_row(const Item& row, int32_t heads) {
  Item item = row;
  const int32_t tile = by_rows_ ? part_tokens_ : row.count;
  if (row.count > tile) heads = 1;
  for (item.head_begin = 0; item.head_begin < sizes_.kv_heads; item.head_begin += heads) {
    item.head_end = item.head_begin + heads;
    for (int32_t begin = (row.count - 1) / tile * tile; begin >= 0; begin -= tile) {
      item.first = row.first + begin;
      item.count = std::min(tile, row.count - begin);
      item.segment_end = last_segment(item.first + item.count - 1);
      items_.push_back(item);
    }
  }
}

}  // namespace octavo
