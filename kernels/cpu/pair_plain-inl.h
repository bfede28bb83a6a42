// SPDX-License-Identifier: Apache-2.0
//
// PlainPairs: the vectors of attention in pairs and in tiles of bf16 in plain code, so that every
// shape and tail of their loops is compared with the reference on processors without AVX-512 BF16,
// too.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/canonical_math.h"
#include "kernels/cpu/pair_values-inl.h"
#include "kernels/k_tiles.h"
#include "kernels/pair_math.h"

namespace lamina::kernels::internal {
namespace {

struct PlainPairs {
  static constexpr const char* kName = "pairs/emulated";
  struct Floats {
    float x[kPairLanes];
  };
  struct Words {
    uint32_t x[kPairLanes];
  };

  static Floats Zero() { return {}; }
  static Floats Set(float x) {
    return Each([x](size_t) { return x; });
  }
  static Floats Load(const float* from) {
    return Each([from](size_t i) { return from[i]; });
  }
  static void Store(const Floats& x, float* to) { std::copy_n(x.x, kPairLanes, to); }
  static Floats Multiply(const Floats& a, const Floats& b) {
    return Each([&](size_t i) { return a.x[i] * b.x[i]; });
  }
  static Floats Add(const Floats& a, const Floats& b) {
    return Each([&](size_t i) { return a.x[i] + b.x[i]; });
  }

  static Words Broadcast(uint32_t word) {
    return EachWord([word](size_t) { return word; });
  }
  static Words LoadWords(const void* from) {
    Words words;
    std::memcpy(words.x, from, sizeof(words.x));
    return words;
  }
  static Words LoadHalf(const void* from) {
    Words words = {};
    std::memcpy(words.x, from, sizeof(words.x) / 2);
    return words;
  }
  static void StoreWords(const Words& words, uint32_t* to) {
    std::memcpy(to, words.x, sizeof(words.x));
  }

  static Floats Step(const Floats& sums, const Words& a, const Words& b) {
    return Each([&](size_t i) { return pairs::Step(sums.x[i], a.x[i], b.x[i]); });
  }

  static Words PairsOfLine(const Words& line) {
    return EachWord([&](size_t token) {
      return Half(line, PlaceInLine(token, 0)) | Half(line, PlaceInLine(token, 1)) << 16;
    });
  }
  static Words PairsOfLineAt(const void* line) { return PairsOfLine(LoadWords(line)); }
  static Words Low(const Words& a, const Words& b) {
    return EachWord([&](size_t i) {
      const size_t at = i / 4 * 8 + i % 4;
      return Half(a, at) | Half(b, at) << 16;
    });
  }
  static Words High(const Words& a, const Words& b) {
    return EachWord([&](size_t i) {
      const size_t at = i / 4 * 8 + 4 + i % 4;
      return Half(a, at) | Half(b, at) << 16;
    });
  }

  static uint32_t NotFinite(const Words& halfwords) {
    uint32_t broken = 0;
    for (const uint32_t word : halfwords.x) {
      broken |= (word & 0x7f80u) == 0x7f80u || (word >> 16 & 0x7f80u) == 0x7f80u ? 1 : 0;
    }
    return broken;
  }

  static Floats Larger(const Floats& x, const Floats& y) { return LargerOfSeen(0xffff, x, y); }
  static Floats LargerOfSeen(uint32_t seen, const Floats& x, const Floats& y) {
    return Each(
        [&](size_t i) { return (seen >> i & 1) != 0 && x.x[i] > y.x[i] ? x.x[i] : y.x[i]; });
  }
  static float Largest(const Floats& x) { return *std::max_element(x.x, x.x + kPairLanes); }
  static float SumOfLanes(const Floats& x) { return canonical::SumLanes(x.x); }

  static Words Weights(const Floats& a, const Floats& b, float peak, float power) {
    return WeightsOfSeen(0xffff, 0xffff, a, b, peak, power);
  }
  static Words WeightsOfSeen(uint32_t seen_a, uint32_t seen_b, const Floats& a, const Floats& b,
                             float peak, float power) {
    const auto weight = [&](size_t token) {
      const size_t lane = token % kPairLanes;
      const bool second = token >= kPairLanes;
      const bool seen = ((second ? seen_b : seen_a) >> lane & 1) != 0;
      return seen ? pairs::Weight((second ? b : a).x[lane], peak, power) : BFloat16{0};
    };
    return EachWord([&](size_t i) { return pairs::MakePair(weight(2 * i), weight(2 * i + 1)); });
  }

  static void StoreOutput(float share, const Floats& low, const Floats& high, bool half,
                          BFloat16* to) {
    for (size_t i = 0; i < (half ? kPairLanes : 2 * kPairLanes); ++i) {
      const Floats& from = i / 4 % 2 == 0 ? low : high;
      to[i] = canonical::RoundOutput(share * from.x[i / 8 * 4 + i % 4]);
    }
  }

 private:
  template <class Lane>
  static Floats Each(const Lane& lane) {
    Floats floats;
    for (size_t i = 0; i < kPairLanes; ++i) {
      floats.x[i] = lane(i);
    }
    return floats;
  }
  template <class Lane>
  static Words EachWord(const Lane& lane) {
    Words words;
    for (size_t i = 0; i < kPairLanes; ++i) {
      words.x[i] = lane(i);
    }
    return words;
  }
  static uint32_t Half(const Words& words, size_t i) {
    return words.x[i / 2] >> (i % 2 * 16) & 0xffffu;
  }
};

}  // namespace
}  // namespace lamina::kernels::internal
