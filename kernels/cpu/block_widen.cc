// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_widen.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/block_widen.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kStripFeatures>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());
constexpr size_t kCacheLine = 64;
// Strips are read in order, so far ahead of what is widened.
constexpr size_t kAheadBytes = 8192;

// 16-bit scales of kLanes features.
template <bool kBrain>
HWY_INLINE hn::Vec<Floats> LoadScales(const uint8_t* from) {
  const hn::Rebind<uint16_t, Floats> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  if constexpr (kBrain) {
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), bits)));
  } else {
    return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), bits));
  }
}

template <SubScale kSub>
HWY_INLINE hn::Vec<Floats> LoadSubs(const uint8_t* from) {
  if constexpr (kSub == SubScale::kSigned) {
    const hn::Rebind<int8_t, Floats> d8;
    const auto bytes = hn::LoadU(d8, reinterpret_cast<const int8_t*>(from));
    return hn::ConvertTo(Floats(), hn::PromoteTo(Ints(), bytes));
  } else {
    auto subs = hn::PromoteTo(Ints(), hn::LoadU(hn::Rebind<uint8_t, Floats>(), from));
    if constexpr (kSub == SubScale::kNibbles) {
      subs = hn::And(subs, hn::Set(Ints(), 15));
    }
    return hn::ConvertTo(Floats(), subs);
  }
}

// The minima of a group; `at` is where its scales are in subs.
template <BlockType kType>
HWY_INLINE hn::Vec<Floats> LoadMins(const uint8_t* block, size_t at) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  if constexpr (kFormat.sub == SubScale::kNibbles) {
    const auto subs = hn::LoadU(hn::Rebind<uint8_t, Floats>(), block + kFormat.at_subs() + at);
    return hn::ConvertTo(Floats(), hn::ShiftRight<4>(hn::PromoteTo(Ints(), subs)));
  } else {
    return LoadSubs<kFormat.sub>(block + kFormat.at_mins() + at);
  }
}

// kBits of quantum n of kLanes features, of the part of a block that begins at `part`.
template <size_t kBits>
HWY_INLINE hn::Vec<Words> BitsAt(const uint8_t* part, size_t lane, size_t n) {
  constexpr size_t kInWord = 32 / kBits;
  const Words d;
  const auto* line = reinterpret_cast<const uint32_t*>(part) + n / kInWord * kStripFeatures;
  return hn::And(
      hn::ShiftRightSame(hn::LoadU(d, line + lane), static_cast<int>(n % kInWord * kBits)),
      hn::Set(d, (1u << kBits) - 1));
}

// Quantum n of kLanes features from `lane` on, as f32, before the scale.
template <BlockType kType>
HWY_INLINE hn::Vec<Floats> QuantumAt(const uint8_t* block, size_t lane, size_t n) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  constexpr Quantum kQuantum = QuantumOf(kType);
  if constexpr (kFormat.low_bits == 8) {
    return LoadSubs<SubScale::kSigned>(block + kFormat.at_low() + n * kStripFeatures + lane);
  } else {
    auto bits = BitsAt<kFormat.low_bits>(block + kFormat.at_low(), lane, n);
    if constexpr (kFormat.high_bits != 0) {
      const auto high = BitsAt<kFormat.high_bits>(block + kFormat.at_high(), lane, n);
      bits = hn::Or(bits, hn::ShiftLeft<static_cast<int>(kFormat.low_bits)>(high));
    }
    const auto index = hn::BitCast(Ints(), bits);
    if constexpr (kQuantum == Quantum::kIq4) {
      return hn::GatherIndex(Floats(), kIq4Values, index);
    } else if constexpr (kQuantum == Quantum::kFloat4) {
      return hn::GatherIndex(Floats(), kFloat4Doubled, index);
    } else {
      constexpr auto kLess = static_cast<int32_t>(-MeaningOf(kQuantum, 0));
      return hn::ConvertTo(Floats(), hn::Sub(index, hn::Set(Ints(), kLess)));
    }
  }
}

