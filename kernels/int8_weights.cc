// SPDX-License-Identifier: Apache-2.0
#include "kernels/int8_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/dtype.h"

namespace lamina::kernels {
namespace {

constexpr float kQuantumMax = 127;

// Returns 0 also for a group whose largest weight is not finite. Its own comparison, since max()
// may pass over a NaN.
float Largest(absl::Span<const float> group, bool& finite) {
  float largest = 0;
  for (const float weight : group) {
    finite = finite && std::isfinite(weight);
    largest = std::max(largest, std::fabs(weight));
  }
  return finite ? largest : 0;
}

// The quanta of a block, completed by zeros.
void FillQuanta(absl::Span<const float> weights, float scale, uint8_t* quanta) {
  std::fill_n(quanta, kInt8Block, uint8_t{0});
  for (size_t i = 0; i < weights.size() && scale != 0; ++i) {
    quanta[i] = static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(weights[i] / scale)));
  }
}

}  // namespace

bool QuantiseInt8(absl::Span<const float> row, uint8_t* blocks) {
  bool finite = true;
  for (size_t first = 0; first < row.size(); first += kInt8Group) {
    const absl::Span<const float> group = row.subspan(first, kInt8Group);
    BFloat16 bits = ToBFloat16(Largest(group, finite) / kQuantumMax);
    if (ToFloat(bits) < std::numeric_limits<float>::min()) {
      bits = {};
    }
    finite = finite && std::isfinite(ToFloat(ToBFloat16(kQuantumMax * ToFloat(bits))));
    for (size_t begin = 0; begin < group.size(); begin += kInt8Block, blocks += kInt8BlockBytes) {
      std::memcpy(blocks, &bits, sizeof(bits));
      FillQuanta(group.subspan(begin, kInt8Block), finite ? ToFloat(bits) : 0, blocks + 2);
    }
  }
  return finite;
}

void Int8Values(const uint8_t* blocks, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t* const block = blocks + i / kInt8Block * kInt8BlockBytes;
    BFloat16 scale;
    std::memcpy(&scale, block, sizeof(scale));
    const auto quantum = static_cast<int8_t>(block[2 + i % kInt8Block]);
    values[i] = ToFloat(ToBFloat16(static_cast<float>(quantum) * ToFloat(scale)));
  }
}

}  // namespace lamina::kernels
