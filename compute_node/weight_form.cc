// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weight_form.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/cores.h"
#include "common/host_memory.h"
#include "common/last_cache.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

// A layer as models have it, inputs a multiple of every block. A round has kProducts, which go on
// in the copies where the one before ended, so that it takes as long however many there are; the
// fewest have 63 MB as bf16. The best of the rounds counts; where one form takes kClear times as
// long as the other, that of the first few.
constexpr size_t kInputs = 1536;
constexpr size_t kFeatures = 4096;
constexpr size_t kProducts = 5;
constexpr uint64_t kCopiesMin = kProducts;
constexpr uint64_t kCopiesMax = 40;
constexpr std::array<size_t, 3> kRows = {1, 4, 16};
constexpr int kRounds = 6;
constexpr int kFewRounds = 2;
constexpr double kClear = 1.25;
constexpr double kGivenForMemory = 1.1;

// One packed layer, whose bytes lie in several places that take turns.
class Copies {
 public:
  Copies(std::unique_ptr<kernels::PackedLinear> linear, size_t copies)
      : linear_(std::move(linear)), copies_(copies) {
    const std::vector<absl::Span<std::byte>> pieces = linear_->Pieces();
    size_t copy_bytes = 0;
    for (const absl::Span<std::byte> piece : pieces) {
      copy_bytes += InLines(piece.size());
    }
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(copies_ * copy_bytes + kLine);
    auto* at = reinterpret_cast<std::byte*>(InLines(reinterpret_cast<uintptr_t>(bytes_.get())));
    for (size_t copy = 0; copy < copies_; ++copy) {
      for (const absl::Span<std::byte> piece : pieces) {
        std::copy(piece.begin(), piece.end(), at);
        places_.push_back(at);
        at += InLines(piece.size());
      }
    }
    pieces_ = pieces.size();
  }

  // The layer with the next copy of its bytes.
  const kernels::PackedLinear& Next() {
    linear_->Place(absl::MakeSpan(places_).subspan(next_ * pieces_, pieces_));
    next_ = (next_ + 1) % copies_;
    return *linear_;
  }

 private:
  static constexpr size_t kLine = 64;
  static constexpr size_t InLines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  std::unique_ptr<kernels::PackedLinear> linear_;
  const size_t copies_;
  size_t next_ = 0;
  size_t pieces_ = 0;
  std::unique_ptr<std::byte[]> bytes_;  // All in one, which the system has back at the end.
  std::vector<std::byte*> places_;      // [copies * pieces]
};

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> PackBlocks(
    const kernels::BlockTypeInfo& info, kernels::Dense& dense) {
  const std::vector<uint8_t> bytes = BlocksToMeasure(info, kFeatures * kInputs / info.elements);
  std::vector<const uint8_t*> rows(kFeatures);
  for (size_t row = 0; row < kFeatures; ++row) {
    rows[row] = bytes.data() + row * (bytes.size() / kFeatures);
  }
  const kernels::BlockRows part = {.type = info.type, .rows = rows};
  return dense.PackBlocks({&part, 1}, kInputs, {});
}

// Seconds of one product of a round.
double RoundSeconds(Copies& copies, const std::vector<BFloat16>& in, std::vector<float>& out,
                    kernels::Dense& dense) {
  const size_t rows = in.size() / kInputs;
  const auto start = std::chrono::steady_clock::now();
  for (size_t product = 0; product < kProducts; ++product) {
    dense.Linear(copies.Next(),
                 {const_cast<BFloat16*>(in.data()), rows, kInputs, kInputs, DType::kBF16}, 0,
                 kernels::Packed(out.data(), rows, kFeatures));
  }
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
  return all.count() / static_cast<double>(kProducts);
}

// Times of steps at numbers of rows that are equally likely.
double PackedOverBF16(const FormTimes& times) {
  return std::accumulate(times.packed.begin(), times.packed.end(), 0.0) /
         std::accumulate(times.bf16.begin(), times.bf16.end(), 0.0);
}

}  // namespace

