// SPDX-License-Identifier: Apache-2.0
#include "compute_node/compute_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/link_options.h"
#include "common/log.h"
#include "common/memlock.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/fetch_path_maker.h"
#include "compute_node/local_path_maker.h"
#include "compute_node/memory_formula.h"
#include "compute_node/own_windows.h"
#include "compute_node/remote_path_maker.h"
#include "compute_node/sparse_path_maker.h"
#include "compute_node/streamed_weights.h"
#include "compute_node/streaming_path_maker.h"
#include "compute_node/token_rows.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"
#include "transport/registry.h"

namespace lamina::compute_node {
namespace {

// Bytes of the whole model's weights in bf16. One that is both embedding and LM head is held once.
uint64_t WidenedBytes(const model::Graph& graph) {
  uint64_t elements = 0;
  for (const model::Weight& weight : graph.weights) {
    elements += uint64_t{weight.rows} * weight.cols;
  }
  return elements * sizeof(BFloat16);
}

// Rows that run together: a step's, or tokens that are made from their numbers.
uint32_t RowsTogetherMax(const plan::EpochConfig& config) {
  return std::max(plan::StepRowsMax(config), std::min(config.made_tokens_max, TokenRows::kRows));
}

// What bounds the bytes of weights: their own budget, else the node's; 0 without either. Weights
// that exceed it come anew with each step, so that their bytes count more than the time it takes to
// widen them.
uint64_t BudgetOfWeights(const ComputeNodeOptions& options) {
  return options.weights_budget > 0 ? options.weights_budget : options.memory_budget;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeNode>> ComputeNode::Create(
    ComputeNodeOptions options, model::Model model, std::unique_ptr<kernels::ComputeDevice> device,
    ThreadPool& pool, ModelWeights::Progress progress) {
  std::unique_ptr<ComputeNode> node(new ComputeNode(std::move(options), std::move(model),
                                                    std::move(device), pool, std::move(progress)));
  LAMINA_RETURN_IF_ERROR(node->device_->Begin());
  LAMINA_RETURN_IF_ERROR(node->MakeExecutor({}));
  const uint32_t layers = node->executor_->slice_count() - 1;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    node->layers_.push_back(node->executor_->attention(layer).descriptor);
  }
  node->context_row_bytes_ = node->executor_->program().ContextRowBytesMax();
  const plan::Stage own = node->options_.layers.value_or(plan::Stage{.layers = layers});
  LAMINA_RETURN_IF_ERROR(node->CheckLayers(own));
  if (!node->options_.is_stage || node->options_.layers.has_value()) {
    LAMINA_RETURN_IF_ERROR(node->LoadStage(own));
  }
  return node;
}

ComputeNode::ComputeNode(ComputeNodeOptions options, model::Model model,
                         std::unique_ptr<kernels::ComputeDevice> device, ThreadPool& pool,
                         ModelWeights::Progress progress)
    : options_(std::move(options)),
      model_(std::move(model)),
      device_(std::move(device)),
      pool_(pool),
      progress_(std::move(progress)),
      memory_(options_.memory_budget),
      grammars_(options_.make_grammars, {}) {
  const WeightForm form = FormThatFits(options_.weight_form, WidenedBytes(model_.graph),
                                       WeightRoom(BudgetOfWeights(options_)));
  if (options_.weights_budget > 0) {
    weights_ = std::make_unique<StreamedWeights>(
        *device_, StreamedWeightsOptions{.budget = options_.weights_budget,
                                         .lanes = options_.lanes,
                                         .form = form,
                                         .directory = options_.weights_store,
                                         .ahead = options_.weights_ahead,
                                         .bus = options_.bus,
                                         .kv_first = options_.kv_first});
  } else {
    weights_ = std::make_unique<ResidentWeights>(*device_, form);
  }
  for (const plan::AttentionPath kind :
       {plan::AttentionPath::kRemote, plan::AttentionPath::kRemoteInt8}) {
    path_makers_.push_back(std::make_unique<RemotePathMaker>(kind, options_.name, *device_));
  }
  path_makers_.push_back(
      std::make_unique<LocalPathMaker>(options_.name, *device_, options_.holds_kv));
  for (const plan::AttentionPath kind :
       {plan::AttentionPath::kFetch, plan::AttentionPath::kRecompute,
        plan::AttentionPath::kHybrid}) {
    path_makers_.push_back(
        std::make_unique<FetchPathMaker>(kind, options_.name, *device_, kernels::CpuAttention()));
  }
  path_makers_.push_back(std::make_unique<SparsePathMaker>(*device_, kernels::CpuAttention(),
                                                           options_.resident_bytes));
  path_makers_.push_back(std::make_unique<StreamingPathMaker>(*device_, kernels::CpuAttention()));
}

ComputeNode::~ComputeNode() { LeaveEpoch(); }

absl::Status ComputeNode::CheckShapes(const plan::EpochConfig& config) const {
  if (config.layers.size() != layers_.size()) {
    return absl::FailedPreconditionError(absl::StrCat("the coordinator's model has ",
                                                      config.layers.size(), " layers, this node's ",
                                                      layers_.size()));
  }
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer] != config.layers[layer]) {
      return absl::FailedPreconditionError(
          absl::StrCat("attention of layer ", layer,
                       " differs between the coordinator's model and this node's"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<control::PreparedNode> ComputeNode::Configure(const plan::EpochConfig& config) {
  LeaveEpoch();
  const ActivityScope preparing(counters_.beat, ThreadActivity::kPreparing);
  LAMINA_RETURN_IF_ERROR(device_->Begin());
  LAMINA_ASSIGN_OR_RETURN(const uint32_t own,
                          plan::OwnIndex(config.compute_nodes, options_.name, config.epoch));
  LAMINA_RETURN_IF_ERROR(CheckShapes(config));
  LAMINA_RETURN_IF_ERROR(plan::CheckEpoch(config));
  UseThreads(config);
  const plan::Stage stage = plan::StageOf(config, own);
  LAMINA_RETURN_IF_ERROR(LoadStage(stage));
  plan::WindowShape shape = plan::WindowShapeOf(config);
  shape.context_row_bytes = context_row_bytes_;
  // All nodes have the same windows, also those that are no shards.
  shape.part_row_bytes = shape.shards == 1 ? 0 : model_.config.width * sizeof(float);
  if (executor_->program().PartRowBytesMax() > shape.part_row_bytes) {
    return absl::InternalError(absl::StrCat(
        "a part of a sum takes ", executor_->program().PartRowBytesMax(), " bytes a row, more ",
        "than the ", shape.part_row_bytes, " of the residual stream"));
  }
  LAMINA_RETURN_IF_ERROR(plan::WindowLayout::Check(shape));
  const plan::WindowLayout layout(shape);
  LAMINA_RETURN_IF_ERROR(executor_->Prepare(RowsTogetherMax(config)));
  const plan::EpochConfig own_config = plan::OfShard(config, stage.shard);
  LAMINA_RETURN_IF_ERROR(ReservePaths(own_config, stage));
  config_ = config;
  LAMINA_RETURN_IF_ERROR(control::TransportFault(MakeWindows(own_config, own, layout)));
  worker_ = std::make_unique<StepWorker>(
      StepWorker::Options{.config = own_config,
                          .shape = shape,
                          .node = own,
                          .vocabulary = model_.config.vocabulary,
                          .grammars = &grammars_,
                          .peer_deadline = options_.peer_deadline,
                          .window_memory = options_.window_memory},
      *executor_, *transport_, *region_, paths_, pool_, *reporter_, counters_);
  LAMINA_RETURN_IF_ERROR(worker_->Prepare());
  LAMINA_RETURN_IF_ERROR(CountMemory());
  const std::string windows =
      absl::StrCat(transport::DescribeMemory(region_->memory()), worker_->DescribeRows());
  LogInfo("epoch ", config.epoch, " lanes ", config.lanes, " windows ",
          FormatBytes(layout.compute_region_bytes()), " in ", windows, " transport ",
          transport_->scheme());
  control::PreparedNode prepared{.region = region_->Descriptor(), .windows = windows};
  for (const PathMaker* const path : paths_) {
    LogInfo("epoch ", config.epoch, " ", path->Describe());
    prepared.kv_arena = std::max(prepared.kv_arena, path->kv_arena());  // At most one has any.
  }
  return prepared;
}

absl::Status ComputeNode::CountMemory() {
  memory_.SetFormula(FormulaOf(*config_, model_.config, memory_.bytes(MemoryPart::kWeights)));
  uint64_t kv = 0;
  for (const PathMaker* const path : paths_) {
    kv += path->kv_bytes();
  }
  memory_.Set(MemoryPart::kKv, kv);
  memory_.Set(MemoryPart::kWindows, region_->bytes().size());
  const uint64_t scratch = ScratchBytes(*executor_, RowsTogetherMax(*config_));
  memory_.Set(MemoryPart::kActivations, worker_->buffer_bytes() + scratch);
  const absl::Status fits = memory_.Check();
  if (!fits.ok()) {
    LeaveEpoch();
  }
  return fits;
}

absl::Status ComputeNode::ReservePaths(const plan::EpochConfig& config, const plan::Stage& stage) {
  paths_.clear();
  for (const auto& maker : path_makers_) {
    if (config.attention_paths.Has(maker->kind())) {
      paths_.push_back(maker.get());
    } else {
      maker->Release();
    }
  }
  for (PathMaker* const path : paths_) {
    LAMINA_RETURN_IF_ERROR(path->Reserve(config, stage));
  }
  return absl::OkStatus();
}

absl::Status ComputeNode::MakeWindows(const plan::EpochConfig& config, uint32_t own,
                                      const plan::WindowLayout& layout) {
  const std::string uri = WithBusDirection(plan::TransportUri(config, options_.verbs_uri), "from");
  LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<SharedBus> bus, OpenBusOf(uri));
  counters_.bus.Use(std::move(bus));
  if (config.attention_paths.fetch()) {
    LAMINA_RETURN_IF_ERROR(
        CheckMemlock(uri, absl::StrCat("fetch.window: ", FormatBytes(config.fetch_bytes)),
                     layout.compute_region_bytes(), MemlockLimit()));
  }
  LAMINA_ASSIGN_OR_RETURN(OwnWindows windows, MakeOwnWindows(config, own, layout,
                                                             {.node = options_.name,
                                                              .transport_uri = uri,
                                                              .secret = options_.secret,
                                                              .memory = options_.window_memory}));
  transport_ = std::move(windows.transport);
  region_ = std::move(windows.region);
  return absl::OkStatus();
}

absl::Status ComputeNode::Connect(const plan::EpochPeers& peers) {
  if (worker_ == nullptr || !config_.has_value() || peers.epoch != config_->epoch) {
    return absl::AbortedError(absl::StrCat("not configured for epoch ", peers.epoch));
  }
  LAMINA_RETURN_IF_ERROR(OpenPeers(peers));
  thread_.Start(
      options_.cores, peers.epoch, [worker = worker_.get()] { return worker->Run(); }, reporter_);
  return absl::OkStatus();
}

absl::Status ComputeNode::OpenPeers(const plan::EpochPeers& peers) {
  const ActivityScope connecting(counters_.beat, ThreadActivity::kConnecting);
  const plan::WindowLayout layout(plan::WindowShapeOf(*config_));
  size_t failed = 0;
  auto queries = transport::OpenRegions(
      *transport_, peers.memory_regions, peers.epoch,
      {.bytes = layout.query_region_bytes(), .signal_words = layout.query_region_words()}, &failed,
      &counters_.beat);
  if (!queries.ok()) {
    return control::TransportFault(control::Blame(queries.status(), config_->memory_nodes, failed));
  }
  LAMINA_ASSIGN_OR_RETURN(const uint32_t own,
                          plan::OwnIndex(config_->compute_nodes, options_.name, config_->epoch));
  if (peers.compute_regions.size() != config_->compute_nodes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("epoch ", peers.epoch, " has regions of ", peers.compute_regions.size(),
                     " of ", config_->compute_nodes.size(), " compute nodes"));
  }
  std::vector<std::unique_ptr<transport::RemoteRegion>> replicas(peers.compute_regions.size());
  for (const uint32_t node : plan::ComputeNodeView(*config_, own).opens().compute) {
    counters_.beat.Raise();
    auto replica = transport::OpenRegionOf(
        *transport_, peers.compute_regions[node], peers.epoch,
        {.bytes = region_->bytes().size(), .signal_words = region_->signal_words()});
    if (!replica.ok()) {
      return control::TransportFault(
          control::Blame(replica.status(), config_->compute_nodes[node]));
    }
    replicas[node] = *std::move(replica);
  }
  worker_->SetPeers(*std::move(queries), std::move(replicas));
  return absl::OkStatus();
}

void ComputeNode::TakePlan(plan::StepPlan plan) {
  if (worker_ != nullptr) {
    for (const plan::SequenceJoin& join : plan.joins) {
      if (!join.sampling.form.any()) {
        grammars_.Prepare(join.sampling.form);  // While its prompt is worked on.
      }
    }
    worker_->PushPlan(std::move(plan));
  }
}

void ComputeNode::LeaveEpoch() {
  if (worker_ != nullptr) {
    worker_->Stop();
  }
  thread_.Join();
  worker_.reset();
  region_.reset();
  transport_.reset();
  config_.reset();
}

telemetry::NodeCounters ComputeNode::Counters() const {
  telemetry::NodeCounters counters = {
      .bytes_sent = counters_.bytes_sent.load(std::memory_order_relaxed),
      .bytes_received = counters_.bytes_received.load(std::memory_order_relaxed),
      .kv_bytes_read = counters_.kv_bytes_read.load(std::memory_order_relaxed),
      .units = counters_.units.load(std::memory_order_relaxed),
      .replayed_units = counters_.replayed_units.load(std::memory_order_relaxed),
      .device_units = counters_.device_units.load(std::memory_order_relaxed),
      .recomputed_tokens = counters_.recomputed_tokens.load(std::memory_order_relaxed),
      .weight_bytes = memory_.bytes(MemoryPart::kWeights),
      .streamed_bytes = counters_.streamed_bytes.load(std::memory_order_relaxed),
      .memory = memory_.Parts(),
      .memory_budget = memory_.budget(),
      .memory_formula = memory_.formula(),
      .activity = counters_.beat.activity(),
      .beats = counters_.beat.beats() + pool_.caller_steps()};
  counters.making = counters_.making.Get();
  if (options_.bus != nullptr) {
    counters.buses.push_back(telemetry::BusCountOf("to", options_.bus->Totals()));
  }
  if (options_.bus_from != nullptr) {
    counters.buses.push_back(telemetry::BusCountOf("from", options_.bus_from->Totals()));
  }
  telemetry::Count(counters_.meter, counters_.refusals, /*is_memory=*/false, counters);
  counters.unit_seconds_fixed = counters_.unit_line.fixed.load(std::memory_order_relaxed);
  counters.unit_seconds_slope = counters_.unit_line.slope.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace lamina::compute_node
