// SPDX-License-Identifier: Apache-2.0
//
// StepTail: the end of a step: logits of the rows that are sampled or scored, in blocks of rows and
// chunks of the LM head, and what comes of them. Between chunks other lanes run; one step's tail is
// under way at a time.
//
// Threading: the data thread. Allocation: per step, for its results.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "compute_node/sequence_table.h"
#include "compute_node/worker_context.h"
#include "kernels/compute_device.h"
#include "kernels/sampling.h"
#include "model/grammar/grammar_cache.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class StepTail {
 public:
  // References must outlive this. `grammars` may be null where nothing samples by a form.
  StepTail(const WorkerContext& context, SequenceTable& sequences, ThreadPool& pool,
           model::GrammarCache* grammars);

  // Takes the memory. Errors: those of the device.
  absl::Status Prepare(uint32_t vocabulary);

  uint64_t buffer_bytes() const { return buffers_.bytes(); }  // Bytes of the device for logits.

  // Before the last slice of a step whose executor sums over shards: that slice runs on the rows
  // that are sampled or scored alone; forks share one. Errors: those of the device.
  absl::Status KeepRows(Lane& lane);

  enum class Outcome : uint8_t {
    kMore,     // Another chunk is to run.
    kEnded,    // The step's result is TakeResult().
    kOccupied  // Another lane's tail is under way; nothing was done.
  };

  // Runs the next chunk of the LM head for the lane, whose last slice has run up to it.
  // Errors: those of the device.
  absl::StatusOr<Outcome> Run(Lane& lane);

  // Requires: Run() has just said that a step has ended.
  plan::StepResult TakeResult() { return std::move(result_); }

 private:
  absl::Status Sample(const Lane& lane, size_t count);
  void AwaitGrammars(const Lane& lane, size_t count);
  absl::Status SampleOnDevice(const Lane& lane, size_t count);

  const WorkerContext& context_;
  SequenceTable& sequences_;
  ThreadPool& pool_;
  model::GrammarCache* const grammars_;

  const Lane* lane_ = nullptr;  // The lane whose tail is under way.
  size_t done_ = 0;             // Its rows that have been sampled or scored.
  size_t columns_ = 0;          // Logits of the next rows that are there.
  plan::StepResult result_;     // Result of the rows that are done.

  ValueBuffers buffers_;
  std::vector<uint32_t> kept_rows_;
  std::unique_ptr<kernels::RowSampler> sampler_;        // The device's; may be null.
  std::vector<kernels::SampleRequest> device_samples_;  // One for each row that is sampled.
  std::vector<uint32_t> host_rows_;                     // Rows that the host samples or scores.
  std::vector<kernels::SampleScratch> scratch_;         // One a thread.
};

}  // namespace lamina::compute_node
