// A small pool whose threads run one program together, phase by phase.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace ingle {

// The threads of one program. Every member calls the same methods in the same order.
class Team {
 public:
  explicit Team(int size) : size_(size) {}

  int size() const { return size_; }

  // Runs work(0) .. work(count - 1), each once, on whichever member is free; returns when all are done.
  template <class Work>
  void parts(int count, const Work& work) {
    if (size_ == 1) {
      for (int i = 0; i < count; ++i) work(i);
      return;
    }
    for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
    meet();
  }

 private:
  void meet();  // a barrier; the last to arrive deals the parts anew

  const int size_;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

int pool_threads();
void set_pool_threads(int count);
size_t arena_bytes();  // that programs hold between runs

// Memory that programs share and reuse from run to run; valid until the next `take`s after `reset`.
class Arena {
 public:
  void reset() { used_ = 0, wanted_ = 0; }

  // `count` elements, aligned to 64 bytes, holding anything.
  template <class T>
  T* take(size_t count) {
    return static_cast<T*>(bytes(count * sizeof(T)));
  }

  ~Arena();
  size_t held() const { return held_; }

 private:
  void* bytes(size_t size);

  struct Chunk {
    char* data;
    size_t size;
    Chunk* next;
  };
  Chunk* chunks_ = nullptr;  // the first is the one in use
  size_t used_ = 0, wanted_ = 0, held_ = 0;
};

// Runs `program` on all threads of the pool, the caller's included; on the caller alone where `work`, about how
// many elements are computed, is little. Programs of several callers take turns. `prepare` runs on the
// caller, before the others start; what it takes from the arena is the program's own.
void run_together(const std::function<void(Arena&)>& prepare, const std::function<void(Team&)>& program, long work);

// The same without memory.
void run_together(const std::function<void(Team&)>& program, long work);

// Multiplications of a product in elements.
constexpr long as_work(long multiplications) { return multiplications / 8; }

}  // namespace ingle
