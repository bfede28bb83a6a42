// SPDX-License-Identifier: Apache-2.0
//
// What of the model a compute node holds: all of it, or the layers of a stage; and how fast the
// dense layers of a stage are, before it is known which.

#include <algorithm>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/cores.h"
#include "common/last_cache.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/compute_node.h"
#include "compute_node/kv_recompute.h"
#include "model/shard.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

// A small batch: weights are read for few rows, as in decode.
constexpr size_t kSpeedRows = 16;
// So many do not stay in a cache, as those of a stage do not.
constexpr size_t kSpeedWeights = 64'000'000;
constexpr int kSpeedRounds = 5;

// For an epoch of the model's layers, which is given the width of activations.
absl::Status PrepareMaking(SliceExecutor& executor, plan::EpochConfig& config,
                           KvRecompute& recompute) {
  if (!executor.device().is_host()) {
    return absl::UnimplementedError("the device is not a processor");
  }
  const SliceProgram& program = executor.program();
  const model::ValueId input = KvInputOf(program, 0);
  if (input != model::kNone) {
    config.activation_width = static_cast<uint32_t>(program.Width(input));
  }
  return recompute.Prepare();
}

}  // namespace

absl::Status ComputeNode::CheckLayers(const plan::Stage& stage) const {
  const auto layers = static_cast<uint32_t>(layers_.size());
  if (stage.layers == 0 || stage.layers > layers || stage.first_layer > layers - stage.layers) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", layers, " layers; the stage [",
                                                   stage.first_layer, ", +", stage.layers,
                                                   ") has others"));
  }
  return absl::OkStatus();
}

absl::Status ComputeNode::LoadLayers(const plan::Stage& stage) {
  LeaveEpoch();  // The epoch's worker would read the weights.
  LAMINA_RETURN_IF_ERROR(device_->Begin());
  LAMINA_RETURN_IF_ERROR(CheckLayers(stage));
  return LoadStage(stage);
}

void ComputeNode::DropWeights() {
  loaded_ = {};
  measured_.reset();
  weights_->Drop();
  memory_.Set(MemoryPart::kWeights, 0);
  counters_.streamed_bytes.store(0, std::memory_order_relaxed);
}

absl::Status ComputeNode::MakeExecutor(const ShardPart& shard) {
  LAMINA_ASSIGN_OR_RETURN(model::Graph graph, model::ShardGraph(model_.graph, shard));
  executor_.reset();
  graph_ = std::make_unique<model::Graph>(std::move(graph));
  DropWeights();
  LAMINA_ASSIGN_OR_RETURN(executor_, SliceExecutor::Create(*graph_, *weights_, *device_));
  return absl::OkStatus();
}

absl::Status ComputeNode::LoadStage(const plan::Stage& stage) {
  plan::Stage wanted = stage;
  wanted.replica = 0;
  if (wanted == loaded_) {
    return absl::OkStatus();
  }
  const ActivityScope loading(counters_.beat, ThreadActivity::kLoading);
  if (wanted.shard != shard_ || executor_ == nullptr) {
    LAMINA_RETURN_IF_ERROR(MakeExecutor(wanted.shard));
    shard_ = wanted.shard;
  }
  const uint32_t end = stage.first_layer + stage.layers;
  const bool last = end + 1 == executor_->slice_count();
  const std::vector<model::OpId> ops = executor_->program().OpsOf(
      stage.first_layer, last ? end + 1 : end, /*head=*/stage.shard.index == 0);
  DropWeights();  // Not both at once.
  LAMINA_RETURN_IF_ERROR(
      weights_->Load(executor_->program(), *model_.weights, ops, [this](double fraction) {
        counters_.beat.Raise();
        progress_(fraction);
      }));
  loaded_ = wanted;
  memory_.Set(MemoryPart::kWeights, weights_->bytes());
  counters_.streamed_bytes.store(weights_->streamed_bytes(), std::memory_order_relaxed);
  LogInfo("layers ", stage.first_layer, "-", end - 1, " of ", executor_->slice_count() - 1,
          stage.shard.count == 1
              ? ""
              : absl::StrCat(" shard ", stage.shard.index, " of ", stage.shard.count, " KV heads ",
                             stage.shard.heads, " MLP columns ", stage.shard.columns),
          " weights ", FormatBytes(weights_->bytes()));
  if (!weights_->Describe().empty()) {
    LogInfo("weights: ", weights_->Describe());
  }
  return absl::OkStatus();
}

