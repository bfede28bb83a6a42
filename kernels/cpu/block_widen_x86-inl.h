// SPDX-License-Identifier: Apache-2.0
//
// One group of a strip block (block_layout.h, LaneOrder::kPairs) to words, by AVX-512: inlined
// where functions have these attributes.
//
// A vector has 8 features' pairs of f32, so that converting two of them to bf16 makes the words of
// a step.

#pragma once

#include <immintrin.h>

#include <array>

#include "hwy/base.h"
#include "kernels/cpu/block_layout.h"

namespace lamina::kernels::cpu {
namespace {

// Strips are read in order, so far ahead of what is widened: a memory's latency, at its speed.
constexpr size_t kAheadBytes = 8192;

// Indexed by a quantum's bits, whatever stands above these.
constexpr std::array<float, 32> MeaningsOf(BlockType type) {
  const size_t quanta = size_t{1} << FormatOf(type).quantum_bits();
  std::array<float, 32> meanings = {};
  for (size_t bits = 0; bits < meanings.size(); ++bits) {
    meanings[bits] = MeaningOf(QuantumOf(type), bits % quanta);
  }
  return meanings;
}

template <BlockType kType>
constexpr bool kIsRaised = IsRaised(kType, LaneOrder::kPairs);

// Raised quanta become bits 8 to 15 of 2^15, which is then a float kRaise above what they mean: it
// is taken off with the scale in one multiply-add, which is exact, since kRaise has 9 bits and a
// scale 8.
constexpr int kRaiseBits = 0x47000000;
constexpr float kRaise = 32768 + 128;

}  // namespace
}  // namespace lamina::kernels::cpu

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
namespace lamina::kernels::cpu {
namespace {

// The scales of features 0 to 7 and 8 to 15, each twice: for both of a pair.
struct Halves {
  __m512 low;
  __m512 high;
};

HWY_INLINE Halves SplitHalves(__m512 features) {
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutexvar_ps(low, features), _mm512_permutexvar_ps(high, features)};
}

HWY_INLINE __m512 LoadHalves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

HWY_INLINE __m512 LoadBrain(const uint8_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

template <SubScale kSub>
HWY_INLINE __m512 LoadSubs(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if constexpr (kSub == SubScale::kSigned) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  } else if constexpr (kSub == SubScale::kNibbles) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(15)));
  } else {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  }
}

// The minima of a group; `at` is where its scales are in subs.
template <BlockType kType>
HWY_INLINE __m512 LoadMins(const uint8_t* block, size_t at) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  if constexpr (kFormat.sub == SubScale::kNibbles) {
    const auto* subs = reinterpret_cast<const __m128i*>(block + kFormat.at_subs() + at);
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(subs)), 4));
  } else {
    return LoadSubs<kFormat.sub>(block + kFormat.at_mins() + at);
  }
}

// Quantum n of all lanes, as f32, before the scale; a raised one kRaise above that.
template <BlockType kType>
class Quanta {
  static constexpr BlockFormat kFormat = FormatOf(kType);
  static constexpr size_t kLine = 64;

 public:
  explicit HWY_INLINE Quanta(const uint8_t* block) : block_(block) {
    static constexpr std::array<float, 32> kMeanings = MeaningsOf(kType);
    low_table_ = _mm512_loadu_ps(kMeanings.data());
    high_table_ = _mm512_loadu_ps(kMeanings.data() + 16);
  }

  HWY_INLINE __m512 At(size_t n) const {
    if constexpr (kIsRaised<kType>) {
      return Raised(n);
    } else if constexpr (kFormat.low_bits == 8) {
      const auto* bytes =
          reinterpret_cast<const __m128i*>(block_ + kFormat.at_low() + n * kStripFeatures);
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
    } else {
      constexpr size_t kInWord = 32 / kFormat.low_bits;
      const size_t bit = n % kInWord * kFormat.low_bits;
      const __m512i low = _mm512_srlv_epi32(Line(kFormat.at_low(), n / kInWord),
                                            _mm512_set1_epi32(static_cast<int>(bit)));
      if constexpr (kFormat.high_bits == 0) {
        return _mm512_permutexvar_ps(low, low_table_);
      } else {
        return WithHigh(low, n);
      }
    }
  }

 private:
  HWY_INLINE __m512i Line(size_t part, size_t line) const {
    return _mm512_loadu_si512(block_ + part + line * kLine);
  }

