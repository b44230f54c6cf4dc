#include "allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace octavo {
namespace {
std::atomic<int64_t> count{0};
}
int64_t allocations() { return count.load(std::memory_order_relaxed); }
}  // namespace octavo

// The standard's own way to watch the heap: containers and `new` of this library end here. malloc is not called
// directly anywhere in it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

void* operator new(size_t bytes) {
  octavo::count.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  octavo::count.fetch_add(1, std::memory_order_relaxed);
  const size_t unit = static_cast<size_t>(alignment);
  if (void* p = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

#endif