void ComputeNode::UseThreads(const plan::EpochConfig& config) {
  const size_t threads =
      options_.pools_threads == 0 || config.attention_paths.Has(plan::AttentionPath::kLocal)
          ? pool_.threads()
          : options_.pools_threads;
  if (threads != pool_.threads_in_use()) {
    pool_.UseThreads(threads);
    LogInfo("epoch ", config.epoch, " threads ", threads, " of ", pool_.threads());
  }
}

PolicyMeasurement ComputeNode::OwnMeasurement() const {
  const uint32_t end = loaded_.first_layer + loaded_.layers;
  return {.layers = plan::LayersOfStage(layers_, loaded_),
          .slices = {.first = loaded_.first_layer,
                     .end = end,
                     .tail = end == layers_.size(),
                     .head = loaded_.shard.index == 0,
                     .shards = loaded_.shard.count},
          .pools_threads = std::max<size_t>(1, options_.pools_threads),
          .shared_cores = options_.shared_cores};
}

absl::StatusOr<plan::PolicyTimes> ComputeNode::MeasurePolicies() {
  if (measured_.has_value()) {
    return *measured_;
  }
  const ActivityScope measuring(counters_.beat, ThreadActivity::kLoading);
  absl::StatusOr<plan::PolicyTimes> times = plan::PolicyTimes();
  // All cores that the pool's threads may have count; the thread below has but one of them.
  const uint64_t cache_bytes = LastCacheBytes(CoresOfThread());
  std::thread thread([&] {
    if (!options_.cores.empty() && !PinThisThread(options_.cores)) {
      LogWarning("could not pin the measurement to the worker's cores");
    }
    times = MeasureOwn(cache_bytes);
  });
  thread.join();
  if (times.ok()) {
    measured_ = *times;
  }
  return times;
}

absl::StatusOr<plan::PolicyTimes> ComputeNode::MeasureOwn(uint64_t cache_bytes) {
  LAMINA_RETURN_IF_ERROR(device_->Begin());
  PolicyMeasurement what = OwnMeasurement();
  what.read_bytes = BytesToRead(cache_bytes);
  plan::EpochConfig config{.layers = layers_};
  KvRecompute recompute(config, *executor_);
  // Policies that fetch are served by a node that has the whole model.
  if (loaded_.layers == layers_.size() && loaded_.shard.count == 1) {
    if (const absl::Status made = PrepareMaking(*executor_, config, recompute); made.ok()) {
      what.make_kv = [&recompute]() -> absl::StatusOr<uint32_t> {
        LAMINA_RETURN_IF_ERROR(recompute.Try(KvRecompute::kRows));
        return static_cast<uint32_t>(KvRecompute::kRows);
      };
    } else {
      LogInfo("K and V cannot be made from activations: ", made.message());
    }
  }
  return MeasurePolicyTimes(what, *executor_, pool_);
}

absl::StatusOr<double> ComputeNode::MeasureDenseSpeed() {
  const SliceProgram& program = executor_->program();
  const uint32_t layers = executor_->slice_count() - 1;
  const uint32_t first = std::min(1u, layers - 1);  // Slice 0 is shorter than the others.
  uint32_t end = first + 1;
  while (end < layers && program.LinearWeights(program.OpsOf(first, end)) < kSpeedWeights) {
    ++end;
  }
  const std::vector<model::OpId> ops = program.OpsOf(first, end);
  const auto weights = static_cast<double>(program.LinearWeights(ops));
  LAMINA_RETURN_IF_ERROR(weights_->Load(program, *model_.weights, ops, [](double) {}));
  LAMINA_RETURN_IF_ERROR(executor_->Prepare(kSpeedRows));
  LAMINA_ASSIGN_OR_RETURN(ValueBuffers buffers, executor_->MakeBuffers(kSpeedRows));
  std::vector<uint32_t> ids(kSpeedRows, 0);
  std::vector<uint32_t> positions(kSpeedRows, 0);
  LAMINA_RETURN_IF_ERROR(executor_->SetRows({ids, positions}, buffers));
  double best = 0;
  for (int round = 0; round < kSpeedRounds; ++round) {
    const Nanos start = RealClock().Now();
    for (uint32_t slice = first; slice < end; ++slice) {
      executor_->RunBeforeSend(slice, buffers);
      executor_->RunAfterSend(slice, buffers);
    }
    LAMINA_RETURN_IF_ERROR(device_->Synchronize());
    const double seconds = std::max(1e-9, ToSeconds(RealClock().Now() - start));
    best = std::max(best, weights / seconds);
  }
  DropWeights();
  LogInfo("dense speed ", absl::StrFormat("%.2f", best / 1e9), "G weights/s over layers ", first,
          "-", end - 1);
  return best;
}

}  // namespace lamina::compute_node
