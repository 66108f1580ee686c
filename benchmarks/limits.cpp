// What this machine can do at most: bytes read per second from memory, and multiply-adds per second out of
// registers. Build: g++ -O3 -march=native -pthread. Usage: limits THREADS. Prints one JSON object.

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

double seconds(int threads, const std::function<void(int)>& work) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> team;
  for (int i = 0; i < threads; ++i) team.emplace_back(work, i);
  for (auto& member : team) member.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

volatile float sink;

double read_bandwidth(int threads, const std::vector<float>& data) {
  const size_t part = data.size() / threads;
  const double time = seconds(threads, [&](int i) {
    const float* p = data.data() + i * part;
    float sums[64] = {};
    for (size_t at = 0; at + 64 <= part; at += 64)
      for (int j = 0; j < 64; ++j) sums[j] += p[at + j];
    for (float s : sums) sink = s;
  });
  return static_cast<double>(part) * threads * sizeof(float) / time;
}

constexpr long kRounds = 20'000'000;

#if defined(__AVX512BF16__)
constexpr const char* kPeakOf = "bf16";
double peak(int threads) {
  const double time = seconds(threads, [](int) {
    __m512 sums[12];  // all different, or the compiler keeps only one of them
    for (int j = 0; j < 12; ++j) sums[j] = _mm512_set1_ps(static_cast<float>(j));
    const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80)), b = a;
    for (long i = 0; i < kRounds; ++i)
      for (auto& s : sums) s = _mm512_dpbf16_ps(s, a, b);
    float total = 0;
    for (auto& s : sums) total += _mm512_reduce_add_ps(s);
    sink = total;
  });
  return kRounds * 12.0 * 64 * threads / time;
}
#else
constexpr const char* kPeakOf = "float32";
double peak(int threads) {
  const double time = seconds(threads, [](int) {
    __m256 sums[12];
    for (int j = 0; j < 12; ++j) sums[j] = _mm256_set1_ps(static_cast<float>(j));
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
    for (long i = 0; i < kRounds; ++i)
      for (auto& s : sums) s = _mm256_fmadd_ps(a, b, s);
    float total = 0;
    for (auto& s : sums) total += s[0];
    sink = total;
  });
  return kRounds * 12.0 * 16 * threads / time;
}
#endif

}  // namespace

int main(int, char** argv) {
  const int threads = std::max(1, std::atoi(argv[1]));
  const std::vector<float> data(size_t{64} << 20, 1.0f);  // 256 MiB: past any cache
  double bandwidth = 0, flops = 0;
  for (int i = 0; i < 5; ++i) {
    bandwidth = std::max(bandwidth, read_bandwidth(threads, data));
    if (i < 3) flops = std::max(flops, peak(threads));
  }
  std::printf("{\"read_gb_s\": %.1f, \"peak_gflop_s\": %.0f, \"peak_of\": \"%s\"}\n", bandwidth / 1e9, flops / 1e9, kPeakOf);
}
