// SPDX-License-Identifier: Apache-2.0
//
// Rates: what the formulas of a step need of a device and a link: seconds per byte and per
// operation, from a catalogue's entry (bandwidth times MBU, FLOPS times MFU) or from a calibration.
//
// Threading: pure.

#pragma once

#include <memory>

#include "cost/calibration.h"
#include "cost/catalogue.h"
#include "cost/estimate.h"
#include "cost/model_shape.h"

namespace lamina::cost {

struct DenseRates {
  Estimate seconds_per_byte;  // For each byte of weights read.
  Estimate seconds_per_flop;
  DenseTime time = DenseTime::kRoofline;
};

struct AttentionRates {
  Estimate fixed;                 // Seconds of one call, in addition to these:
  Estimate seconds_per_byte;      // for each byte of K and V that it reads,
  Estimate seconds_per_row = {};  // and for each of its rows.
};

// Times of the model at hand on the device, as a cluster measured them. They go before the rates.
struct MeasuredTimes {
  TimeCurve slice;              // One layer, over rows.
  TimeCurve head;               // The LM head, over sampled rows. May be empty.
  FittedLine prompt_attention;  // One layer, over operations. Without points it was not measured.
  FittedLine exchange;          // As Calibration has it.
  TimeCurve border;             // As Calibration has it.
};

struct DeviceRates {
  DenseRates dense;
  AttentionRates attention;
  std::shared_ptr<const MeasuredTimes> times;  // Null where this model was not measured.
  Estimate capacity;  // Bytes for weights, or K and V; a reserve is taken off.
};

struct LinkRates {
  Estimate latency;
  Estimate seconds_per_byte;
};

// What stays free of a device's memory for activations, windows and fragmentation. Memory of a
// plan is assumed for it, however well the device's own is known.
inline constexpr Estimate kReserve{0.1, Provenance::kAssumed};

DeviceRates RatesOf(const Device& device);

// A link that `sharers` devices of a machine use at the same time.
LinkRates RatesOf(const Link& link, double sharers);

// `rates` with the dense layers and the attention that `calibration` measured, by the curves whose
// shapes are nearest to the model's, and with `times` where one of them is the model's own. What it
// did not measure stays. Measured are `times`, and attention whose K, V and heads are the model's;
// the other lines are scaled, that of dense layers always, since `times` goes before it where it is
// the model's.
DeviceRates WithCalibration(const DeviceRates& rates, const Calibration& calibration,
                            const ModelShape& shape);

// Seconds of dense layers that read `bytes` of weights and do `flops` operations.
Estimate DenseSeconds(const DenseRates& rates, double bytes, double flops);

// Share of a device's peak that dense layers with `rows` rows reach (Figure 3 of the paper).
double ModelFlopsUtilisation(const ModelShape& shape, const Device& device, double rows);

}  // namespace lamina::cost
