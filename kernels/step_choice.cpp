// The head, for rows that are sampled or scored, and the choice of their tokens; and the vectors of slots that pool.
#include <cmath>

#include "allocations.h"
#include "step_inner.h"

namespace octavo {

void Runtime::sample(const int32_t* const* masks) {
  if (!sample_due_) return;
  sample_due_ = false;
  const int64_t before = octavo::allocations();
  masks_ = masks;
  pool_.run([this](int worker, Pool&) { choose(worker); });
  masks_ = nullptr;
  allocations_ += octavo::allocations() - before;
}

void Runtime::choose(int worker) {
  Worker& own = workers_[static_cast<size_t>(worker)];
  View view = own.own;
  const Area& h = view[Buffer::H];
  view[Buffer::X].f32 = logits_;  // what the head writes
  view[Buffer::X].width = sizes_.vocab;
  const int32_t samples = static_cast<int32_t>(logit_samples_.size()), pooled = static_cast<int32_t>(pooled_.size());
  const auto token_of = [this](int32_t at) {
    return sample_tokens_[static_cast<size_t>(logit_samples_[static_cast<size_t>(at)])];
  };
  Lap lap(*this, worker);
  if (pooled) {
    for (int64_t i; !pool_.behind(worker) && (i = pool_.claim()) < pooled;) pool(pooled_[static_cast<size_t>(i)], own);
    if (samples) pool_.barrier(worker);
    lap(kNorm);
  }
  for (int32_t first = 0; first < samples; first += kHeadRows) {
    const int32_t rows = std::min(kHeadRows, samples - first);
    if (!pool_.behind(worker)) {
      Claims claims(pool_);
      for (int32_t r = 0; r < rows; ++r)
        norm(final_norm_, shared_[Buffer::X].f32 + int64_t{token_of(first + r)} * sizes_.hidden, h, r);
      multiply(head_, view, rows, own, &claims);
    }
    lap(kHead);
    pool_.barrier(worker);
    lap(kWait);
    for (int64_t r; !pool_.behind(worker) && (r = pool_.claim()) < rows;)
      answer(static_cast<size_t>(logit_samples_[static_cast<size_t>(first + r)]), logits_ + r * sizes_.vocab, own);
    lap(kChoose);
    if (first + rows < samples) pool_.barrier(worker);
    lap(kWait);
  }
}

// One worker adds up a slot's tokens in the order of their positions, each sum in double: so no bit depends on how a
// prompt was cut. That takes a thousandth of the time of its layers.
void Runtime::pool(const Pooled& pooled, Worker& own) {
  const Slot& slot = slots_[static_cast<size_t>(pooled.slot)];
  const int64_t width = sizes_.hidden, at = pooled.slot * width;
  double* sum = sums_ + at;
  float *h = own.own[Buffer::H].f32, *vector = vectors_ + at;
  const float* x = shared_[Buffer::X].f32 + pooled.first * width;
  if (slot.pooling == Pooling::Last || positions_[pooled.first] == 0) std::fill(sum, sum + width, 0.0);
  for (int32_t token = 0; token < pooled.count; ++token, x += width) {
    kernels_.rms_norm(x, final_norm_.weight, final_norm_.eps, final_norm_.offset, sizes_.hidden, h);
    for (int64_t i = 0; i < width; ++i) sum[i] += static_cast<double>(h[i]);
  }
  if (pooled.answer < 0) return;
  Answer& answer = answers_[static_cast<size_t>(pooled.answer)];
  const double count = slot.pooling == Pooling::Mean ? slot.summed : 1;
  bool finite = true;
  for (int64_t i = 0; i < width; ++i) {
    vector[i] = static_cast<float>(sum[i] / count);
    finite = finite && std::isfinite(vector[i]);
  }
  answer.token = finite ? 0 : -1;
  if (finite) answer.vector = vector;
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
