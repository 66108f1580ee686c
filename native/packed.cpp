#include "packed.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "pool.h"

namespace ingle {
namespace {

std::atomic<size_t> live{0};

constexpr size_t kHugePage = size_t{2} << 20;

float from_f16(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, magnitude = (h & 0x7fffu) << 13;
  if (magnitude >= 0x7c00u << 13) return std::bit_cast<float>(sign | magnitude | 0x7f800000u);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f));
}

// The half-precision number equal to x, if there is one.
bool to_f16(float x, uint16_t& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000u;
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (!(magnitude < 65520.0f)) return false;
  // Exact where the result is a half: 2^-112 moves the exponent's bias from 127 to 15.
  out = static_cast<uint16_t>(sign | std::bit_cast<uint32_t>(magnitude * 0x1p-112f) >> 13);
  return std::bit_cast<uint32_t>(from_f16(out)) == bits;
}

// Reading and writing one lane's code at input k of a group.
void put_code(unsigned char* codes, int bits, int group, int lane, int k, unsigned code) {
  if (bits == 8) {
    codes[(k / 2) * 32 + lane * 2 + k % 2] = static_cast<unsigned char>(code - 128);
    return;
  }
  auto set = [&](long plane, int shift, unsigned value) {
    uint32_t word;
    std::memcpy(&word, codes + plane + lane * 4, 4);
    word |= value << shift;
    std::memcpy(codes + plane + lane * 4, &word, 4);
  };
  const int half = k % 2 * 16;
  set(k / 8 * 64, half + k % 8 / 2 * 4, code & 15);
  if (bits == 5) set(low_bytes(group) + k / 32 * 64, half + k % 32 / 2, code >> 4);
  if (bits == 6) set(low_bytes(group) + k / 16 * 64, half + k % 16 / 2 * 2, code >> 4);
}

unsigned get_code(const unsigned char* codes, int bits, int group, int lane, int k) {
  if (bits == 8) return static_cast<unsigned char>(codes[(k / 2) * 32 + lane * 2 + k % 2] + 128);
  auto word = [&](long plane) {
    uint32_t out;
    std::memcpy(&out, codes + plane + lane * 4, 4);
    return out;
  };
  const int half = k % 2 * 16;
  unsigned code = word(k / 8 * 64) >> (half + k % 8 / 2 * 4) & 15;
  if (bits == 5) code |= (word(low_bytes(group) + k / 32 * 64) >> (half + k % 32 / 2) & 1) << 4;
  if (bits == 6) code |= (word(low_bytes(group) + k / 16 * 64) >> (half + k % 16 / 2 * 2) & 3) << 4;
  return code;
}

unsigned stream_code(const unsigned char* row, long index, int bits) {
  const long bit = index * bits;
  unsigned value = row[bit / 8];
  if (bit % 8 + bits > 8) value |= row[bit / 8 + 1] << 8;
  return value >> (bit % 8) & ((1u << bits) - 1);
}

void put_scale(unsigned char* p, bool wide, int lane, float value) {
  if (wide) {
    std::memcpy(p + lane * 4, &value, 4);
  } else {
    uint16_t half = 0;
    to_f16(value, half);
    std::memcpy(p + lane * 2, &half, 2);
  }
}

float get_scale(const unsigned char* p, bool wide, int lane) {
  if (wide) {
    float value;
    std::memcpy(&value, p + lane * 4, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, p + lane * 2, 2);
  return from_f16(half);
}

}  // namespace

Packed::Packed(int n, int k, Form form, long block_bytes) {
  weight_.n = n;
  weight_.k = k;
  weight_.form = form;
  weight_.block_bytes = block_bytes;
  size_ = static_cast<size_t>(weight_.blocks()) * block_bytes;
  // Large weights in large pages: a decode step walks all of them.
  const size_t alignment = size_ >= kHugePage ? kHugePage : 64;
  const size_t room = (std::max<size_t>(size_, 1) + alignment - 1) / alignment * alignment;
  data_ = static_cast<unsigned char*>(std::aligned_alloc(alignment, room));
  if (!data_) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage) madvise(data_, room, MADV_HUGEPAGE);
#endif
  std::memset(data_, 0, size_);
  weight_.data = data_;
  live.fetch_add(size_);
}

Packed::~Packed() {
  std::free(data_);
  live.fetch_sub(size_);
}

size_t Packed::live_bytes() { return live.load(); }

