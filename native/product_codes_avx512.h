// Products with codes on AVX-512 BF16. Codes of 4 to 6 bits become exact bfloat16 in one table look-up;
// pairs of them meet pairs of activations in vdpbf16ps, which sums in float32. (Included by product.h.)

// Code c of a table of 32: c - zero, in bfloat16.
inline __m512i code_table(float zero, int first) {
  unsigned short t[32];
  for (int c = 0; c < 32; ++c) t[c] = to_bf16(static_cast<float>(c + first) - zero);
  return _mm512_loadu_si512(t);
}

// The eight vectors of one run of 16 inputs: pair q (inputs 2q, 2q + 1) of every lane.
template <int BITS>
struct Decoder {
  __m512i low, high;  // tables
  const __m512i mask = _mm512_set1_epi16(BITS == 5 ? 0x10 : 0x30);

  explicit Decoder(float zero) : low(code_table(zero, 0)), high(low) {
    if constexpr (BITS == 4) low = high = table_of_16(zero);
    if constexpr (BITS == 6) high = code_table(zero, 32);
  }

  static __m512i table_of_16(float zero) {  // twice: the look-up reads five bits, the fifth is a neighbour's
    unsigned short t[32];
    for (int c = 0; c < 32; ++c) t[c] = to_bf16(static_cast<float>(c % 16) - zero);
    return _mm512_loadu_si512(t);
  }

  template <int PAIR>
  inline __m512i look_up(__m512i words, __m512i more) const {
    constexpr int kShift = 4 * (PAIR % 4);
    const __m512i index = kShift ? _mm512_srli_epi16(words, kShift) : words;
    if constexpr (BITS == 4) {
      return _mm512_permutexvar_epi16(index, low);
    } else if constexpr (BITS == 5) {
      const __m512i bit = PAIR < 4 ? _mm512_slli_epi16(more, 4 - PAIR) : _mm512_srli_epi16(more, PAIR - 4);
      return _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(mask, bit, index, 0xCA), low);
    } else {
      const __m512i bit = PAIR < 2 ? _mm512_slli_epi16(more, 4 - 2 * PAIR) : _mm512_srli_epi16(more, 2 * PAIR - 4);
      return _mm512_permutex2var_epi16(low, _mm512_ternarylogic_epi32(mask, bit, index, 0xCA), high);
    }
  }
};

constexpr int kAhead = 4096;  // bytes of codes to fetch before they are met, where memory is the bound

inline __m512bh pair_of(const unsigned short* x) {
  int both;
  __builtin_memcpy(&both, x, 4);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
}

// The sums of one group: ROWS rows by BLOCKS blocks. Each pair of activations is loaded once for all blocks.
template <int BITS, int ROWS, int BLOCKS>
struct CodesGroup {
  const unsigned char* codes[BLOCKS];
  const unsigned short* x;
  long stride;
  Floats part[ROWS][BLOCKS];

  [[gnu::always_inline]] inline void meet(const __m512i (&pairs)[BLOCKS], int at) {
    for (int r = 0; r < ROWS; ++r) {
      const __m512bh in = pair_of(x + r * stride + at);
      for (int b = 0; b < BLOCKS; ++b)
        part[r][b] = _mm512_dpbf16_ps(part[r][b], reinterpret_cast<__m512bh>(pairs[b]), in);
    }
  }

  // Asks for codes well before they are met, where few rows make memory the bound.
  [[gnu::always_inline]] static inline void fetch_ahead(const unsigned char* p, int bytes) {
    if constexpr (ROWS <= 8)
      for (int i = 0; i < bytes; i += 64) _mm_prefetch(p + kAhead + i, _MM_HINT_T0);
  }

  template <int PAIR>
  [[gnu::always_inline]] inline void meet_codes(const Decoder<BITS>& decode, const __m512i (&words)[BLOCKS], const __m512i (&more)[BLOCKS],
                         int at) {
    __m512i pairs[BLOCKS];
    for (int b = 0; b < BLOCKS; ++b) pairs[b] = decode.template look_up<PAIR>(words[b], more[b]);
    meet(pairs, at + 2 * PAIR);
  }

