// After each program workers wait for the next by spinning, because a decode step brings one after the
// other: a moment without pause, then giving way to other threads, then asleep on a condition variable.

#include "pool.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace ingle {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20), kYield = std::chrono::microseconds(1500);

constexpr int kPatience = 2048;          // pauses before a waiting thread gives way: some 20 us
constexpr long kWorthSharing = 1 << 15;  // elements: some ten microseconds of work

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// Which core runs each member of a team. The scheduler likes to wake a thread on the core of the one that
// woke it; two members on one core then take turns of milliseconds while another core idles.
class Places {
 public:
  explicit Places(int members) : cores_(members) {
    for (auto& core : cores_) core.store(-1);
#if defined(__linux__)
    sched_getaffinity(0, sizeof allowed_, &allowed_);
#endif
  }

  // The member says where it is, and moves on if an earlier one is there.
  void settle(int member) {
#if defined(__linux__)
    const int here = sched_getcpu();
    cores_[member].store(here, std::memory_order_relaxed);
    for (int i = 0; i < member; ++i)
      if (cores_[i].load(std::memory_order_relaxed) == here) return move(member);
#endif
  }

 private:
#if defined(__linux__)
  void move(int member) {
    cpu_set_t others = allowed_;
    for (int i = 0; i < static_cast<int>(cores_.size()); ++i)
      if (const int core = cores_[i].load(std::memory_order_relaxed); core >= 0) CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) return;  // more members than cores
    sched_setaffinity(0, sizeof others, &others);
    sched_setaffinity(0, sizeof allowed_, &allowed_);
    cores_[member].store(sched_getcpu(), std::memory_order_relaxed);
  }

  cpu_set_t allowed_;
#endif
  std::vector<std::atomic<int>> cores_;
};

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads), places_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_.store(true);
      round_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  void run(const std::function<void(Team&)>& program) {
    Team team(threads_);
    if (!workers_.empty()) {
      team_ = &team;
      program_ = &program;
      places_.settle(0);
      busy_.store(static_cast<int>(workers_.size()));
      {
        std::lock_guard<std::mutex> lock(mutex_);
        round_.fetch_add(1);
      }
      wake_.notify_all();
    }
    program(team);
    for (int spins = 0; busy_.load() > 0;)  // team and program must outlive every worker's use
      if (++spins < kPatience)
        relax();
      else
        std::this_thread::yield();
  }

 private:
  void serve(int member) {
    for (unsigned long seen = 0;;) {
      seen = wait_for_round(seen);
      if (stopping_.load()) return;
      places_.settle(member);
      (*program_)(*team_);
      busy_.fetch_sub(1);
    }
  }

  unsigned long wait_for_round(unsigned long seen) {
    const auto start = std::chrono::steady_clock::now();
    for (auto now = start; now < start + kYield; now = std::chrono::steady_clock::now()) {
      for (int i = 0; i < 64; ++i) {
        if (round_.load() != seen) return round_.load();
        relax();
      }
      if (now > start + kSpin) std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return round_.load() != seen; });
    return round_.load();
  }

  const int threads_;
  Places places_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned long> round_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> busy_{0};
  const std::function<void(Team&)>* program_ = nullptr;
  Team* team_ = nullptr;
};

std::mutex turn;  // guards everything below, and programs take turns
int wanted = 0;
// Never destroyed: worker threads may outlive static destruction order at exit.
auto* pool = new std::unique_ptr<Pool>();
auto* arena = new Arena();

int wanted_threads() {
  if (wanted == 0) wanted = std::max(1u, std::thread::hardware_concurrency());
  return wanted;
}

}  // namespace

void Team::meet() {
  const unsigned phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase;)
    if (++spins < kPatience)
      relax();
    else
      std::this_thread::yield();  // a member has lost its core
}

Arena::~Arena() {
  while (chunks_) {
    Chunk* next = chunks_->next;
    std::free(chunks_->data);
    delete chunks_;
    chunks_ = next;
  }
}

void* Arena::bytes(size_t size) {
  size = (size + 63) / 64 * 64;
  if (used_ == 0 && wanted_ == 0)  // first since `reset`: only the newest, largest chunk stays
    while (chunks_ && chunks_->next) {
      Chunk* old = chunks_->next;
      chunks_->next = old->next;
      held_ -= old->size;
      std::free(old->data);
      delete old;
    }
  wanted_ += size;
  if (!chunks_ || used_ + size > chunks_->size) {
    const size_t room = std::max(wanted_ * 2, size_t{1} << 20);
    auto* data = static_cast<char*>(std::aligned_alloc(64, (room + 63) / 64 * 64));
    if (!data) throw std::bad_alloc();
    chunks_ = new Chunk{data, room, chunks_};
    held_ += room;
    used_ = 0;
  }
  void* out = chunks_->data + used_;
  used_ += size;
  return out;
}

int pool_threads() {
  std::lock_guard<std::mutex> lock(turn);
  return wanted_threads();
}

void set_pool_threads(int count) {
  std::lock_guard<std::mutex> lock(turn);
  if (count == wanted) return;
  wanted = count;
  pool->reset();
}

size_t arena_bytes() {
  std::lock_guard<std::mutex> lock(turn);
  return arena->held();
}

void run_together(const std::function<void(Arena&)>& prepare, const std::function<void(Team&)>& program, long work) {
  std::lock_guard<std::mutex> lock(turn);
  arena->reset();
  prepare(*arena);
  if (work < kWorthSharing) {
    Team alone(1);
    program(alone);
    return;
  }
  if (!*pool) *pool = std::make_unique<Pool>(wanted_threads());
  (*pool)->run(program);
}

void run_together(const std::function<void(Team&)>& program, long work) {
  if (work < kWorthSharing) {
    Team alone(1);
    program(alone);
  } else {
    run_together([](Arena&) {}, program, work);
  }
}

}  // namespace ingle
