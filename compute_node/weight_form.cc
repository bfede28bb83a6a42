// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weight_form.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/cores.h"
#include "common/host_memory.h"
#include "common/last_cache.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/reads_seen.h"

namespace lamina::compute_node {
namespace {

// A layer as models have it, inputs a multiple of every block. A round has kProducts of each form
// and number of rows, which go on in the copies where the one before ended, so that it takes as
// long however many there are; the fewest have 63 MB as bf16. Where one form takes kClear times as
// long as the other in each of the first few rounds, there are no others.
constexpr size_t kInputs = 1536;
constexpr size_t kFeatures = 4096;
constexpr uint64_t kLayerBytes = kInputs * kFeatures * sizeof(BFloat16);
constexpr size_t kProducts = 3;
constexpr uint64_t kCopiesMin = 5;
constexpr uint64_t kCopiesMax = 40;
constexpr std::array<size_t, 3> kRows = {1, 4, 16};
constexpr size_t kRounds = 10;
constexpr size_t kFewRounds = 4;
// Slow rounds, or fast ones, count from so many on, and where they are one of four.
constexpr size_t kGroupMin = 2;
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
  return std::max(1e-9, all.count() / static_cast<double>(kProducts));
}

// All numbers of rows once, each with both forms, in an order that turns round.
FormTimes MeasureRound(bool packed_first, Copies& packed, Copies& bf16, kernels::Dense& dense) {
  FormTimes round;
  for (size_t i = 0; i < kRows.size(); ++i) {
    const std::vector<BFloat16> in(kRows[i] * kInputs, ToBFloat16(0.5f));
    std::vector<float> out(kRows[i] * kFeatures);
    for (const bool is_packed : {packed_first, !packed_first}) {
      (is_packed ? round.packed : round.bf16)[i] =
          RoundSeconds(is_packed ? packed : bf16, in, out, dense);
    }
  }
  return round;
}

// Times of steps at numbers of rows that are equally likely.
double PackedOverBF16(const FormTimes& round) {
  return std::accumulate(round.packed.begin(), round.packed.end(), 0.0) /
         std::accumulate(round.bf16.begin(), round.bf16.end(), 0.0);
}

std::vector<double> RatiosOf(absl::Span<const FormTimes> rounds) {
  std::vector<double> ratios(rounds.size());
  std::transform(rounds.begin(), rounds.end(), ratios.begin(), PackedOverBF16);
  return ratios;
}

void LogCompared(kernels::BlockType type, const FormsCompared& compared, bool packs,
                 size_t rounds) {
  LogInfo("weights of type ", kernels::InfoOf(type).name, packs ? " stay packed" : " are widened",
          absl::StrFormat(": %.2f, %.2f and %.2f of the time of bf16 at 1, 4 and 16 rows, %.2f "
                          "together, and at most %.2f may be; in %d rounds bf16 came at %.1f to "
                          "%.1f GB/s",
                          compared.by_rows[0], compared.by_rows[1], compared.by_rows[2],
                          compared.ratio, kGivenForMemory, rounds, compared.reads_low / 1e9,
                          compared.reads_high / 1e9));
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
  const uint64_t room = available_bytes / 4 / (2 * kLayerBytes);  // Packed ones have no more bytes.
  const uint64_t most = std::clamp(room, kCopiesMin, kCopiesMax);
  return std::clamp(2 * cache_bytes / kLayerBytes, kCopiesMin, most);
}

FormsCompared CompareForms(absl::Span<const FormTimes> rounds) {
  std::vector<double> reads;
  for (const FormTimes& round : rounds) {
    reads.push_back(static_cast<double>(kLayerBytes) / round.bf16[0]);
  }
  const ReadsSeen seen = SeenIn(reads, std::max(kGroupMin, (rounds.size() + 3) / 4));
  FormsCompared compared = {.ratio = 1, .reads_low = seen.low, .reads_high = seen.high};
  const std::vector<double> ratios = RatiosOf(rounds);
  for (const std::vector<size_t>& group : seen.groups) {
    std::vector<double> own;
    for (const size_t round : group) {
      own.push_back(ratios[round]);
    }
    compared.ratio *=
        std::pow(LowerMedian(std::move(own)), 1.0 / static_cast<double>(seen.groups.size()));
  }
  for (size_t i = 0; i < compared.by_rows.size(); ++i) {
    std::vector<double> own;
    for (const FormTimes& round : rounds) {
      own.push_back(round.packed[i] / round.bf16[i]);
    }
    compared.by_rows[i] = LowerMedian(std::move(own));
  }
  return compared;
}

bool PackedPays(absl::Span<const FormTimes> rounds) {
  return CompareForms(rounds).ratio <= kGivenForMemory;
}

bool EnoughRounds(absl::Span<const FormTimes> rounds) {
  if (rounds.size() < kFewRounds || rounds.size() >= kRounds) {
    return rounds.size() >= kRounds;
  }
  const std::vector<double> ratios = RatiosOf(rounds);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  return *least > kClear || *most < 1 / kClear;
}

absl::StatusOr<std::vector<FormTimes>> MeasureForms(kernels::BlockType type,
                                                    kernels::Dense& dense) {
  LAMINA_ASSIGN_OR_RETURN(auto blocks, PackBlocks(kernels::InfoOf(type), dense));
  const std::vector<BFloat16> values(kFeatures * kInputs, ToBFloat16(0.01f));
  LAMINA_ASSIGN_OR_RETURN(auto widened,
                          dense.Pack(values.data(), DType::kBF16, kFeatures, kInputs, {}));
  const size_t copies =
      CopiesToMeasure(LastCacheBytes(CoresOfThread()), QueryHostMemory().available_bytes);
  Copies packed(std::move(blocks), copies);
  Copies bf16(std::move(widened), copies);
  std::vector<float> out(kFeatures);
  const std::vector<BFloat16> row(kInputs, ToBFloat16(0.5f));
  for (Copies* const form : {&packed, &bf16}) {  // The first ones wake the threads.
    static_cast<void>(RoundSeconds(*form, row, out, dense));
  }
  std::vector<FormTimes> rounds;
  while (!EnoughRounds(rounds)) {
    rounds.push_back(MeasureRound(rounds.size() % 2 == 0, packed, bf16, dense));
  }
  return rounds;
}

bool WeightForms::Packs(kernels::BlockType type) {
  if (wanted_ != WeightForm::kAuto) {
    return wanted_ != WeightForm::kBF16;
  }
  const auto found = measured_.find(type);
  if (found != measured_.end()) {
    return found->second;
  }
  const absl::StatusOr<std::vector<FormTimes>> rounds = MeasureForms(type, dense_);
  const bool packs = rounds.ok() && PackedPays(*rounds);
  if (rounds.ok()) {
    LogCompared(type, CompareForms(*rounds), packs, rounds->size());
  }
  return measured_.emplace(type, packs).first->second;
}

}  // namespace lamina::compute_node
