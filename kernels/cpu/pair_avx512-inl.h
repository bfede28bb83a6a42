// SPDX-License-Identifier: Apache-2.0
//
// Avx512Pairs: the vectors of attention in pairs and in tiles of bf16 by AVX-512 BF16.
//
// Included between HWY_PUSH_ATTRIBUTES and HWY_POP_ATTRIBUTES of these instruction sets, behind
// <immintrin.h>.

#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/pair_values-inl.h"
#include "kernels/pair_math.h"

namespace lamina::kernels::internal {
namespace {

struct Avx512Pairs {
  static constexpr const char* kName = "pairs/AVX512_BF16";
  using Floats = __m512;
  using Words = __m512i;

  static HWY_INLINE Floats Zero() { return _mm512_setzero_ps(); }
  static HWY_INLINE Floats Set(float x) { return _mm512_set1_ps(x); }
  static HWY_INLINE Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  static HWY_INLINE void Store(Floats x, float* to) { _mm512_storeu_ps(to, x); }
  static HWY_INLINE Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static HWY_INLINE Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }

  static HWY_INLINE Words Broadcast(uint32_t word) {
    return _mm512_set1_epi32(static_cast<int>(word));
  }
  static HWY_INLINE Words LoadWords(const void* from) { return _mm512_loadu_si512(from); }
  static HWY_INLINE Words LoadHalf(const void* from) {
    return _mm512_zextsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static HWY_INLINE void StoreWords(Words words, uint32_t* to) { _mm512_storeu_si512(to, words); }

  static HWY_INLINE Floats Step(Floats sums, Words a, Words b) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  // A line of a tile of K, four tokens' even elements before their odd ones, to pairs.
  static HWY_INLINE Words PairsOfLine(Words line) {
    const __m512i places = _mm512_set4_epi32(0x0f0e0706, 0x0d0c0504, 0x0b0a0302, 0x09080100);
    return _mm512_shuffle_epi8(line, places);
  }
  // PairsOfLine() of a line in memory, in one instruction of which the load is a part: a register
  // and an instruction less for each line leave the processor more lines to look ahead to. Intel's
  // cores make two operations of it.
  static HWY_INLINE Words PairsOfLineAt(const void* line) {
    const __m512i places =
        _mm512_set_epi16(31, 27, 30, 26, 29, 25, 28, 24, 23, 19, 22, 18, 21, 17, 20, 16,  //
                         15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
    return _mm512_permutexvar_epi16(places, _mm512_loadu_si512(line));
  }
  // Pairs of the first, or the last, four of every eight elements.
  static HWY_INLINE Words Low(Words a, Words b) { return _mm512_unpacklo_epi16(a, b); }
  static HWY_INLINE Words High(Words a, Words b) { return _mm512_unpackhi_epi16(a, b); }

  static HWY_INLINE uint32_t NotFinite(Words halfwords) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(halfwords, exponent), exponent);
  }

  // The larger one; y where x is NaN.
  static HWY_INLINE Floats Larger(Floats x, Floats y) { return _mm512_max_ps(x, y); }
  // The larger one where x is seen, else y.
  static HWY_INLINE Floats LargerOfSeen(uint32_t seen, Floats x, Floats y) {
    return _mm512_mask_max_ps(y, static_cast<__mmask16>(seen), x, y);
  }
  static HWY_INLINE float Largest(Floats x) { return _mm512_reduce_max_ps(x); }
  // canonical::SumLanes().
  static HWY_INLINE float SumOfLanes(Floats x) {
    x = _mm512_add_ps(x, _mm512_permute_ps(x, _MM_SHUFFLE(1, 0, 3, 2)));
    x = _mm512_add_ps(x, _mm512_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1)));
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(1, 0, 3, 2)));
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm512_cvtss_f32(x);
  }

  // Weights of 32 tokens from scores of 16 and the next 16.
  static HWY_INLINE Words Weights(Floats a, Floats b, float peak, float power) {
    return reinterpret_cast<Words>(
        _mm512_cvtne2ps_pbh(Powers(b, peak, power), Powers(a, peak, power)));
  }
  // Weights that are 0 for tokens that are not seen.
  static HWY_INLINE Words WeightsOfSeen(uint32_t seen_a, uint32_t seen_b, Floats a, Floats b,
                                        float peak, float power) {
    return _mm512_maskz_mov_epi16(seen_a | seen_b << kPairLanes, Weights(a, b, peak, power));
  }

  // Rounds two vectors of a chunk of 32 elements, or of its first 16.
  static HWY_INLINE void StoreOutput(float share, Floats low, Floats high, bool half,
                                     BFloat16* to) {
    const __m512i words = _mm512_packus_epi32(Rounded(_mm512_mul_ps(Set(share), low)),
                                              Rounded(_mm512_mul_ps(Set(share), high)));
    if (half) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(words));
    } else {
      _mm512_storeu_si512(to, words);
    }
  }

 private:
  // pairs::Weight() before its rounding, which takes subnormals for zeros.
  static HWY_INLINE Floats Powers(Floats score, float peak, float power) {
    const Floats y = _mm512_mul_ps(_mm512_sub_ps(score, Set(peak)), Set(power));
    const Floats n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Floats f = _mm512_sub_ps(y, n);
    Floats p = _mm512_fmadd_ps(Set(pairs::kPowerP[0]), f, Set(pairs::kPowerP[1]));
    p = _mm512_fmadd_ps(p, f, Set(pairs::kPowerP[2]));
    p = _mm512_fmadd_ps(p, f, Set(pairs::kPowerP[3]));
    p = _mm512_fmadd_ps(p, f, Set(1.0f));
    return _mm512_scalef_ps(p, n);
  }

  // canonical::RoundOutput(), in the low halves of words.
  static HWY_INLINE Words Rounded(Floats x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), nan, _mm512_set1_epi32(0x7fc0));
  }
};

}  // namespace
}  // namespace lamina::kernels::internal
