#include "phases.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace ingle {
namespace {

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> out;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wide && __builtin_cpu_supports("avx512bf16")) out.push_back(&kernels_avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    out.push_back(&kernels_avx2);
#elif defined(__aarch64__)
  out.push_back(&kernels_neon);
#endif
  out.push_back(&kernels_portable);
  return out;
}

const std::vector<const Kernels*> tables = available();
std::atomic<const Kernels*> current{tables[0]};

}  // namespace

const Kernels& kernels() { return *current.load(); }

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Kernels* table : tables) names.emplace_back(table->name);
  return names;
}

void set_isa(const std::string& name) {
  for (const Kernels* table : tables)
    if (name == table->name) return current.store(table);
  throw std::invalid_argument("isa " + name + " is not available on this CPU");
}

Prepared::Prepared(Arena& arena, int rows, int k) {
  const long count = static_cast<long>(rows) * k;
  rows_ = arena.take<float>(count);
  halves_ = arena.take<unsigned short>(count);
  view_.x = rows_;
  view_.stride = k;
  view_.halves = halves_;
  view_.k = k;
  for (int level = 0; level < 4; ++level)
    view_.sums[level] = sums_[level] = arena.take<float>(static_cast<long>(rows) * (k >> (4 + level)));
}

void Prepared::set_row(const Kernels& kernels, int row, const float* x) {
  const int k = view_.k;
  if (x != this->row(row)) std::copy(x, x + k, this->row(row));
  float* sums[4];
  for (int level = 0; level < 4; ++level) sums[level] = sums_[level] + static_cast<long>(row) * (k >> (4 + level));
  kernels.prepare(this->row(row), k, halves_ + static_cast<long>(row) * k, sums);
}

void gated_products(Team& team, const Kernels& kernels, const Linear& gate, const Linear& up, Gate kind,
                    const Activations& in, int rows, float* out) {
  const int n = gate.n(), blocks = gate.packed->weight().blocks();
  const Split split(rows, blocks, team.size());
  team.parts(split.count(), [&](int i) {
    constexpr int kBlocks = 4, kColumns = kBlocks * kBlock;
    float sides[2][Split::kMostRows * kColumns];
    const Split::Part part = split[i];
    const int count = part.last_row - part.first_row;
    for (int from = part.first_block; from < part.last_block; from += kBlocks) {
      const int to = std::min(from + kBlocks, part.last_block), at = from * kBlock;
      const int columns = std::min(n, to * kBlock) - at;
      kernels.product(gate.packed->weight(), in, {part.first_row, count, from, to - from, sides[0], kColumns});
      kernels.product(up.packed->weight(), in, {part.first_row, count, from, to - from, sides[1], kColumns});
      for (int r = 0; r < count; ++r) {
        float *g = sides[0] + r * kColumns, *u = sides[1] + r * kColumns;
        if (gate.bias) kernels.add(g, gate.bias + at, 1.0f, columns, g);
        if (up.bias) kernels.add(u, up.bias + at, 1.0f, columns, u);
        kernels.gate(g, u, columns, kind, out + static_cast<long>(part.first_row + r) * n + at);
      }
    }
  });
}

float* thread_scratch(size_t count) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local size_t size = 0;
  if (count > size) {
    size = (count + 4095) / 4096 * 4096;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, size * sizeof(float))));
    if (!memory) throw std::bad_alloc();
  }
  return memory.get();
}

void angles(int position, const float* inv_freq, int half, float scale, float* cos, float* sin) {
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    cos[i] = std::cos(angle) * scale;
    sin[i] = std::sin(angle) * scale;
  }
}

std::vector<AttentionPart> attention_parts(const std::vector<Sequence>& sequences, const AttentionShape& shape,
                                           int threads) {
  const int group = shape.heads / shape.kv_heads;
  auto count = [&](int at_once) {
    long parts = 0;
    for (const Sequence& s : sequences) parts += static_cast<long>((s.length + at_once - 1) / at_once) * shape.kv_heads;
    return parts;
  };
  int at_once = 32;  // queries: many share each reading of the keys, unless that leaves the threads uneven work
  while (at_once > 8 && count(at_once) < 8L * threads) at_once /= 2;
  const long parts = count(at_once);
  // Heads of one key head share its reading, unless that leaves threads idle.
  const int together = parts >= threads ? group : 1;
  std::vector<AttentionPart> out;
  for (size_t i = 0; i < sequences.size(); ++i)
    for (int to = sequences[i].length; to > 0; to -= at_once)  // the longest first
      for (int head = 0; head < shape.heads; head += together)
        out.push_back({static_cast<int>(i), head, together, std::max(0, to - at_once), to});
  return out;
}

void attend(const Kernels& kernels, const AttentionPart& part, const Sequence& sequence, const AttentionShape& shape,
            const KVSpan& span, int layer, const int* ends, const float* q, long q_token, long q_head,
            float* out, long out_token, long out_head) {
  const int kv_head = part.head / (shape.heads / shape.kv_heads);
  AttentionJob job{};
  job.q = q + part.head * q_head, job.q_token = q_token, job.q_head = q_head;
  job.out = out + part.head * out_head, job.out_token = out_token, job.out_head = out_head;
  job.heads = part.heads, job.dim = shape.dim, job.from = part.from, job.to = part.to;
  job.blocks = span.blocks(), job.halves = span.shape().halves, job.base = span.base();
  job.keys_at = span.shape().keys_at(layer, kv_head), job.values_at = span.shape().values_at(layer, kv_head);
  job.offset = sequence.offset;
  job.window = shape.window, job.ends = ends, job.scale = shape.scale, job.softcap = shape.softcap;
  job.scratch = thread_scratch(attention_scratch(shape.dim, static_cast<long>(part.to - part.from) * part.heads));
  kernels.attention(job);
}

void with_prepared(const float* x, int rows, int k, long size,
                   const std::function<void(Team&, const Activations&)>& product) {
  const Kernels& kernels = ingle::kernels();
  Prepared prepared;
  run_together([&](Arena& arena) { prepared = Prepared(arena, rows, k); },
               [&](Team& team) {
                 each_row(team, rows, [&](int r) { prepared.set_row(kernels, r, x + static_cast<long>(r) * k); });
                 product(team, prepared.activations());
               },
               as_work(rows * size));
}

}  // namespace ingle
