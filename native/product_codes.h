// Products with codes where there is no bfloat16 arithmetic: codes become floats, one multiply-add for
// each code and row. (Included by product.h.)

// Code of every lane at input `at` of the group, less 128 for 8 bits.
template <int BITS>
inline void decode_at(const unsigned char* codes, int group, int at, Floats* out) {
  for (int i = 0; i < kParts; ++i) {
    if constexpr (BITS == 8) {
      typedef signed char Bytes __attribute__((vector_size(kWidth * 2)));
      const Bytes both = load<Bytes>(codes + (at / 2) * 32 + i * kWidth * 2);
      typedef short Shorts __attribute__((vector_size(kWidth * 4)));
      const Ints pairs = reinterpret_cast<Ints>(__builtin_convertvector(both, Shorts));
      out[i] = __builtin_convertvector(at & 1 ? pairs >> 16 : (pairs << 16) >> 16, Floats);
    } else {
      const int half = (at & 1) * 16, within = at % 8 / 2;
      const Ints words = load<Ints>(codes + (at / 8) * 64 + i * kWidth * 4);
      Ints code = (words >> (half + 4 * within)) & 15;
      if constexpr (BITS == 5) {
        const Ints more = load<Ints>(codes + low_bytes(group) + (at / 32) * 64 + i * kWidth * 4);
        code |= ((more >> (half + at % 32 / 2)) & 1) << 4;
      }
      if constexpr (BITS == 6) {
        const Ints more = load<Ints>(codes + low_bytes(group) + (at / 16) * 64 + i * kWidth * 4);
        code |= ((more >> (half + at % 16 / 2 * 2)) & 3) << 4;
      }
      out[i] = __builtin_convertvector(code, Floats);
    }
  }
}

template <int BITS, int ROWS, int BLOCKS>
void codes_tile(const Weight& w, const Activations& in, const Patch& at) {
  static_assert(BLOCKS == 1);
  const Groups groups(w, in);
  Floats total[ROWS][kParts] = {};
  const unsigned char* block = w.data + at.block * w.block_bytes;
  const float* x = in.x + at.row * in.stride;
  const float* sums = groups.sums + static_cast<long>(at.row) * groups.count;
  const float zero = BITS == 8 ? 0.0f : w.zero;
  const bool corrected = w.shifted || zero != 0.0f;
  for (int g = 0; g < groups.count; ++g, block += groups.bytes, x += groups.size) {
    Floats part[ROWS][kParts] = {};
    for (int k = 0; k < groups.size; k += 8)
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        Floats code[kParts];
        decode_at<BITS>(block + groups.header, groups.size, k + j, code);
        for (int r = 0; r < ROWS; ++r)
          for (int i = 0; i < kParts; ++i) part[r][i] = fma(code[i], all(x[r * in.stride + k + j]), part[r][i]);
      }
    Floats scale[kParts], bias[kParts] = {};
    if (w.wide) {
      load_scales<true>(block, scale);
      if (w.shifted) load_scales<true>(block + groups.scale_bytes, bias);
    } else {
      load_scales<false>(block, scale);
      if (w.shifted) load_scales<false>(block + groups.scale_bytes, bias);
    }
    for (int i = 0; i < kParts; ++i) {
      if (w.shifted && BITS == 8) bias[i] = fma(scale[i], all(128.0f), bias[i]);
      if (zero != 0.0f) bias[i] = scale[i] * -zero;
      for (int r = 0; r < ROWS; ++r) {
        total[r][i] = fma(part[r][i], scale[i], total[r][i]);
        if (corrected) total[r][i] = fma(bias[i], all(sums[static_cast<long>(r) * groups.count + g]), total[r][i]);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r) store_lanes(at.out + r * at.stride, total[r], w.n - at.block * kLanes);
}