std::shared_ptr<Packed> Packed::codes(const uint32_t* words, const float* scales, const float* biases, int n, int k,
                                      int bits, int group) {
  const int stored = bits <= 4 ? 4 : bits == 5 && group < 32 ? 6 : bits;
  const long pairs = static_cast<long>(n) * (k / group);
  const float zero = static_cast<float>(1 << (bits - 1));
  bool centred = true, narrow = true;
  for (long i = 0; i < pairs && (centred || narrow); ++i) {
    uint16_t half;
    centred = centred && biases[i] == -zero * scales[i];
    narrow = narrow && to_f16(scales[i], half) && to_f16(biases[i], half);
  }
  const bool shifted = !centred, wide = !narrow;
  const long scale_bytes = kBlock * (wide ? 4L : 2L), header = scale_bytes * (shifted ? 2 : 1);
  const long group_bytes = header + code_bytes(stored, group);
  std::shared_ptr<Packed> packed(new Packed(n, k, Form::codes, group_bytes * (k / group)));
  Weight& w = packed->weight_;
  w.bits = static_cast<unsigned char>(stored);
  w.shifted = shifted, w.wide = wide, w.group = group, w.zero = shifted ? 0.0f : zero;
  const auto* stream = reinterpret_cast<const unsigned char*>(words);
  const long row_bytes = static_cast<long>(k) * bits / 8;
  run_together([&](Team& team) {
    team.parts(w.blocks(), [&](int block) {
      for (int lane = 0; lane < std::min(kBlock, n - block * kBlock); ++lane) {
        const long row = static_cast<long>(block) * kBlock + lane;
        for (int g = 0; g < k / group; ++g) {
          unsigned char* base = packed->data_ + block * w.block_bytes + g * group_bytes;
          put_scale(base, wide, lane, scales[row * (k / group) + g]);
          if (shifted) put_scale(base + scale_bytes, wide, lane, biases[row * (k / group) + g]);
          for (int i = 0; i < group; ++i)
            put_code(base + header, stored, group, lane, i,
                     stream_code(stream + row * row_bytes, static_cast<long>(g) * group + i, bits));
        }
      }
    });
  }, static_cast<long>(n) * k);
  return packed;
}

std::shared_ptr<Packed> Packed::floats(const void* values, Form form, int n, int k) {
  const int size = form == Form::f32 ? 4 : 2;
  std::shared_ptr<Packed> packed(new Packed(n, k, form, static_cast<long>(k) * kBlock * size));
  const auto* in = static_cast<const unsigned char*>(values);
  run_together([&](Team& team) {
    team.parts(packed->weight_.blocks(), [&](int block) {
      unsigned char* out = packed->data_ + block * packed->weight_.block_bytes;
      for (int lane = 0; lane < std::min(kBlock, n - block * kBlock); ++lane) {
        const unsigned char* row = in + (static_cast<long>(block) * kBlock + lane) * k * size;
        for (long i = 0; i < k; ++i) std::memcpy(out + (i * kBlock + lane) * size, row + i * size, size);
      }
    });
  }, static_cast<long>(n) * k);
  return packed;
}

void Packed::read_row(int row, float factor, float* out) const {
  const Weight& w = weight_;
  const int lane = row % kBlock;
  const unsigned char* block = w.data + row / kBlock * w.block_bytes;
  if (w.form != Form::codes) {
    for (long i = 0; i < w.k; ++i) {
      const unsigned char* p = block + (i * kBlock + lane) * (w.form == Form::f32 ? 4 : 2);
      uint16_t half = 0;
      float value;
      if (w.form == Form::f32)
        std::memcpy(&value, p, 4);
      else
        std::memcpy(&half, p, 2);
      if (w.form == Form::f16) value = from_f16(half);
      if (w.form == Form::bf16) value = std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
      out[i] = value * factor;
    }
    return;
  }
  const long scale_bytes = kBlock * (w.wide ? 4L : 2L), header = scale_bytes * (w.shifted ? 2 : 1);
  for (int g = 0; g < w.k / w.group; ++g, block += header + code_bytes(w.bits, w.group)) {
    const float scale = get_scale(block, w.wide, lane);
    const float bias = w.shifted ? get_scale(block + scale_bytes, w.wide, lane) : scale * -w.zero;
    for (int i = 0; i < w.group; ++i) {
      const float code = static_cast<float>(get_code(block + header, w.bits, w.group, lane, i));
      out[g * w.group + i] = (scale * code + bias) * factor;
    }
  }
}

}  // namespace ingle
