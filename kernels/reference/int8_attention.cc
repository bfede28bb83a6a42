// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/int8_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/check.h"
#include "common/kv_form.h"

namespace lamina::kernels {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargestBFloat16 = 0x1.fep127;

// The least bf16 that is at least x, of 8 bits of significand: fewer below 2^-126. Requires: x > 0.
double UpToBFloat16(double x) {
  const double unit = std::exp2(std::max(std::floor(std::log2(x)), -126.0) - 7);
  return std::ceil(x / unit) * unit;
}

// Values [first, first + count * stride) of one scale, each as it comes back from INT8.
void Quantise(std::vector<double>& values, size_t first, size_t count, size_t stride) {
  double min = values[first];
  double max = values[first];
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    const double x = values[first + i * stride];
    min = std::min(min, x);
    max = std::max(max, x);
    finite = finite && std::isfinite(x);
  }
  const double wanted = std::max((max - min) / 255, std::max(std::abs(min), std::abs(max)) / 32767);
  const double step = wanted == 0 ? 1 : finite ? UpToBFloat16(wanted) : kNaN;
  const double zero = std::nearbyint(-min / step);
  for (size_t i = 0; i < count; ++i) {
    double& x = values[first + i * stride];
    x = finite && step <= kLargestBFloat16
            ? step * (std::clamp(std::nearbyint(x / step) + zero, 0.0, 255.0) - zero)
            : kNaN;
  }
}

std::vector<double> ToDoubles(absl::Span<const BFloat16> rows) {
  std::vector<double> values;
  for (const BFloat16 x : rows) {
    values.push_back(ToFloat(x));
  }
  return values;
}

}  // namespace

SeenKv SeeFrom(const AttentionDescriptor& layer, uint32_t position, absl::Span<const BFloat16> k,
               absl::Span<const BFloat16> v) {
  const size_t width = layer.kv_width();
  LAMINA_CHECK(k.size() == v.size() && position < k.size() / width);
  SeenKv seen{.int8_tokens = Int8TokensOf(position), .k = ToDoubles(k), .v = ToDoubles(v)};
  for (size_t block = 0; block < seen.int8_tokens; block += kInt8BlockTokens) {
    for (size_t channel = 0; channel < width; ++channel) {
      Quantise(seen.k, block * width + channel, kInt8BlockTokens, width);
    }
  }
  for (size_t token = 0; token < seen.int8_tokens; ++token) {
    for (size_t head = 0; head < layer.kv_heads; ++head) {
      Quantise(seen.v, token * width + head * layer.head_dim, layer.head_dim, 1);
    }
  }
  return seen;
}

std::vector<double> AttendSeen(const AttentionDescriptor& layer, const SeenKv& seen,
                               uint32_t position, absl::Span<const BFloat16> q) {
  LAMINA_CHECK(seen.int8_tokens == Int8TokensOf(position) && q.size() == layer.q_width());
  const size_t end = size_t{position} + 1;
  const size_t begin = layer.window != 0 && end > layer.window ? end - layer.window : 0;
  std::vector<double> out(layer.q_width(), 0.0);
  for (size_t head = 0; head < layer.query_heads; ++head) {
    const size_t column = head / layer.group() * layer.head_dim;
    std::vector<double> scores;
    for (size_t t = begin; t < end; ++t) {
      double s = 0;
      for (size_t i = 0; i < layer.head_dim; ++i) {
        s += double{ToFloat(q[head * layer.head_dim + i])} *
             seen.k[t * layer.kv_width() + column + i];
      }
      s *= double{layer.scale};
      scores.push_back(layer.soft_cap > 0 ? layer.soft_cap * std::tanh(s / layer.soft_cap) : s);
    }
    double m = *std::max_element(scores.begin(), scores.end());
    m = layer.sinks.empty() ? m : std::max(m, double{layer.sinks[head]});
    double sum = layer.sinks.empty() ? 0 : std::exp(double{layer.sinks[head]} - m);
    double* const row = out.data() + head * layer.head_dim;
    for (size_t t = begin; t < end; ++t) {
      const double p = std::exp(scores[t - begin] - m);
      sum += p;
      for (size_t i = 0; i < layer.head_dim; ++i) {
        row[i] += p * seen.v[t * layer.kv_width() + column + i];
      }
    }
    for (size_t i = 0; i < layer.head_dim; ++i) {
      row[i] /= sum;
    }
  }
  return out;
}

}  // namespace lamina::kernels
