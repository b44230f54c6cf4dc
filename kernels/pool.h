// The kernels' threads: all workers run one function together, meet at barriers, and share work. Knows no kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace octavo {

// A number that only changes forward, and threads that wait until it does: they spin for a while (a step's phases
// are shorter than a wake-up), then sleep (so that an idle engine costs nothing and an oversubscribed one goes on).
class Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void open();                // value + 1; wakes who sleeps
  void wait(uint32_t value);  // until value() != value

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// `threads` workers, of which worker 0 is whoever calls run(). One run at a time; run() allocates nothing.
class Pool {
 public:
  explicit Pool(int threads);  // below 1 counts as 1
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls fn(worker, pool) on every worker and returns when all have returned; what each wrote is then visible.
  // fn must not throw. Rounding and denormals are the default ones inside, whatever the caller's are.
  template <class F>
  void run(F&& fn) {
    using Fn = std::remove_reference_t<F>;
    call([](void* f, int worker, Pool& pool) { (*static_cast<Fn*>(f))(worker, pool); },
         const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Inside run(): returns when all workers have come here; what they wrote before is then visible to all. Every
  // worker must come equally often.
  void barrier();

  // Inside run(): the first of `count` numbers that nobody else has got since the last barrier (or the start of the
  // run), counted from 0. The caller compares with its total.
  int64_t claim(int64_t count = 1) { return next_.fetch_add(count, std::memory_order_relaxed); }

  // Inside run(): this worker's even part [begin, end) of 0 … total, the same for every call.
  void share(int64_t total, int worker, int64_t* begin, int64_t* end) const {
    *begin = total * worker / threads_;
    *end = total * (worker + 1) / threads_;
  }

 private:
  using Call = void (*)(void*, int, Pool&);
  void call(Call fn, void* argument);
  void work(int worker);

  const int threads_;
  Call fn_ = nullptr;  // nullptr at a start: the pool ends
  void* argument_ = nullptr;
  alignas(64) Gate start_;
  alignas(64) Gate phase_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  std::vector<std::thread> workers_;
};

// One worker's view of what it claims while several operations follow one another without a barrier: each has items
// 0, 1, …, and a number claimed beyond the last of one counts for the next.
class Claims {
 public:
  explicit Claims(Pool& pool) : pool_(pool) {}
  // An item of the current operation, or −1 when all of its `items` have been taken; then the next one is current.
  int32_t take(int32_t items) {
    if (held_ < 0) held_ = pool_.claim();
    const int64_t item = held_ - base_;
    if (item >= items) {
      base_ += items;
      return -1;
    }
    held_ = -1;
    return static_cast<int32_t>(item);
  }
  void restart() { held_ = -1, base_ = 0; }  // after a barrier

 private:
  Pool& pool_;
  int64_t held_ = -1;  // claimed and not yet taken
  int64_t base_ = 0;   // items of the operations before
};

// How many threads may run at once: the processors this process is bound to, limited by the quota of its control
// groups (version 1 or 2; a part of a processor counts as one). At least 1. `root`: where /proc and /sys are.
int default_threads(const std::string& root = "/");

}  // namespace octavo
