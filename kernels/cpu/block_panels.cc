// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_panels.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/block_widen.h"
#include "kernels/cpu/weight_memory.h"

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kStrips = kPanelStrips;

// The rows of a strip; those behind the last are null.
struct StripRows {
  BlockType type = BlockType::kQ80;
  std::array<const uint8_t*, kStripFeatures> rows = {};
};

absl::StatusOr<std::vector<StripRows>> CutStrips(const BlockView& weights) {
  std::vector<StripRows> strips;
  size_t feature = 0;
  for (const BlockRows& part : weights.parts) {
    for (const uint8_t* row : part.rows) {
      const size_t place = feature++ % kStripFeatures;
      if (place == 0) {
        strips.push_back({.type = part.type});
      }
      if (strips.back().type != part.type) {
        return absl::UnimplementedError(absl::StrCat(
            "features ", feature - 1 - place, " and behind are of ",
            InfoOf(strips.back().type).name, " and ", InfoOf(part.type).name,
            "; packed weights change their type every ", kStripFeatures, " features only"));
      }
      strips.back().rows[place] = row;
    }
  }
  return strips;
}

class BlockPanels final : public PanelWeights {
 public:
  BlockPanels(LinearEngine& engine, const BlockView& weights, LaneOrder order,
              const std::vector<StripRows>& strips)
      : PanelWeights(engine,
                     {.in_features = weights.in_features,
                      .out_features = weights.out_features,
                      .bias = weights.bias,
                      .steps_together = FormatOf(BlockType::kInt8).steps()},
                     2),
        panels_(panels()) {
    for (size_t strip = 0; strip < strips.size(); ++strip) {
      const BlockType type = strips[strip].type;
      panels_[strip / kStrips].strips[strip % kStrips] = {
          .type = type,
          .widen = order == LaneOrder::kPairs ? PairWidener(type) : FeatureWidener(type),
          .block_steps = FormatOf(type).steps(),
          .block_bytes = FormatOf(type).bytes()};
    }
    words_are_exact_ = order == LaneOrder::kFeatures ||
                       std::none_of(strips.begin(), strips.end(), [](const StripRows& strip) {
                         return strip.type == BlockType::kMxfp4;
                       });
    for (Panel& panel : panels_) {
      panel.at = byte_count_;
      panel.few_rows = order == LaneOrder::kPairs ? FewRowsOf(panel) : nullptr;
      for (const Strip& strip : panel.strips) {
        panel.chunk_steps = std::max(panel.chunk_steps, strip.block_steps);
        byte_count_ += strip.BytesOf(steps());
      }
    }
    bytes_ = WeightMemory(byte_count_);
    at_ = reinterpret_cast<uint8_t*>(bytes_.data());
  }

  bool allocated() const { return at_ != nullptr; }

  absl::Status Fill(const std::vector<StripRows>& strips, LaneOrder order) {
    uint8_t* to = at_;
    for (size_t panel = 0; panel < panels_.size(); ++panel) {
      const size_t chunk = 2 * panels_[panel].chunk_steps;
      for (size_t first = 0; first < in_features(); first += chunk) {
        const size_t last = std::min(first + chunk, in_features());
        for (size_t strip = panel * kStrips; strip < std::min((panel + 1) * kStrips, strips.size());
             ++strip) {
          LAMINA_ASSIGN_OR_RETURN(to, FillStrip(strips[strip], order, first, last, to));
        }
      }
    }
    return absl::OkStatus();
  }

  uint64_t bytes() const override { return byte_count_ + bias_bytes(); }
  std::vector<absl::Span<std::byte>> Pieces() override {
    return {{reinterpret_cast<std::byte*>(at_), byte_count_}};
  }
  size_t FirstByte(size_t /*piece*/, size_t first_out) const override {
    return panels_[first_out / kPanelFeatures].at;
  }
  void Place(absl::Span<std::byte* const> at) override {
    bytes_ = WeightMemory();
    at_ = reinterpret_cast<uint8_t*>(at[0]);
  }

