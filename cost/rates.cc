// SPDX-License-Identifier: Apache-2.0
#include "cost/rates.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace lamina::cost {
namespace {

// How far `a` is from `b` by ratio.
double Apart(double a, double b) { return std::abs(std::log(a / b)); }

// The curve with the least distance; null where there is none.
template <typename Curve, typename Distance>
const Curve* Nearest(const std::vector<Curve>& curves, Distance distance) {
  const auto it =
      std::min_element(curves.begin(), curves.end(),
                       [&](const Curve& a, const Curve& b) { return distance(a) < distance(b); });
  return it == curves.end() ? nullptr : &*it;
}

// Those of the canonical kernel, which every cluster can have; where it was not measured, of the
// one that was measured first.
std::vector<AttentionCurve> CurvesOfOneKernel(const Calibration& calibration) {
  const auto of = [&](const std::string& kernel) {
    std::vector<AttentionCurve> curves;
    std::copy_if(calibration.attentions.begin(), calibration.attentions.end(),
                 std::back_inserter(curves),
                 [&](const AttentionCurve& curve) { return curve.kernel == kernel; });
    return curves;
  };
  std::vector<AttentionCurve> curves = of("canonical");
  return curves.empty() && !calibration.attentions.empty() ? of(calibration.attentions[0].kernel)
                                                           : curves;
}

// The curve whose K and V are nearest to the model's, of these the one whose heads share them most
// alike, and of these the one with the most points: a curve of one size has a slope, and says
// nothing about few tokens.
const AttentionCurve* NearestAttention(const std::vector<AttentionCurve>& curves,
                                       const ModelShape& shape) {
  const double group = Real(shape.query_heads) / shape.kv_heads;
  return Nearest(curves, [&](const AttentionCurve& curve) {
    return std::tuple(Apart(curve.head_bytes, shape.KvBytesPerTokenLayer()),
                      Apart(curve.group, group), -static_cast<double>(curve.bytes.points));
  });
}

bool IsSame(double a, double b) { return std::abs(a - b) <= 1e-3 * b; }

bool IsOfTheModel(const AttentionCurve& curve, const ModelShape& shape) {
  return IsSame(curve.head_bytes, shape.KvBytesPerTokenLayer()) &&
         IsSame(curve.group, Real(shape.query_heads) / shape.kv_heads);
}

// What was measured of a layer of this very shape; null where none was.
std::shared_ptr<const MeasuredTimes> TimesOf(const SliceCurve& slice,
                                             const Calibration& calibration,
                                             const ModelShape& shape) {
  if (!IsSame(slice.weights, shape.LayerWeights()) ||
      !IsSame(slice.row_flops, shape.LayerFlopsPerRow())) {
    return nullptr;
  }
  auto times = std::make_shared<MeasuredTimes>(MeasuredTimes{
      .slice = slice.times, .exchange = calibration.exchange, .border = calibration.border});
  for (const HeadCurve& head : calibration.heads) {
    if (IsSame(head.weights, shape.HeadWeights())) {
      times->head = head.times;
    }
  }
  for (const PromptAttentionCurve& curve : calibration.prompt_attentions) {
    if (IsSame(curve.token_flops, 4.0 * shape.query_heads * shape.head_dim)) {
      times->prompt_attention = curve.flops;
    }
  }
  return times;
}

}  // namespace

DeviceRates RatesOf(const Device& device) {
  const Estimate bandwidth = device.bandwidth.estimate();
  const Estimate flops = device.flops.at("bf16").estimate();
  return {.dense = {.seconds_per_byte = 1.0 / (bandwidth * device.mbu_dense.estimate()),
                    .seconds_per_flop = 1.0 / (flops * device.mfu.estimate()),
                    .time = device.dense_time},
          .attention = {.fixed = {},
                        .seconds_per_byte = 1.0 / (bandwidth * device.mbu_attention.estimate())},
          .capacity = (Estimate{1} - kReserve) * device.capacity.estimate()};
}

LinkRates RatesOf(const Link& link, double sharers) {
  return {.latency = link.latency.estimate(),
          .seconds_per_byte = sharers / link.bandwidth.estimate()};
}

DeviceRates WithCalibration(const DeviceRates& rates, const Calibration& calibration,
                            const ModelShape& shape) {
  DeviceRates calibrated = rates;
  const SliceCurve* slice = Nearest(calibration.slices, [&](const SliceCurve& curve) {
    return Apart(curve.weights, shape.LayerWeights());
  });
  if (slice != nullptr) {
    calibrated.dense = {
        .seconds_per_byte = {slice->rows.fixed / (kElementBytes * slice->weights_read),
                             Provenance::kScaled},
        .seconds_per_flop = {slice->rows.slope / slice->row_flops, Provenance::kScaled},
        .time = DenseTime::kLine};
    calibrated.times = TimesOf(*slice, calibration, shape);
  }
  const std::vector<AttentionCurve> curves = CurvesOfOneKernel(calibration);
  if (const AttentionCurve* attention = NearestAttention(curves, shape); attention != nullptr) {
    const Provenance by =
        IsOfTheModel(*attention, shape) ? Provenance::kMeasured : Provenance::kScaled;
    calibrated.attention = {.fixed = {attention->bytes.fixed, by},
                            .seconds_per_byte = {attention->bytes.slope, by},
                            .seconds_per_row = {attention->bytes.row, by}};
  }
  return calibrated;
}

Estimate DenseSeconds(const DenseRates& rates, double bytes, double flops) {
  const Estimate reads = bytes * rates.seconds_per_byte;
  const Estimate arithmetic = flops * rates.seconds_per_flop;
  return rates.time == DenseTime::kLine ? reads + arithmetic : Max(reads, arithmetic);
}

double ModelFlopsUtilisation(const ModelShape& shape, const Device& device, double rows) {
  const double flops = rows * shape.LayerFlopsPerRow();
  const Estimate seconds =
      DenseSeconds(RatesOf(device).dense, kElementBytes * shape.LayerWeightsRead(rows), flops);
  return flops / (seconds.value * device.flops.at("bf16").value);
}

}  // namespace lamina::cost
