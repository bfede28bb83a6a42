// SPDX-License-Identifier: Apache-2.0
//
// EpochTopology: an epoch's configuration that was checked, and what each node does by it: which
// layers and heads it has, whose regions it opens, which lanes it runs, how its windows are shaped.
// The coordinator forms epochs with it; nodes check with it what they are told. Both sides derive
// the same, so nothing of it travels.
//
// EpochView, ComputeNodeView and MemoryNodeView derive without checking, from a configuration that
// somebody else owns. An EpochTopology owns its own; copies share it, and views of it live as long
// as any copy.
//
// Threading: any number of threads; nothing changes after construction.
// Determinism: pure functions of the configuration.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "plan/epoch_config.h"
#include "plan/pipeline_schedule.h"
#include "plan/stages.h"
#include "plan/window_layout.h"

namespace lamina::plan {

// Some nodes of an epoch: indices into its compute nodes and its memory nodes.
struct EpochNodes {
  std::vector<uint32_t> compute = {};
  std::vector<uint32_t> memory = {};
  friend bool operator==(const EpochNodes&, const EpochNodes&) = default;
};

// How a model replica lies on compute nodes.
enum class ReplicaForm : uint8_t {
  kWhole,  // Each compute node has all of it.
  kSplit,  // Some share one, in stages and shards (stages.h).
};

class ComputeNodeView;
class MemoryNodeView;

// What follows for the whole epoch. Requires, of every method: what EpochTopology::Create() checks.
class EpochView {
 public:
  // The configuration must outlive the view.
  explicit EpochView(const EpochConfig& config) : config_(&config) {}

  const EpochConfig& config() const { return *config_; }
  uint32_t compute_nodes() const { return static_cast<uint32_t>(config_->compute_nodes.size()); }
  uint32_t memory_nodes() const { return static_cast<uint32_t>(config_->memory_nodes.size()); }
  ComputeNodeView compute(uint32_t node) const;
  MemoryNodeView memory(uint32_t node) const;

  ReplicaForm form() const {
    return config_->stages.empty() ? ReplicaForm::kWhole : ReplicaForm::kSplit;
  }
  // Compute nodes that decode; the ones behind them are for prefill only.
  uint32_t decode_nodes() const { return compute_nodes() - config_->prefill_nodes; }
  // How many shards each replica that decodes has; 1: none. Those for prompts may have others.
  uint32_t shards() const;
  // The replicas for prefill only, and their lanes.
  PrefillLanes prefill_lanes() const;
  // Whether sequences have parts on several memory nodes, so that each takes part in every request.
  bool is_spread() const { return config_->partition != Partition::kRequest; }
  bool attends_at(AttentionPath path) const { return config_->attention_paths.Has(path); }

  // For shards of that index. Path local: replicas are apart, whatever the mode.
  PipelineSchedule Schedule(uint32_t shard = 0) const;
  // The shape of all nodes' windows. The two row sizes that only compute nodes know are 0.
  WindowShape window_shape() const;
  // The fewest KV heads of decode rows that go from any compute node to any memory node.
  uint32_t window_heads_min() const;

 private:
  const EpochConfig* config_;
};

// What one compute node does.
class ComputeNodeView {
 public:
  ComputeNodeView(const EpochConfig& config, uint32_t node) : epoch_(config), node_(node) {}

  uint32_t index() const { return node_; }
  const std::string& name() const { return epoch_.config().compute_nodes[node_]; }
  // The replica, layers and shard that it runs; without stages a whole replica of its own.
  Stage stage() const;
  bool has_all_layers() const { return stage().layers == epoch_.config().layers.size(); }
  bool is_for_prompts() const { return node_ >= epoch_.decode_nodes(); }
  // The heads that it asks memory node `node` for, perhaps none.
  HeadRange HeadsAt(const AttentionDescriptor& layer, uint32_t node) const;

