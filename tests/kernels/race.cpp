// A pool at work, for the thread sanitizer: what is shared is ordered by nothing but the pool. Exits 66 at a race.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "pool.h"

int main() {
  constexpr int kItems = 64, kPhases = 3, kRuns = 200;
  for (int threads = 1; threads <= 4; ++threads) {
    octavo::Pool pool(threads);
    std::vector<int64_t> items(kItems), copies(kItems);
    int64_t total = 0;
    for (int run = 0; run < kRuns; ++run) {
      pool.run([&](int worker, octavo::Pool& workers) {
        for (int phase = 0; phase < kPhases; ++phase) {
          for (int64_t i; !workers.behind(worker) && (i = workers.claim()) < kItems;) items[i] += i;
          workers.barrier(worker);
          for (int64_t i; !workers.behind(worker) && (i = workers.claim()) < kItems;) copies[i] = items[kItems - 1 - i];
          workers.barrier(worker);
          if (worker == 0) total += copies[0];
        }
      });
    }
    int64_t expected = 0;
    for (int step = 1; step <= kRuns * kPhases; ++step) expected += int64_t{step} * (kItems - 1);
    if (total != expected) {
      std::printf("%d threads: %lld, expected %lld\n", threads, (long long)total, (long long)expected);
      return 1;
    }
  }
  return 0;
}