// The bits of finite f32 after rounding to bf16, to nearest and even; the lower half is anything.
HWY_INLINE hn::Vec<Words> RoundedBits(hn::Vec<Floats> x) {
  const Words d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  return hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu)));
}

// One group of kLanes features from `lane` on.
template <BlockType kType>
HWY_INLINE void WidenGroup(const uint8_t* block, size_t group, size_t lane, uint32_t* words) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  const Words dw;
  auto d = LoadScales<kFormat.brain_scale>(block + 2 * lane);
  auto m = hn::Zero(Floats());
  if constexpr (kFormat.minima) {
    m = LoadScales<false>(block + kFormat.at_m() + 2 * lane);
  }
  if constexpr (kFormat.sub != SubScale::kNone) {
    const size_t at = group * kStripFeatures + lane;
    d = hn::Mul(d, LoadSubs<kFormat.sub>(block + kFormat.at_subs() + at));
    if constexpr (kFormat.minima) {
      m = hn::Neg(hn::Mul(m, LoadMins<kType>(block, at)));
    }
  }
  const auto value = [&](size_t n) HWY_ATTR {
    const auto quantum = QuantumAt<kType>(block, lane, n);
    if constexpr (kFormat.minima) {
      return hn::MulAdd(quantum, d, m);
    } else {
      return hn::Mul(quantum, d);
    }
  };
  for (size_t step = 0; step < kFormat.group / 2; ++step) {
    const size_t n = group * kFormat.group + 2 * step;
    const auto even = hn::ShiftRight<16>(RoundedBits(value(n)));
    const auto odd = hn::And(RoundedBits(value(n + 1)), hn::Set(dw, 0xffff0000u));
    hn::StoreU(hn::Or(even, odd), dw, words + step * kStripFeatures + lane);
  }
}

template <BlockType kType>
void Widen(const uint8_t* strip, size_t blocks, uint32_t* words) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  for (size_t i = 0; i < blocks; ++i, strip += kFormat.bytes()) {
    for (size_t byte = 0; byte < kFormat.bytes(); byte += kCacheLine) {
      __builtin_prefetch(strip + kAheadBytes + byte, 0, 2);
    }
    for (size_t group = 0; group < kFormat.groups(); ++group) {
      for (size_t lane = 0; lane < kStripFeatures; lane += kLanes) {
        WidenGroup<kType>(strip, group, lane, words);
      }
      words += kFormat.group / 2 * kStripFeatures;
    }
  }
}

WidenStrip WidenerOf(BlockType type) {
  switch (type) {
    case BlockType::kQ40:
      return Widen<BlockType::kQ40>;
    case BlockType::kQ41:
      return Widen<BlockType::kQ41>;
    case BlockType::kQ50:
      return Widen<BlockType::kQ50>;
    case BlockType::kQ51:
      return Widen<BlockType::kQ51>;
    case BlockType::kQ80:
      return Widen<BlockType::kQ80>;
    case BlockType::kIq4Nl:
      return Widen<BlockType::kIq4Nl>;
    case BlockType::kMxfp4:
      return Widen<BlockType::kMxfp4>;
    case BlockType::kQ2K:
      return Widen<BlockType::kQ2K>;
    case BlockType::kQ3K:
      return Widen<BlockType::kQ3K>;
    case BlockType::kQ4K:
      return Widen<BlockType::kQ4K>;
    case BlockType::kQ5K:
      return Widen<BlockType::kQ5K>;
    case BlockType::kQ6K:
      return Widen<BlockType::kQ6K>;
    case BlockType::kIq4Xs:
      return Widen<BlockType::kIq4Xs>;
    case BlockType::kInt8:
      return Widen<BlockType::kInt8>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels::cpu {

HWY_EXPORT(WidenerOf);

WidenStrip FeatureWidener(BlockType type) { return HWY_DYNAMIC_DISPATCH(WidenerOf)(type); }

}  // namespace lamina::kernels::cpu
#endif
