// Rows whose attention is made in parts: because they are long, or because they share segments of K and V with other
// rows, which are then read once for all of them (Hydragen, Juravsky et al. 2024, arXiv:2402.05099). Knows block
// tables, and not how sequences came to share their blocks.
//
// No bit depends on it: what a query gets of a segment is the same whoever computes it, and whoever is the last to be
// ready of those that work for a head merges its segments in ascending order.
#include <cstring>

#include "step_inner.h"

namespace octavo {

// 0 if two slots keep a segment in the same blocks; else some order, which is the same everywhere.
int Runtime::compare_blocks(int32_t slot, int32_t other, int32_t segment) const {
  constexpr int32_t kBlocks = kSegment / kBlockTokens;
  int order = 0;
  for (int32_t group = 0; group < groups() && !order; ++group)
    order = std::memcmp(table(slot, group) + segment * kBlocks, table(other, group) + segment * kBlocks,
                        kBlocks * sizeof(int32_t));
  return order;
}

// A tree of rows by the blocks of their segments, from the first on: runs_, each after the one that it branches from.
// Only segments before all of a row's own tokens count: they are full, each of its queries sees all of them, and
// nobody writes to them.
void Runtime::find_runs(const StepPlan& plan) {
  runs_.clear();
  order_.clear();
  // A row of more tokens reads K and V for many queries as it is; fewer than two tokens at once would gain nothing.
  const int32_t most = part_tokens_ > 1 ? std::max(1, part_tokens_ / 4) : 0;
  for (size_t i = 0; i < plan.rows.size(); ++i)
    if (plan.rows[i].count <= most && plan.rows[i].start >= kSegment) order_.push_back(static_cast<int32_t>(i));
  if (order_.size() < 2) return;

  const auto slot = [&](int32_t row) { return plan.rows[static_cast<size_t>(row)].slot; };
  runs_.push_back({0, static_cast<int32_t>(order_.size()), 0, 0});
  for (size_t i = 0; i < runs_.size(); ++i) {
    int32_t *const first = order_.data() + runs_[i].begin, *const last = order_.data() + runs_[i].end;
    int32_t segment = runs_[i].segment_end;
    const auto ends = [&](int32_t row) { return plan.rows[static_cast<size_t>(row)].start < (segment + 1) * kSegment; };
    const auto same = [&](int32_t a, int32_t b) {
      return !ends(a) && !ends(b) && !compare_blocks(slot(a), slot(b), segment);
    };
    while (std::all_of(first, last, [&](int32_t row) { return same(*first, row); })) ++segment;
    runs_[i].segment_end = segment;
    // Here they part. Those that go on together are put side by side, those that end here behind them.
    std::sort(first, last, [&](int32_t a, int32_t b) {
      return ends(a) || ends(b) ? !ends(a) : compare_blocks(slot(a), slot(b), segment) < 0;
    });
    for (const int32_t *from = first, *to; from != last; from = to) {
      to = std::find_if(from + 1, static_cast<const int32_t*>(last), [&](int32_t row) { return !same(*from, row); });
      const auto place = [&](const int32_t* at) { return static_cast<int32_t>(at - order_.data()); };
      if (to - from > 1) runs_.push_back({place(from), place(to), segment, segment + 1});
    }
  }
}

// Splits of the rows that share segments, and the items that read these. `most`: segments that an item should have at
// most, times its query tokens, so that workers end at the same time.
void Runtime::share(const StepPlan& plan, int64_t most) {
  find_runs(plan);
  splits_before_.assign(order_.size() + 1, 0);  // first, the segments that each shares
  for (const Run& run : runs_)
    std::fill(splits_before_.begin() + run.begin, splits_before_.begin() + run.end, run.segment_end);
  for (size_t i = 0; i <= order_.size(); ++i) {
    const int32_t shared = splits_before_[i];
    splits_before_[i] = static_cast<int32_t>(splits_.size());
    if (!shared) continue;
    const size_t row = static_cast<size_t>(order_[i]);
    split_of_row_[row] = add_split(plan.rows[row].slot, row_first_[row], plan.rows[row].count, shared);
  }
  for (const Run& run : runs_)
    if (run.segment_begin < run.segment_end)
      add_run(splits_before_[static_cast<size_t>(run.begin)], splits_before_[static_cast<size_t>(run.end)], run, most);
}

// A split without parts so far; −1 where the memory for parts is full.
int32_t Runtime::add_split(int32_t slot, int32_t first, int32_t count, int32_t shared) {
  const int32_t segments = std::max(split_segments_, last_segment(first + count - 1));
  if (int64_t{split_tokens_ + count} * segments > max_partials_) return -1;
  const int32_t index = static_cast<int32_t>(splits_.size());
  splits_.push_back({slot, first, count, split_tokens_, shared, 0});
  split_tokens_ += count;
  split_segments_ = segments;
  for (int32_t head = 0; head < sizes_.kv_heads; ++head)
    joined(splits_.back(), head).value.store(0, std::memory_order_relaxed);
  return index;
}

// The items of a run, for splits [begin, end): all tokens together, if that makes one for each worker at least.
void Runtime::add_run(int32_t begin, int32_t end, const Run& run, int64_t most) {
  int32_t tokens = 0;
  for (int32_t i = begin; i < end; ++i) tokens += splits_[static_cast<size_t>(i)].count;
  const int32_t segments = run.segment_end - run.segment_begin;
  const int32_t tiles = std::max(ceil_div(tokens, part_tokens_), ceil_div(threads_, sizes_.kv_heads * segments));
  const int32_t tile = ceil_div(tokens, tiles);
  for (Item item; begin < end; begin = item.split_end) {
    item.split_begin = item.split_end = begin;
    int32_t queries = 0;
    do queries += splits_[static_cast<size_t>(item.split_end++)].count;
    while (item.split_end < end && queries + splits_[static_cast<size_t>(item.split_end)].count <= tile);
    const Split& leader = splits_[static_cast<size_t>(begin)];
    item.slot = leader.slot;
    item.first = leader.first;
    item.count = leader.count;
    const int32_t wished = static_cast<int32_t>(std::clamp<int64_t>(most / queries, 1, segments));
    add_parts(item, run.segment_begin, run.segment_end, ceil_div(segments, ceil_div(segments, wished)), 1);
  }
}

// An item for each part of segments [begin, end) and each `heads` heads.
void Runtime::add_parts(Item item, int32_t begin, int32_t end, int32_t part_segments, int32_t heads) {
  const int32_t parts = ceil_div(end - begin, part_segments);
  for (int32_t i = item.split_begin; i < item.split_end; ++i) splits_[static_cast<size_t>(i)].parts += parts;
  for (item.head_begin = 0; item.head_begin < sizes_.kv_heads; item.head_begin += heads) {
    item.head_end = item.head_begin + heads;
    for (item.segment_begin = begin; item.segment_begin < end; item.segment_begin += part_segments) {
      item.segment_end = std::min(item.segment_begin + part_segments, end);
      items_.push_back(item);
    }
  }
}

// One of the parts that splits wait for. They are at work at the same time, so each rotates its own copy of q.
void Runtime::attend_part(const Op& op, const Item& item, AttentionItem& call, Worker& own, bool fused) {
  const Area& q = shared_[Buffer::Q];
  const int32_t slice = group_size_ * sizes_.head_dim, begin = item.head_begin * slice;
  const int32_t heads = (item.head_end - item.head_begin) * group_size_;
  const Split *const first = splits_.data() + item.split_begin, *const last = splits_.data() + item.split_end;
  call.queries = 0;
  for (const Split* split = first; split != last; ++split)
    for (int32_t t = split->first; t < split->first + split->count; ++t) {
      float* to = own.queries + int64_t{call.queries++} * q.width + begin;
      std::memcpy(to, q.f32 + int64_t{t} * q.width + begin,
                  static_cast<size_t>(heads * sizes_.head_dim) * sizeof(float));
      if (fused && op.rotate) rotate(to, heads, t);
    }
  call.q = own.queries;
  call.ldq = q.width;
  if (last - first > 1) call.position = item.segment_end * kSegment - 1;  // each sees all
  call.ldp = int64_t{split_segments_} * (sizes_.head_dim + 2);
  for (call.kv_head = item.head_begin; call.kv_head < item.head_end; ++call.kv_head) {
    call.partial = partial(call.kv_head, first->place) + int64_t{item.segment_begin} * (sizes_.head_dim + 2);
    kernels_.attention(call);
    for (const Split* split = first; split != last; ++split) {
      const int32_t done = joined(*split, call.kv_head).value.fetch_add(1, std::memory_order_acq_rel) + 1;
      if (done % split->parts == 0) join(*split, call.kv_head);
    }
  }
}

// Merges all segments of a head.
void Runtime::join(const Split& split, int32_t head) const {
  const Area& a = shared_[Buffer::A];
  const int64_t length = int64_t{split_segments_} * (sizes_.head_dim + 2);
  const int32_t slice = group_size_ * sizes_.head_dim, segments = last_segment(split.first + split.count - 1);
  const float* from = partial(head, split.place);
  for (int32_t t = split.first; t < split.first + split.count; ++t) {
    float* out = a.f32 + int64_t{t} * a.width + head * slice;
    for (int32_t g = 0; g < group_size_; ++g, from += length, out += sizes_.head_dim)
      kernels_.attention_merge(from, segments, sizes_.head_dim, out);
    if (a.q) quantize(a, t, head * slice, (head + 1) * slice);
  }
}

}  // namespace octavo
