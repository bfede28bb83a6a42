// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tile_choice.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "common/status_macros.h"

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kSteps = 3 * kTileSteps;
// Every branch of the loop: one tile of rows and two, whole and not, several passes, four at once.
constexpr size_t kRows[] = {1, 2, 7, 16, 17, 31, 32, 33, 48, 64, 75};
constexpr size_t kRowsMax = 75;
constexpr size_t kRowsOfAny = 33;
constexpr size_t kOutStride = kPanelFeatures + 1;

// Normal numbers of moderate size, as layers have them; or of all sizes, with zeros, subnormals and
// infinities among them.
BFloat16 RandomValue(bool any, Prng& prng) {
  if (!any) {
    return ToBFloat16(static_cast<float>(prng.Normal()));
  }
  const auto sign_and_fraction = static_cast<uint16_t>(prng.Below(2) << 15 | prng.Below(128));
  switch (prng.Below(16)) {
    case 0:
      return {static_cast<uint16_t>(sign_and_fraction & 0x8000u)};
    case 1:
      return {sign_and_fraction};  // A subnormal.
    case 2:
      return {static_cast<uint16_t>(sign_and_fraction | prng.Below(255) << 7)};
    case 3:
      if (prng.Below(64) == 0) {
        return {static_cast<uint16_t>((sign_and_fraction & 0x8000u) | 0x7f80u)};
      }
      [[fallthrough]];
    default:  // Products near the least normal number.
      return {static_cast<uint16_t>(sign_and_fraction | (58 + prng.Below(8)) << 7)};
  }
}

class TileProbe {
 public:
  explicit TileProbe(bool any)
      : words_(kSteps * kPanelFeatures), in_(kRowsMax * 2 * kSteps), bias_(kPanelFeatures) {
    Prng prng(any ? 2 : 1);
    for (uint32_t& word : words_) {
      const uint32_t first = RandomValue(any, prng).bits;
      word = first | uint32_t{RandomValue(any, prng).bits} << 16;
    }
    for (BFloat16& x : in_) {
      x = RandomValue(any, prng);
    }
    for (float& x : bias_) {
      x = static_cast<float>(prng.Normal());
    }
  }

  // In two calls, so that sums wait in memory between them.
  std::vector<float> Product(MultiplyTiles multiply, size_t rows, size_t strips) const {
    std::vector<float> out(rows * kOutStride, -1.0f);
    for (const size_t first : {size_t{0}, kTileSteps}) {
      multiply({.words = words_.data() + first * kStripFeatures,
                .strip_words = kSteps * kStripFeatures,
                .strips = strips,
                .steps = first == 0 ? kTileSteps : kSteps - kTileSteps,
                .in = in_.data() + 2 * first,
                .in_stride = 2 * kSteps,
                .rows = rows,
                .first = first == 0,
                .bias = first == 0 ? nullptr : bias_.data(),
                .out = out.data(),
                .out_stride = kOutStride});
    }
    return out;
  }

 private:
  std::vector<uint32_t> words_;
  std::vector<BFloat16> in_;
  std::vector<float> bias_;
};

bool Agree(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

absl::Status Compare(const TileProbe& probe, MultiplyTiles multiply, size_t rows, size_t strips) {
  const std::vector<float> got = probe.Product(multiply, rows, strips);
  const std::vector<float> wanted = probe.Product(MultiplyPanelEmulatedTiles, rows, strips);
  for (size_t i = 0; i < got.size(); ++i) {
    if (!Agree(got[i], wanted[i])) {
      return absl::InternalError(absl::StrCat(
          "products in tiles are not as Intel's manual defines them: row ", i / kOutStride, " of ",
          rows, ", feature ", i % kOutStride, " of ", strips * kStripFeatures, " is 0x",
          absl::Hex(std::bit_cast<uint32_t>(got[i]), absl::kZeroPad8), " instead of 0x",
          absl::Hex(std::bit_cast<uint32_t>(wanted[i]), absl::kZeroPad8)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ProbeTiles(MultiplyTiles multiply) {
  const TileProbe moderate(/*any=*/false);
  for (const size_t strips : {size_t{1}, size_t{2}, kPanelStrips}) {
    for (const size_t rows : kRows) {
      LAMINA_RETURN_IF_ERROR(Compare(moderate, multiply, rows, strips));
    }
  }
  // What an instruction does with values shows in any shape.
  return Compare(TileProbe(/*any=*/true), multiply, kRowsOfAny, kPanelStrips);
}

absl::Status CheckTiles(TileHost& host) {
  if (!host.HasInstructions()) {
    return absl::UnimplementedError("this processor has no AMX for bf16");
  }
  if (!host.SystemKeepsTiles()) {
    return absl::FailedPreconditionError(
        "the system refuses AMX's tiles: it keeps none for threads, as Linux does from 5.16 on");
  }
  // Before oneDNN is asked what it may use, which finds no tiles where the system refuses them.
  const absl::Status permission = host.Permission();
  if (!permission.ok()) {
    return absl::FailedPreconditionError(permission.message());
  }
  if (host.IsHeldBack()) {
    return absl::UnimplementedError("DNNL_MAX_CPU_ISA holds AMX back");
  }
  const absl::Status probe = host.Probe();
  return probe.ok() ? absl::OkStatus() : absl::FailedPreconditionError(probe.message());
}

}  // namespace lamina::kernels::cpu
