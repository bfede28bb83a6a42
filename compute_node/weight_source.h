// SPDX-License-Identifier: Apache-2.0
//
// WeightSource: whether the weights of a slice are where the slice can run with them. The worker
// asks before it begins a slice, and tells when the slice has been given to the device.
//
//   Ask(k) --not here, look again at t--> ... --here--> the slice runs --> Release(k)
//
// ResidentWeights holds all weights of a node for as long as it runs them. Another source may hold
// some slices' weights at a time and bring the next ones meanwhile; the worker then runs what other
// lanes have ready. The model's file, which weights are read from, is model::WeightSource.
//
// To add a source: implement this, and have ComputeNode make its executor with it.
//
// Threading: the data thread; what brings weights may have threads of its own.

#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "compute_node/model_weights.h"

namespace lamina::compute_node {

// What Ask() found.
struct WeightWait {
  bool here = true;
  Nanos look_again = 0;  // On RealClock(), where they are not here: nothing changes before.
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // The places of all weights; the same object as long as the source lives. Those of a slice may be
  // read from the time that Ask() finds them here until Release().
  virtual const ModelWeights& weights() const = 0;

  // Whether the weights of `slice` are here; if they are not, when to ask again. Never waits. The
  // first call that does not find them asks for them to be brought. Those that it has found stay
  // until as many calls of Release(slice) as of Ask(slice) that found them.
  // Errors: those of what brings weights. The slice can not run then.
  virtual absl::StatusOr<WeightWait> Ask(uint32_t slice) = 0;

  // All work of `slice` has been given to the device, which may not have run it yet.
  virtual void Release(uint32_t slice) = 0;
};

// All weights that the node runs are in the device's memory.
class ResidentWeights final : public WeightSource {
 public:
  explicit ResidentWeights(ModelWeights weights) : weights_(std::move(weights)) {}

  // Takes the place of those that are there, at the same address. No slice may run meanwhile.
  void Replace(ModelWeights weights) { weights_ = std::move(weights); }

  const ModelWeights& weights() const override { return weights_; }
  absl::StatusOr<WeightWait> Ask(uint32_t /*slice*/) override { return WeightWait{}; }
  void Release(uint32_t /*slice*/) override {}

 private:
  ModelWeights weights_;
};

}  // namespace lamina::compute_node
