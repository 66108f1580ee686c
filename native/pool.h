// A small pool that runs numbered parts of one job at a time on a fixed number of threads.
#pragma once

#include <functional>

namespace ingle {

int pool_threads();
void set_pool_threads(int count);

// Runs work(0) .. work(parts - 1), in any order, on all threads, the caller's included; returns when
// all are done. Calls from several threads take turns.
void parallel(int parts, const std::function<void(int)>& work);

}  // namespace ingle
