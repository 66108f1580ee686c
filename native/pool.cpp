// Workers spin for a moment after each job, because the next product of a decode step comes within
// microseconds, and then sleep on a condition variable.

#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ingle {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
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

  void run(int parts, const std::function<void(int)>& work) {
    if (workers_.empty() || parts <= 1) {
      for (int i = 0; i < parts; ++i) work(i);
      return;
    }
    work_ = &work;
    parts_ = parts;
    next_.store(0);
    busy_.store(static_cast<int>(workers_.size()));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      round_.fetch_add(1);
    }
    wake_.notify_all();
    drain();
    while (busy_.load() > 0) std::this_thread::yield();  // `work` must outlive every worker's use
  }

 private:
  void drain() {
    for (int i; (i = next_.fetch_add(1)) < parts_;) (*work_)(i);
  }

  void serve() {
    for (unsigned long seen = 0;;) {
      seen = wait_for_round(seen);
      if (stopping_.load()) return;
      drain();
      busy_.fetch_sub(1);
    }
  }

  unsigned long wait_for_round(unsigned long seen) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64; ++i)
        if (round_.load() != seen) return round_.load();
    } while (std::chrono::steady_clock::now() < deadline);
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return round_.load() != seen; });
    return round_.load();
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned long> round_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> next_{0}, busy_{0};
  const std::function<void(int)>* work_ = nullptr;
  int parts_ = 0;
};

std::mutex turn;  // guards everything below, and jobs take turns
int wanted = 0;
// Never destroyed: worker threads may outlive static destruction order at exit.
std::unique_ptr<Pool>* pool = new std::unique_ptr<Pool>();

int wanted_threads() {
  if (wanted == 0) wanted = std::max(1u, std::thread::hardware_concurrency());
  return wanted;
}

}  // namespace

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

void parallel(int parts, const std::function<void(int)>& work) {
  std::lock_guard<std::mutex> lock(turn);
  if (!*pool) *pool = std::make_unique<Pool>(wanted_threads());
  (*pool)->run(parts, work);
}

}  // namespace ingle
