#include "pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace octavo {
namespace {

// Long enough for the gaps between phases, short against a scheduler's time slice. Spinning without end has been
// seen to fall from 26 tokens/s to 0.12 when there are more threads than processors.
constexpr auto kSpin = std::chrono::microseconds(40);

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The default floating-point environment for as long as this lives: every worker must round alike.
class FloatMode {
 public:
  FloatMode() : saved_(get()) { set(kDefault); }
  ~FloatMode() { set(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kDefault = 0x1f80;  // nearest even, denormals kept, no traps
  static uint64_t get() { return _mm_getcsr(); }
  static void set(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;
  static uint64_t get() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
  static constexpr uint64_t kDefault = 0;
  static uint64_t get() { return 0; }
  static void set(uint64_t) {}
#endif
  const uint64_t saved_;
};

#if defined(__linux__)

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  static_assert(sizeof(word) == sizeof(uint32_t), "a futex is the word itself");
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

#else

// One pair for all gates: sleepers are few, and a wake-up for another gate only makes them look again.
std::mutex sleep_mutex;
std::condition_variable sleep_condition;

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  std::unique_lock<std::mutex> lock(sleep_mutex);
  sleep_condition.wait(lock, [&] { return word.load() != value; });
}
void wake_all(std::atomic<uint32_t>&) {
  {
    std::lock_guard<std::mutex> lock(sleep_mutex);
  }  // nobody is between looking and sleeping
  sleep_condition.notify_all();
}

#endif

}  // namespace

// A waiter says that it sleeps before it looks a last time; the opener moves the number before it asks who sleeps.
// Both in the one order of sequentially consistent operations, so one of them sees the other.
void Gate::open() {
  value_.fetch_add(1);
  if (sleepers_.load() != 0) wake_all(value_);
}

bool Gate::spin(bool (*done)(void*), void* argument) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done(argument)) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

void Gate::sleep(uint32_t value) { sleep_while(value_, value); }

namespace {

constexpr uint64_t kOneJoined = uint64_t{1} << 16, kOnePhase = uint64_t{1} << 32;
uint32_t phase_of(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
uint32_t joined_of(uint64_t state) { return static_cast<uint32_t>(state >> 16 & 0xffff); }
uint32_t arrived_of(uint64_t state) { return static_cast<uint32_t>(state & 0xffff); }
uint64_t without_counts(uint64_t state) { return state >> 32 << 32; }

}  // namespace

Pool::Pool(int threads) : threads_(std::max(threads, 1)), missed_(static_cast<size_t>(threads_)) {
  workers_.reserve(static_cast<size_t>(threads_ - 1));
  for (int i = 1; i < threads_; ++i) workers_.emplace_back(&Pool::work, this, i);
}

Pool::~Pool() {
  ends_.store(true);
  start_.open();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::call(Call fn, void* argument) {
  const FloatMode mode;
  const uint64_t state = state_.load(std::memory_order_relaxed);
  fn_ = fn;
  argument_ = argument;
  first_phase_ = phase_of(state);
  next_[first_phase_ & 1].value.store(0, std::memory_order_relaxed);
  state_.store(without_counts(state) + kOneJoined, std::memory_order_release);
  if (threads_ > 1) start_.open();
  fn(argument, 0, *this);
  const uint32_t phase = phase_of(state_.load(std::memory_order_relaxed));
  if (!arrive(true)) wait_for_phase_after(phase);
}

void Pool::work(int worker) {
  for (uint32_t seen = 0;;) {
    start_.wait([&] { return start_.value() != seen; });
    seen = start_.value();
    if (ends_.load()) return;
    if (!join(worker)) continue;
    const FloatMode mode;
    fn_(argument_, worker, *this);
    arrive(true);
  }
}

// Becomes one of those that the phase waits for, if there is a run.
bool Pool::join(int worker) {
  uint64_t state = state_.load(std::memory_order_acquire);
  do {
    if (!joined_of(state)) return false;
  } while (
      !state_.compare_exchange_weak(state, state + kOneJoined, std::memory_order_acq_rel, std::memory_order_acquire));
  missed_[static_cast<size_t>(worker)].count = phase_of(state) - first_phase_;
  return true;
}

// Says that this worker's part of the phase is done, or of the run if it is its `last` phase. True if all others' are,
// too: the next phase has then begun, or the run has ended.
bool Pool::arrive(bool last) {
  uint64_t state = state_.load(std::memory_order_acquire), after;
  do {
    const bool all = arrived_of(state) + 1 == joined_of(state);
    after = state + 1;
    if (all) {
      after = without_counts(state) + kOnePhase + (last ? 0 : joined_of(state) * kOneJoined);
      // Nobody claims of the next phase yet; and if another worker joins right now, this is done again.
      next_[phase_of(after) & 1].value.store(0, std::memory_order_relaxed);
    }
  } while (!state_.compare_exchange_weak(state, after, std::memory_order_acq_rel, std::memory_order_acquire));
  if (phase_of(after) == phase_of(state)) return false;
  phase_.open();
  return true;
}

void Pool::wait_for_phase_after(uint32_t phase) {
  phase_.wait([&] { return phase_of(state_.load(std::memory_order_acquire)) != phase; });
}

void Pool::barrier(int worker) {
  uint32_t& missed = missed_[static_cast<size_t>(worker)].count;
  if (missed) {
    --missed;
    return;
  }
  const uint32_t phase = phase_of(state_.load(std::memory_order_relaxed));
  if (!arrive(false)) wait_for_phase_after(phase);
}

namespace {

int bound_processors() {
#if defined(__linux__)
  for (int processors = 1024; processors <= (1 << 20); processors *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(processors));
    const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(processors));
    const bool ok = set && sched_getaffinity(0, size, set) == 0;
    const int count = ok ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (ok) return count;
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The least quota, in processors, from `group` up to the root of its hierarchy; infinity where there is none.
double quota_of(const std::string& mount, std::string group, bool version2) {
  double least = std::numeric_limits<double>::infinity();
  for (;;) {
    const std::string folder = mount + group;
    double quota = -1, period = 0;
    if (version2) {
      std::ifstream file(folder + "/cpu.max");  // "max 100000" or "150000 100000"
      if (!(file >> quota >> period)) quota = -1;
    } else {
      std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
      if (!(quota_file >> quota) || !(period_file >> period)) quota = -1;
    }
    if (quota > 0 && period > 0) least = std::min(least, quota / period);
    if (group.empty()) return least;
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
}

double group_quota(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  std::ifstream groups(root + "proc/self/cgroup");  // "0::/path", or "4:cpu,cpuacct:/path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (!group.empty() && group.back() == '/') group.pop_back();
    if (controllers.empty()) {
      least = std::min(least, quota_of(root + "sys/fs/cgroup", group, true));
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');)
      if (name == "cpu") least = std::min(least, quota_of(root + "sys/fs/cgroup/cpu", group, false));
  }
  return least;
}

}  // namespace

int default_threads(const std::string& root) {
  const double quota = std::ceil(group_quota(root));
  const int bound = std::max(bound_processors(), 1);
  return quota < bound ? std::max(static_cast<int>(quota), 1) : bound;
}

}  // namespace octavo
