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
// To add a source: implement HeldWeights, and have ComputeNode make it.
//
// Threading: the data thread; what brings weights may have threads of its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "compute_node/model_weights.h"
#include "compute_node/slice_program.h"
#include "kernels/compute_device.h"
#include "model/graph.h"

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

  // While Ask() does not find the weights of `slice`: whether what makes columns of q, k and v from
  // `first_column` on has come before the others (SliceExecutor::RunKvOps()). It may be read until
  // the next call of Ask(), SetEarliest() or Release().
  virtual bool KvHere(uint32_t /*slice*/, size_t /*first_column*/) { return false; }

  // All work of `slice` has been given to the device, which may not have run it yet.
  virtual void Release(uint32_t slice) = 0;

  // Whether slices come in their order, once for all lanes that are near each other, so that steps
  // should begin together.
  virtual bool comes_in_order() const { return false; }
  // No step under way asks for slices before `slice` any more, before all of them have ended. To be
  // told before Ask() where several lanes ask.
  virtual void SetEarliest(uint32_t /*slice*/) {}
};

// Says for people in which forms weights are, and how many bytes of each.
std::string DescribeForms(const ModelWeights& weights);

// As Ask(), but waits until they are here. For what is prepared before steps run: the data thread
// goes on with other lanes instead.
absl::Status AskAndWait(WeightSource& source, uint32_t slice);

// A source that a node loads from the model's file.
class HeldWeights : public WeightSource {
 public:
  // Loads what the ops need, in the place of what was there: those of SliceProgram::OpsOf() of the
  // slices that run here. No slice may run meanwhile. Nothing is there after an error.
  // Errors: those of ModelWeights::Load() and of where else weights are kept.
  virtual absl::Status Load(const SliceProgram& program, const model::WeightSource& source,
                            absl::Span<const model::OpId> ops,
                            const ModelWeights::Progress& progress) = 0;
  // Gives all memory back.
  virtual void Drop() = 0;

  virtual uint64_t bytes() const = 0;                    // Bytes that weights take on the device.
  virtual uint64_t streamed_bytes() const { return 0; }  // Bytes that come in a step.
  // Says for people in which form weights are, or where else; may be empty.
  virtual std::string Describe() const = 0;
};

// All weights that the node runs are in the device's memory.
class ResidentWeights final : public HeldWeights {
 public:
  // The device must outlive this.
  ResidentWeights(kernels::ComputeDevice& device, WeightForm form)
      : ResidentWeights(device, form, ModelWeights::None(device)) {}
  // Holds these from the beginning.
  ResidentWeights(kernels::ComputeDevice& device, ModelWeights weights)
      : ResidentWeights(device, WeightForm::kBF16, std::move(weights)) {}

  absl::Status Load(const SliceProgram& program, const model::WeightSource& source,
                    absl::Span<const model::OpId> ops,
                    const ModelWeights::Progress& progress) override {
    Drop();
    LAMINA_ASSIGN_OR_RETURN(weights_,
                            ModelWeights::Load(program.graph(), source, device_, ops, progress,
                                               /*packed=*/{}, &forms_));
    return absl::OkStatus();
  }
  void Drop() override { weights_ = ModelWeights::None(device_); }
  uint64_t bytes() const override { return weights_.bytes(); }
  std::string Describe() const override { return DescribeForms(weights_); }

  const ModelWeights& weights() const override { return weights_; }
  absl::StatusOr<WeightWait> Ask(uint32_t /*slice*/) override { return WeightWait{}; }
  bool KvHere(uint32_t /*slice*/, size_t /*first_column*/) override { return true; }
  void Release(uint32_t /*slice*/) override {}

 private:
  ResidentWeights(kernels::ComputeDevice& device, WeightForm form, ModelWeights weights)
      : device_(device), forms_(form, device.dense()), weights_(std::move(weights)) {}

  kernels::ComputeDevice& device_;
  WeightForms forms_;
  ModelWeights weights_;
};

}  // namespace lamina::compute_node
