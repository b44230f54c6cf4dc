// The kernels' threads: all workers run one function together, meet at barriers, and share work. Knows no kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace octavo {

// A number that only changes forward, and threads that wait until something is so: they spin for a while (a step's
// phases are shorter than a wake-up), then sleep (so that an idle engine costs nothing and an oversubscribed one goes
// on).
class Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void open();  // value + 1; wakes who sleeps
  // Until done() is true, which must become so before open() is called.
  template <class Done>
  void wait(Done&& done) {
    if (spin([](void* d) { return (*static_cast<Done*>(d))(); }, &done)) return;
    sleepers_.fetch_add(1);
    for (uint32_t seen = value_.load(); !done(); seen = value_.load()) sleep(seen);
    sleepers_.fetch_sub(1);
  }

 private:
  static bool spin(bool (*done)(void*), void* argument);
  void sleep(uint32_t value);

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// `threads` workers, of which worker 0 is whoever calls run(). One run at a time; run() allocates nothing.
//
// A run waits only for workers that have joined it. One whose processor is busy with another process wakes late: it
// then joins in the phase that the others have reached, and if it does not wake at all, they do its work. So all work
// must be claimed, and none divided beforehand.
class Pool {
 public:
  explicit Pool(int threads);  // below 1 counts as 1
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls fn(worker, pool) on worker 0 and on those that join, and returns when all have returned; what each wrote is
  // then visible. fn must not throw. Rounding and denormals are the default ones inside, whatever the caller's are.
  template <class F>
  void run(F&& fn) {
    using Fn = std::remove_reference_t<F>;
    call([](void* f, int worker, Pool& pool) { (*static_cast<Fn*>(f))(worker, pool); },
         const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Inside run(): returns when all workers have come here; what they wrote before is then visible to all. Every
  // worker must come equally often; for one that is behind, it only counts.
  void barrier(int worker);

  // Inside run(): whether the others have passed this phase before this worker joined. It must then do nothing but
  // come to the next barrier.
  bool behind(int worker) const { return missed_[static_cast<size_t>(worker)].count > 0; }

  // Inside run(): the first of `count` numbers that nobody else has got since the last barrier (or the start of the
  // run), counted from 0. The caller compares with its total.
  int64_t claim(int64_t count = 1) {
    return next_[state_.load(std::memory_order_relaxed) >> 32 & 1].value.fetch_add(count, std::memory_order_relaxed);
  }

 private:
  using Call = void (*)(void*, int, Pool&);
  struct alignas(64) Next {
    std::atomic<int64_t> value{0};
  };
  struct alignas(64) Missed {
    uint32_t count = 0;
  };
  void call(Call fn, void* argument);
  void work(int worker);
  bool join(int worker);
  bool arrive(bool last);
  void wait_for_phase_after(uint32_t phase);

  const int threads_;
  Call fn_ = nullptr;
  void* argument_ = nullptr;
  uint32_t first_phase_ = 0;       // of the run
  std::atomic<bool> ends_{false};  // a worker that woke late for an earlier run may look just then
  alignas(64) Gate start_;
  alignas(64) Gate phase_;
  alignas(64) std::atomic<uint64_t> state_{0};  // phase (32 bits), joined (16; 0: no run), arrived (16)
  Next next_[2];                                // of even and of odd phases
  std::vector<Missed> missed_;
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