  // Nodes whose regions it opens, to write there; and those that open its own.
  EpochNodes opens() const;
  EpochNodes opened_by() const { return opens(); }
  // The lanes of which it runs slices.
  std::vector<uint32_t> lanes() const;
  // Whether all slices of the lane's decode rows run on it, in every step.
  bool keeps(uint32_t lane) const;
  // Whether its device may exchange decode rows itself, as far as the configuration decides: the
  // device and the windows have the last word.
  bool may_wait_on_device() const;

 private:
  EpochView epoch_;
  uint32_t node_;
};

// What one memory node does.
class MemoryNodeView {
 public:
  MemoryNodeView(const EpochConfig& config, uint32_t node) : epoch_(config), node_(node) {}

  uint32_t index() const { return node_; }
  const std::string& name() const { return epoch_.config().memory_nodes[node_]; }
  uint32_t slots() const { return epoch_.config().slots[node_]; }
  // By which number joins name whoever has K and V of a sequence, here or here among others: its
  // own index, or under path local that of its replica.
  uint32_t holder() const;
  // The heads that it holds of the sequences that are there.
  HeadRange HeadsOf(const AttentionDescriptor& layer) const;
  // The heads that compute node `asker` asks it for, perhaps none.
  HeadRange HeadsFor(const AttentionDescriptor& layer, uint32_t asker) const;
  // The attention of each layer that it holds K and V of, over the heads that it holds.
  std::vector<AttentionDescriptor> layers() const;
  // Whether it has K and V of a sequence whose join names memory node `named`: all, some heads, or
  // perhaps some spans.
  bool Holds(uint32_t named) const;

  // Nodes whose regions it opens, to write there; and those that open its own. Memory nodes write
  // nothing to each other so far.
  EpochNodes opens() const;
  EpochNodes opened_by() const { return opens(); }
  // The lanes whose rows come to it.
  std::vector<uint32_t> lanes() const;
  // Whether its device may wait for queries itself, as far as the configuration decides.
  bool may_wait_on_device() const;

 private:
  EpochView epoch_;
  uint32_t node_;
};

inline ComputeNodeView EpochView::compute(uint32_t node) const { return {*config_, node}; }
inline MemoryNodeView EpochView::memory(uint32_t node) const { return {*config_, node}; }

class EpochTopology : public EpochView {
 public:
  // Errors: kInvalidArgument  names the epoch and what does not fit:
  //   prefill nodes or lanes that leave none to decode; prefill lanes that are no multiple of the
  //   replicas for prompts; stages for other nodes than the compute nodes, or that do not have each
  //   layer once; a replica of nodes for prompts and others; shards that do not have each head
  //   once; slots for other nodes than the memory nodes; a partition that is not chosen or not
  //   known, or heads or spans of another one; heads that do not fit the memory nodes or the
  //   layers; no attention path, one that this version does not know, or path local where compute
  //   nodes are not the ones that hold KV, some are for prompts, or those of a replica do not have
  //   the same slots.
  static absl::StatusOr<EpochTopology> Create(EpochConfig config);

  // The node of that name. Errors: kInvalidArgument  the configuration does not name it.
  absl::StatusOr<ComputeNodeView> FindCompute(const std::string& name) const;
  absl::StatusOr<MemoryNodeView> FindMemory(const std::string& name) const;

 private:
  explicit EpochTopology(std::shared_ptr<const EpochConfig> config)
      : EpochView(*config), owned_(std::move(config)) {}

  std::shared_ptr<const EpochConfig> owned_;
};

// The first of Create()'s checks: whether somebody decodes, and prompts' lanes are even.
absl::Status CheckRoles(const EpochConfig& config);

// The index of `name` among the nodes of a role. Errors: kInvalidArgument  it is not there.
absl::StatusOr<uint32_t> OwnIndex(const std::vector<std::string>& names, const std::string& name,
                                  uint64_t epoch);

}  // namespace lamina::plan