  PanelWords Words(const PanelPart& part, size_t first, size_t count,
                   uint32_t* scratch) const override {
    const Panel& from = panels_[part.panel];
    const uint8_t* bytes = at_ + from.at;
    for (const Strip& strip : from.strips) {
      bytes += strip.BytesOf(first);
    }
    for (size_t step = 0; step < count; step += from.chunk_steps) {
      const size_t steps = std::min(from.chunk_steps, count - step);
      uint32_t* words = scratch + step * kStripFeatures;
      for (size_t s = 0; s < kStrips; ++s) {
        const Strip& strip = from.strips[s];
        if (s < part.strip || s >= part.strip + part.strips) {
          bytes += strip.BytesOf(steps);
          continue;
        }
        bytes = strip.Widen(bytes, steps, words);
        words += count * kStripFeatures;
      }
    }
    return {scratch, count * kStripFeatures};
  }
  bool widens() const override { return true; }
  bool words_are_exact() const override { return words_are_exact_; }
  FewRows FewRowsOf(size_t panel) const override {
    return {panels_[panel].few_rows, at_ + panels_[panel].at};
  }
  const uint32_t* Ahead(size_t /*panel*/) const override { return nullptr; }

 private:
  struct Strip {
    BlockType type = BlockType::kQ80;
    WidenStrip widen = nullptr;  // Null behind the last feature.
    size_t block_steps = 1;
    size_t block_bytes = 0;

    size_t BytesOf(size_t steps) const { return steps / block_steps * block_bytes; }
    // Returns where the next strip's blocks are.
    const uint8_t* Widen(const uint8_t* from, size_t steps, uint32_t* words) const {
      if (widen == nullptr) {
        std::fill_n(words, steps * kStripFeatures, 0u);
        return from;
      }
      widen(from, steps / block_steps, words);
      return from + BytesOf(steps);
    }
  };
  struct Panel {
    std::array<Strip, kStrips> strips;
    size_t at = 0;           // Bytes.
    size_t chunk_steps = 1;  // Steps of the longest block.
    MultiplyFewRows few_rows = nullptr;
  };

  // Null where strips differ, or are missing.
  static MultiplyFewRows FewRowsOf(const Panel& panel) {
    const Strip& first = panel.strips[0];
    const bool alike = std::all_of(
        panel.strips.begin(), panel.strips.end(),
        [&](const Strip& strip) { return strip.widen != nullptr && strip.type == first.type; });
    return alike ? PairsOfBlocks(first.type) : nullptr;
  }

  static absl::StatusOr<uint8_t*> FillStrip(const StripRows& strip, LaneOrder order, size_t first,
                                            size_t last, uint8_t* to) {
    const BlockTypeInfo& info = InfoOf(strip.type);
    for (size_t input = first; input < last; input += info.elements) {
      std::array<const uint8_t*, kStripFeatures> blocks = {};
      for (size_t f = 0; f < kStripFeatures && strip.rows[f] != nullptr; ++f) {
        blocks[f] = strip.rows[f] + input / info.elements * info.bytes;
      }
      if (!PackStripBlock(strip.type, order, blocks.data(), to)) {
        return absl::UnimplementedError(
            absl::StrCat("a scale of type ", info.name, " is not finite, or too large"));
      }
      to += FormatOf(strip.type).bytes();
    }
    return to;
  }

  std::vector<Panel> panels_;
  bool words_are_exact_ = true;
  size_t byte_count_ = 0;
  WeightMemory bytes_;     // None where moved.
  uint8_t* at_ = nullptr;  // Where these are now.
};

}  // namespace

absl::StatusOr<std::unique_ptr<PanelWeights>> PackBlockPanels(LinearEngine& engine,
                                                              const BlockView& weights,
                                                              LaneOrder order) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<StripRows> strips, CutStrips(weights));
  auto packed = std::make_unique<BlockPanels>(engine, weights, order, strips);
  if (!packed->allocated()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory to pack a linear layer of ", weights.out_features, " x ", weights.in_features));
  }
  LAMINA_RETURN_IF_ERROR(packed->Fill(strips, order));
  return packed;
}

}  // namespace lamina::kernels::cpu