uint64_t WeightRoom(uint64_t budget, absl::string_view root) {
  return budget > 0 ? budget : QueryHostMemory(root).available_bytes;
}

WeightForm FormThatFits(WeightForm wanted, uint64_t bf16_bytes, uint64_t memory_bytes) {
  return wanted == WeightForm::kAuto && bf16_bytes > memory_bytes ? WeightForm::kPacked : wanted;
}

std::vector<uint8_t> BlocksToMeasure(const kernels::BlockTypeInfo& info, size_t blocks) {
  std::vector<uint8_t> bytes(blocks * info.bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * 37 % 61);
  }
  if (info.type == kernels::BlockType::kMxfp4) {  // Scales are exponents.
    for (size_t at = 0; at < bytes.size(); at += info.bytes) {
      bytes[at] = static_cast<uint8_t>(bytes[at] + 100);
    }
  }
  return bytes;
}

size_t CopiesToMeasure(uint64_t cache_bytes, uint64_t available_bytes) {
  constexpr uint64_t kBytes = kInputs * kFeatures * sizeof(BFloat16);
  const uint64_t room = available_bytes / 4 / (2 * kBytes);  // Packed ones have no more bytes.
  const uint64_t most = std::clamp(room, kCopiesMin, kCopiesMax);
  return std::clamp(2 * cache_bytes / kBytes, kCopiesMin, most);
}

bool PackedPays(const FormTimes& times) { return PackedOverBF16(times) <= kGivenForMemory; }

absl::StatusOr<FormTimes> MeasureForms(kernels::BlockType type, kernels::Dense& dense) {
  LAMINA_ASSIGN_OR_RETURN(auto blocks, PackBlocks(kernels::InfoOf(type), dense));
  const std::vector<BFloat16> values(kFeatures * kInputs, ToBFloat16(0.01f));
  LAMINA_ASSIGN_OR_RETURN(auto widened,
                          dense.Pack(values.data(), DType::kBF16, kFeatures, kInputs, {}));
  const size_t copies =
      CopiesToMeasure(LastCacheBytes(CoresOfThread()), QueryHostMemory().available_bytes);
  Copies packed(std::move(blocks), copies);
  Copies bf16(std::move(widened), copies);
  FormTimes times;
  times.packed.fill(1e9);
  times.bf16.fill(1e9);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kRows.size(); ++i) {  // In turns: other work disturbs both.
      const std::vector<BFloat16> in(kRows[i] * kInputs, ToBFloat16(0.5f));
      std::vector<float> out(kRows[i] * kFeatures);
      times.packed[i] = std::min(times.packed[i], RoundSeconds(packed, in, out, dense));
      times.bf16[i] = std::min(times.bf16[i], RoundSeconds(bf16, in, out, dense));
    }
    const double ratio = PackedOverBF16(times);
    if (round + 1 >= kFewRounds && std::max(ratio, 1 / ratio) > kClear) {
      break;
    }
  }
  return times;
}

bool WeightForms::Packs(kernels::BlockType type) {
  if (wanted_ != WeightForm::kAuto) {
    return wanted_ != WeightForm::kBF16;
  }
  const auto found = measured_.find(type);
  if (found != measured_.end()) {
    return found->second;
  }
  const absl::StatusOr<FormTimes> times = MeasureForms(type, dense_);
  const bool packs = times.ok() && PackedPays(*times);
  if (times.ok()) {
    LogInfo("weights of type ", kernels::InfoOf(type).name, packs ? " stay packed" : " are widened",
            absl::StrFormat(": %.2f, %.2f and %.2f of the time of bf16 at 1, 4 and 16 rows",
                            times->packed[0] / times->bf16[0], times->packed[1] / times->bf16[1],
                            times->packed[2] / times->bf16[2]));
  }
  return measured_.emplace(type, packs).first->second;
}

}  // namespace lamina::compute_node
