// SPDX-License-Identifier: Apache-2.0
//
// What the inner loops of our own linear layers take: some steps of one panel of weights, or of one
// or two of its strips, times some rows.
//
// Weights lie in panels of 64 output features, each of four strips of 16: a strip is [steps][16]
// words of 32 bits, one cache line for each step, so that every pass over the rows reads memory in
// order. For f32 a step is one input feature; for bf16 it is two, the even one in the low half of
// the word and the odd one in the high half.
//
// A panel may be multiplied in several calls, each of which takes the next steps: the sums wait in
// `out` in between, so that cutting changes no bit.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace lamina::kernels::cpu {

inline constexpr size_t kPanelFeatures = 64;
inline constexpr size_t kStripFeatures = 16;
inline constexpr size_t kPanelStrips = kPanelFeatures / kStripFeatures;

// Shapes: words  [strips, steps, 16], `strip_words` from one strip to the next
//         next   as many words as `words`, without gaps: fetched into the second cache; may be
//                null, and is where strips are fewer than 4
//         in     [rows, >= inputs], `in_stride` elements between rows; for words of bf16
//                inputs = 2 * steps, else inputs = steps.
//         bias   [16 * strips]; null where further steps follow
//         out    [rows, 16 * strips] f32, `out_stride` elements between rows
// `from_memory`: words come from memory, and not from a cache.
template <class Input>
struct PanelTask {
  const uint32_t* words = nullptr;
  size_t strip_words = 0;
  size_t strips = kPanelStrips;  // Or 1, or 2: a layer that is cut for many threads (work_cuts.h).
  const uint32_t* next = nullptr;
  bool from_memory = false;
  size_t steps = 0;
  const Input* in = nullptr;
  size_t in_stride = 0;
  size_t rows = 0;
  bool first = true;  // No steps came before: sums start at 0.
  const float* bias = nullptr;
  float* out = nullptr;
  size_t out_stride = 0;
};

// The weights of a model come from memory at every step, and a few rows' arithmetic takes about as
// long as that. So while one panel is multiplied, the next is asked for: every step of every pass
// over the words asks for as much as lets the last step of the last pass ask for the end, or for
// some bytes behind it: 256 rows are 43 passes, of whose steps each asks for 6 bytes of 256.
class PanelFetcher {
 public:
  // `steps`: how many of them Step() stands for.
  PanelFetcher(const uint32_t* next, size_t passes, size_t steps = 1)
      : next_(reinterpret_cast<const char*>(next)),
        bytes_each_(next == nullptr
                        ? 0
                        : (steps * kPanelFeatures * sizeof(uint32_t) + passes - 1) / passes) {}

  void Step() {
    for (size_t byte = 0; byte < bytes_each_; byte += kCacheLine) {
      __builtin_prefetch(next_ + byte, 0, 2);
    }
    next_ += bytes_each_;
  }

 private:
  static constexpr size_t kCacheLine = 64;
  const char* next_;
  size_t bytes_each_;
};

// Fetches for few rows, where reading is what takes time: the halves of the panel are asked for
// side by side, since a core reads a quarter more in two streams than in one. With more rows the
// two more moves of a step cost a tenth of the arithmetic.
class PanelHalvesFetcher {
 public:
  PanelHalvesFetcher(const uint32_t* next, size_t steps, size_t passes)
      : next_(next, passes),
        then_(next == nullptr ? nullptr : next + steps * kPanelFeatures / 2, passes) {}

  void Step() {
    next_.Step();
    std::swap(next_, then_);
  }

 private:
  PanelFetcher next_;
  PanelFetcher then_;
};

// Which cache words are asked for into. Zen 5 keeps more reads of memory under way with the first.
// Zen 4 has few buffers for misses of its first cache, which are held for as long as memory takes:
// 4 and 8 rows of SmolLM2's layers are 1.2 to 1.5 times as fast with the second.
enum class FetchInto : int { kSecondCache = 2, kFirstCache = 3 };

// Where each weight is read once: asks for words so many steps ahead, in each strip next to the
// others. That keeps more reads of memory under way than to ask for the next panel, and two cores
// do not slow each other down as much.
template <size_t kStrips, FetchInto kInto = FetchInto::kFirstCache>
class StripFetcher {
 public:
  // `then`: the strips behind the last step; null: there are none.
  template <class Input>
  StripFetcher(const PanelTask<Input>& task, const uint32_t* words, const uint32_t* then)
      : at_(words + std::min(kStepsAhead, task.steps) * kStripFeatures),
        then_(then == nullptr ? words : then),
        strip_words_(task.strip_words),
        left_(task.steps - std::min(kStepsAhead, task.steps)) {}

  void Step() {
    if (left_ == 0) {
      at_ = then_;
      left_ = kStepsAhead;
    }
    --left_;
    for (size_t v = 0; v < kStrips; ++v) {
      __builtin_prefetch(at_ + v * strip_words_, 0, static_cast<int>(kInto));
    }
    at_ += kStripFeatures;
  }

 private:
  static constexpr size_t kStepsAhead = 64;
  const uint32_t* at_;
  const uint32_t* then_;
  size_t strip_words_;
  size_t left_;
};

}  // namespace lamina::kernels::cpu