  // Inputs [at, at + 16) of the group.
  [[gnu::always_inline]] inline void run(const Decoder<BITS>& decode, int group, int at) {
    __m512i first[BLOCKS], second[BLOCKS], more[BLOCKS] = {};
    for (int b = 0; b < BLOCKS; ++b) {
      const unsigned char* low = codes[b] + at * 8;
      fetch_ahead(low, 128);
      first[b] = _mm512_loadu_si512(low);
      second[b] = _mm512_loadu_si512(low + 64);
      const unsigned char* high = codes[b] + low_bytes(group);
      if constexpr (BITS == 5) {
        more[b] = _mm512_loadu_si512(high + (at / 32) * 64);
        if (at & 16) more[b] = _mm512_srli_epi16(more[b], 8);
      }
      if constexpr (BITS == 6) more[b] = _mm512_loadu_si512(high + (at / 16) * 64);
    }
    meet_codes<0>(decode, first, more, at);
    meet_codes<1>(decode, first, more, at);
    meet_codes<2>(decode, first, more, at);
    meet_codes<3>(decode, first, more, at);
    meet_codes<4>(decode, second, more, at);
    meet_codes<5>(decode, second, more, at);
    meet_codes<6>(decode, second, more, at);
    meet_codes<7>(decode, second, more, at);
  }

  // The same for signed bytes.
  [[gnu::always_inline]] inline void run_bytes(int at) {
    for (int b = 0; b < BLOCKS; ++b) fetch_ahead(codes[b] + at * 16, 256);
    for (int pair = 0; pair < 8; ++pair) {
      __m512i pairs[BLOCKS];
      for (int b = 0; b < BLOCKS; ++b) {
        const unsigned char* p = codes[b] + at * 16 + pair * 32;
        const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(p)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(p + 16)));
        pairs[b] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      }
      meet(pairs, at + 2 * pair);
    }
  }
};

template <int BITS, int ROWS, int BLOCKS, bool SHIFTED, bool WIDE>
void codes_tile_of(const Weight& w, const Activations& in, const Patch& at) {
  constexpr int kTableBits = BITS == 8 ? 4 : BITS;  // bytes need no table
  const Groups groups(w, in);
  const Decoder<kTableBits> decode(w.zero);
  CodesGroup<kTableBits, ROWS, BLOCKS> group;
  group.stride = in.k;
  Floats total[ROWS][BLOCKS] = {};
  const unsigned char* block = w.data + at.block * w.block_bytes;
  const float* sums = groups.sums + static_cast<long>(at.row) * groups.count;
  group.x = in.halves + static_cast<long>(at.row) * in.k;
  for (int g = 0; g < groups.count; ++g, block += groups.bytes, group.x += groups.size) {
    for (int b = 0; b < BLOCKS; ++b) {
      group.codes[b] = block + b * w.block_bytes + groups.header;
      for (int r = 0; r < ROWS; ++r) group.part[r][b] = Floats{};
    }
    for (int k = 0; k < groups.size; k += 16)
      if constexpr (BITS == 8)
        group.run_bytes(k);
      else
        group.run(decode, groups.size, k);
    for (int b = 0; b < BLOCKS; ++b) {
      Floats scale, bias;
      load_scales<WIDE>(block + b * w.block_bytes, &scale);
      if constexpr (SHIFTED) {
        load_scales<WIDE>(block + b * w.block_bytes + groups.scale_bytes, &bias);
        if constexpr (BITS == 8) bias = fma(scale, all(128.0f), bias);
      }
      for (int r = 0; r < ROWS; ++r) {
        total[r][b] = fma(group.part[r][b], scale, total[r][b]);
        if constexpr (SHIFTED)
          total[r][b] = fma(bias, all(sums[static_cast<long>(r) * groups.count + g]), total[r][b]);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int b = 0; b < BLOCKS; ++b)
      store_lanes(at.out + r * at.stride + b * kLanes, &total[r][b], w.n - (at.block + b) * kLanes);
}

template <int BITS, int ROWS, int BLOCKS>
void codes_tile(const Weight& w, const Activations& in, const Patch& at) {
  if (w.shifted)
    return w.wide ? codes_tile_of<BITS, ROWS, BLOCKS, true, true>(w, in, at)
                  : codes_tile_of<BITS, ROWS, BLOCKS, true, false>(w, in, at);
  return w.wide ? codes_tile_of<BITS, ROWS, BLOCKS, false, true>(w, in, at)
                : codes_tile_of<BITS, ROWS, BLOCKS, false, false>(w, in, at);
}
