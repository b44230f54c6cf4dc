// A plan as flat arrays: backends/base.py's Plan for C++. Knows no Python; bind_step.cpp fills it.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// A range of some array.
struct Span {
  int32_t begin = 0, count = 0;
};

// What a slot answers with instead of tokens: its final hidden states, added up over the prompt or the last one's.
enum class Pooling : uint8_t { None, Mean, Last };

// ChoiceRule.
struct Rule {
  int32_t prompt_tokens = 0;
  uint64_t seed = 0;
  float temperature = 0, top_p = 1, min_p = 0, repetition = 1, frequency = 0, presence = 0;
  int32_t top_k = 0;
  int32_t min_tokens = 0;
  int32_t logprobs = -1;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias_values;
  std::vector<int32_t> banned_early;
};

// Its owner clears and refills it every step, so that its vectors soon stop growing.
struct StepPlan {
  struct Open {
    int32_t slot = 0;
    Span history;        // of `ids`
    int32_t tables = 0;  // the place in `spans` of one span of `ids` per KV group
    Pooling pooling = Pooling::None;
  };
  struct Copy {
    int32_t group = 0, source = 0, target = 0;
  };
  struct Row {
    int32_t slot = 0, start = 0, count = 0;
    Span tokens;          // of `ids`
    int32_t tables = -1;  // as above; −1: no table changes
    int32_t at = 0;       // the place in `ids` of one logical block per KV group
  };
  struct Sample {
    int32_t row = 0, offset = 0, slot = 0, target = -1, top = 0;
  };

  int64_t step = 0;
  std::vector<int32_t> ids;
  std::vector<Span> spans;
  std::vector<Open> opens;
  std::vector<Rule> rules;  // of opens, in order; those after them are left over
  std::vector<Copy> copies;
  std::vector<Row> rows;
  std::vector<Sample> samples;

  void clear() {
    ids.clear();
    spans.clear();
    opens.clear();
    copies.clear();
    rows.clear();
    samples.clear();
  }
};

}  // namespace octavo