  HWY_INLINE __m512 Raised(size_t n) const {
    constexpr __mmask64 kSecondBytes = 0x2222222222222222;
    // To each word's second byte, its byte n % 4.
    const __m512i bytes = _mm512_add_epi32(_mm512_set4_epi32(12 << 8, 8 << 8, 4 << 8, 0),
                                           _mm512_set1_epi32(static_cast<int>(n % 4) << 8));
    return _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(_mm512_set1_epi32(kRaiseBits), kSecondBytes,
                                                        Line(kFormat.at_low(), n / 4), bytes));
  }

  // The low bits of `low`, and above them the high ones.
  HWY_INLINE __m512 WithHigh(__m512i low, size_t n) const {
    constexpr size_t kInWord = 32 / kFormat.high_bits;
    constexpr int kLowMask = (1 << kFormat.low_bits) - 1;
    constexpr int kSelect = 0xca;  // a ? b : c
    const size_t bit = n % kInWord * kFormat.high_bits;
    const size_t rotation = (bit + 32 - kFormat.low_bits) % 32;
    const __m512i high = _mm512_rorv_epi32(Line(kFormat.at_high(), n / kInWord),
                                           _mm512_set1_epi32(static_cast<int>(rotation)));
    const __m512i both = _mm512_ternarylogic_epi32(_mm512_set1_epi32(kLowMask), low, high, kSelect);
    if constexpr (kFormat.quantum_bits() <= 4) {
      return _mm512_permutexvar_ps(both, low_table_);
    } else if constexpr (kFormat.quantum_bits() == 5) {
      return _mm512_permutex2var_ps(low_table_, both, high_table_);
    } else {
      const __m512i six = _mm512_and_si512(both, _mm512_set1_epi32(63));
      return _mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32)));
    }
  }

  const uint8_t* block_;
  __m512 low_table_;
  __m512 high_table_;
};

template <BlockType kType>
HWY_INLINE __m512 Value(__m512 quantum, __m512 scale, __m512 minimum) {
  if constexpr (FormatOf(kType).minima || kIsRaised<kType>) {
    return _mm512_fmadd_ps(quantum, scale, minimum);
  } else {
    return _mm512_mul_ps(quantum, scale);
  }
}

// A group's scale, and its minimum as it is added; of raised quanta what takes kRaise off.
struct Scales {
  Halves d;
  Halves m;
};

template <BlockType kType>
HWY_INLINE Scales GroupScales(const uint8_t* block, size_t group) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  __m512 d = kFormat.brain_scale ? LoadBrain(block) : LoadHalves(block);
  [[maybe_unused]] __m512 m =
      kFormat.minima ? LoadHalves(block + kFormat.at_m()) : _mm512_setzero_ps();
  if constexpr (kFormat.sub != SubScale::kNone) {
    const size_t at = group * kStripFeatures;
    d = _mm512_mul_ps(d, LoadSubs<kFormat.sub>(block + kFormat.at_subs() + at));
    if constexpr (kFormat.minima) {
      m = _mm512_xor_ps(_mm512_mul_ps(m, LoadMins<kType>(block, at)), _mm512_set1_ps(-0.0f));
    }
  }
  const Halves scale = SplitHalves(d);
  if constexpr (kIsRaised<kType>) {
    const __m512 raise = _mm512_set1_ps(-kRaise);
    return {scale, {_mm512_mul_ps(scale.low, raise), _mm512_mul_ps(scale.high, raise)}};
  } else {
    return {scale, SplitHalves(m)};
  }
}

// Widens the steps of one group, each by itself.
template <BlockType kType>
class GroupWidener {
 public:
  static constexpr size_t kSteps = FormatOf(kType).group / 2;

  HWY_INLINE GroupWidener(const uint8_t* block, size_t group)
      : quanta_(block), scales_(GroupScales<kType>(block, group)), first_(2 * group * kSteps) {}

  // The words of step `step` of the group.
  HWY_INLINE __m512bh WordsOf(size_t step) const {
    const size_t n = first_ + 2 * step;
    const __m512 low = Value<kType>(quanta_.At(n), scales_.d.low, scales_.m.low);
    const __m512 high = Value<kType>(quanta_.At(n + 1), scales_.d.high, scales_.m.high);
    return _mm512_cvtne2ps_pbh(high, low);
  }

 private:
  Quanta<kType> quanta_;
  Scales scales_;
  size_t first_;
};

// Shapes: words  [group / 2, 16], aligned to a cache line
template <BlockType kType>
HWY_INLINE void WidenGroup(const uint8_t* block, size_t group, uint32_t* words) {
  const GroupWidener<kType> widener(block, group);
#pragma GCC unroll 16
  for (size_t step = 0; step < GroupWidener<kType>::kSteps; ++step) {
    _mm512_store_si512(words + step * kStripFeatures,
                       reinterpret_cast<__m512i>(widener.WordsOf(step)));
  }
}

HWY_INLINE void FetchFrom(const uint8_t* from, size_t bytes) {
  for (size_t byte = 0; byte < bytes; byte += 64) {
    __builtin_prefetch(from + byte, 0, 2);
  }
}

HWY_INLINE void FetchAhead(const uint8_t* from, size_t bytes) {
  FetchFrom(from + kAheadBytes, bytes);
}

}  // namespace
}  // namespace lamina::kernels::cpu
HWY_POP_ATTRIBUTES
