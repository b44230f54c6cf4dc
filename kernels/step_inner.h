// What the files of the runtime share: step_setup.cpp makes it, step_plan.cpp takes a plan in, step_pass.cpp runs the
// layers, step_choice.cpp the head and the choice.
#pragma once

#include <algorithm>
#include <chrono>

#include "step.h"

namespace octavo {

inline constexpr int32_t kFewRows = 64;   // up to here each weight is read once, by one worker, at most
inline constexpr int32_t kFewEach = 8;    // that is, with fewer rows than these for each worker
inline constexpr int32_t kTileRows = 64;  // of a tile that one worker carries, at most
inline constexpr int32_t kHeadRows = 32;  // whose logits are in memory at once
inline constexpr int32_t kOwnRows = std::max({kFewRows, kTileRows, kHeadRows});
inline constexpr int32_t kAttentionRows =
    96;                                    // query tokens × heads of a prompt's item: what attention.inc takes at once
inline constexpr int32_t kMostTop = 1024;  // log-probabilities of one position
inline constexpr int32_t kPieces = 6;      // of a matrix, per worker: few enough that claiming them costs nothing

inline int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

inline void require(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail("%s is %lld; it must be %lld to %lld.", what, static_cast<long long>(value), static_cast<long long>(least),
         static_cast<long long>(most));
}

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

}  // namespace octavo
