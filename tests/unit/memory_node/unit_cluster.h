// SPDX-License-Identifier: Apache-2.0
//
// UnitCluster: the memory nodes of an epoch, each an AttentionWorker on a thread of its own, and
// the test in place of the coordinator and of all compute nodes. It plans steps of sequences with
// random K, V and queries, puts the windows of each unit, and compares what comes back with plain
// attention over whole sequences, bit for bit.
//
// Threading: the test's thread, which plays every compute node.

#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "common/device_memory.h"
#include "common/kv_form.h"
#include "common/thread_pool.h"
#include "kernels/int8_runs.h"
#include "kernels/kv_device.h"
#include "memory_node/attention_worker.h"
#include "plan/attention_paths.h"
#include "plan/epoch_config.h"
#include "plan/fetch_ring.h"
#include "plan/query_window.h"
#include "plan/step_plan.h"
#include "plan/window_layout.h"
#include "transport/fake/fake_network.h"
#include "transport/transport.h"

namespace lamina::memory_node {

struct UnitClusterOptions {
  uint32_t compute_nodes = 1;
  uint32_t memory_nodes = 1;
  uint32_t lanes = 1;
  uint32_t layers = 2;
  AttentionDescriptor layer = {.query_heads = 6, .kv_heads = 3, .head_dim = 16, .scale = 0.25f};
  PipelineMode mode = PipelineMode::kFixed;
  Partition partition = Partition::kRequest;
  std::vector<uint32_t> heads;    // Partition head: of each memory node.
  uint32_t span_tokens = 0;       // Partition token_range.
  std::vector<uint32_t> shards;   // KV heads of each shard of the one replica.
  uint64_t fetch_bytes = 0;       // Rows attend at the compute node, with windows of so many bytes.
  bool attends_too = false;       // With fetch_bytes: those of the last lane at the memory nodes.
  uint32_t activation_width = 0;  // With fetch_bytes: tokens bring activations,
  uint32_t activation_share = 0;  // which slots hold besides K and V, or so many in their place.
  uint32_t bare_tokens = 0;       // So many first tokens of each sequence are said to be bare,
  plan::ResidentTokens resident = {};  // and these to have activations on the compute node.
  uint32_t made_tokens_max = 0;        // With fetch_bytes: it makes tokens from their numbers.
  bool sparse = false;                 // With fetch_bytes: the compute node names tokens.
  StreamingHeads streaming = {};       // With fetch_bytes: heads that stream.
  uint32_t int8_tails = 0;             // K and V are INT8, of so many sequences at most.
  bool whole_tiles = false;            // Each extent begins with a tile of its own.
  // With fetch_bytes: paths in addition, of which no steps are made.
  plan::AttentionPaths also = {};
  Nanos peer_deadline = Seconds(60);
  bool device_waits = false;
  // Where K and V lie; the processor's if not set. Query windows lie in `window_memory` if it is.
  kernels::KvDeviceMaker make_device;
  DeviceMemory* window_memory = nullptr;
  // Over shm:// nodes write K and V into windows themselves.
  std::string transport = "fake://";
  // If not set: shm:// where that is the transport, else fake:// with these options.
  std::function<std::unique_ptr<transport::Transport>(DeviceMemory*)> make_transport;
  transport::FakeNetworkOptions network = {};
};

// A row or a prompt chunk of a step, by the number of its sequence.
struct StepSpec {
  uint32_t lane = 0;
  uint64_t step = 1;
  std::vector<uint32_t> rows;                          // Each one more token.
  std::vector<std::pair<uint32_t, uint32_t>> prompts;  // So many more tokens.
  plan::Chunking chunking = {};
  uint32_t recomputed = 0;
};

class UnitCluster {
 public:
  static constexpr uint64_t kEpoch = 7;
  static constexpr uint32_t kContext = 1024;  // Tokens of a sequence, at most.
  static constexpr uint32_t kSequences = 16;  // Their numbers are below.
  static constexpr uint32_t kSlots = 8192;
  static constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.

  explicit UnitCluster(const UnitClusterOptions& options);
  ~UnitCluster();

  // Begins to serve; links are measured, unless they are not to be.
  void Start(bool measure = true);

  // A window of the unit as it should be: of the sender that the schedule names first.
  struct Window {
    uint32_t memory_node = 0;
    uint32_t sender = 0;
    uint32_t lane = 0;
    uint64_t value = 0;  // Its last piece's.
    plan::WindowHeader header;
    plan::QueryShape shape;
    std::vector<std::byte> bytes;  // As it lies.
  };

  // What a step consists of: made once, in the order in which steps of all lanes begin.
  struct Step {
    StepSpec spec;
    plan::StepPlan plan;
    std::vector<uint32_t> positions;  // Decode rows', then chunk tokens'.
    std::vector<uint32_t> sequences;  // Likewise.
  };
  Step MakeStep(const StepSpec& spec);

  void PushPlan(const Step& step);
  // The windows of a layer's unit, of all senders and memory nodes; makes rows and what must come.
  std::vector<Window> MakeWindows(const Step& step, uint32_t layer);
  // Puts one piece, or a whole window piece by piece.
  void PutPiece(const Window& window, uint32_t piece);
  void Put(const Window& window);
  // Puts the header alone and raises the value.
  void PutHeader(const Window& window);
  // Waits for the replies to the windows and compares them with what must come.
  void ExpectReplies(const Step& step, uint32_t layer, const std::vector<Window>& windows);
  // Plan, windows and replies of all layers.
  void Run(const StepSpec& spec);
  // Windows and replies of one layer.
  void RunUnit(const Step& step, uint32_t layer);

  // Ends the nodes, which must have served well.
  void Stop();
  // How the node's worker ended; waits for it.
  absl::Status EndOf(uint32_t memory_node = 0);
  bool ended(uint32_t memory_node = 0) const { return nodes_[memory_node]->over; }

  // One more member of the network.
  std::unique_ptr<transport::Transport> MakeTransport() { return options_.make_transport(nullptr); }
  // Compute node c0 raises the word of a memory node that no window has.
  uint32_t spare_word() const { return layout_.query_region_words(); }
  void RaiseSpareWord(uint32_t memory_node, uint64_t value);

  // Waits for a piece that comes to compute node c0.
  void AwaitFetched(uint32_t memory_node, uint32_t lane, uint64_t piece);
  // And takes note of where it lies, with so many bytes behind its header: pieces of a memory node
  // and lane are noted in order, all of them.
  void AwaitPiece(uint32_t memory_node, uint32_t lane, uint64_t piece, size_t bytes);
  // A noted piece: where its bytes begin behind its header, and for how many there is room.
  const BFloat16* Fetched(uint32_t memory_node, uint32_t lane, uint64_t piece) const;
  size_t FetchedRoom(uint32_t memory_node, uint32_t lane, uint64_t piece) const;
  // The last piece that has come.
  uint64_t LastFetched(uint32_t memory_node, uint32_t lane) const;
  // Puts the window of token sets of a step, as it is, to the memory node; c0 is the sender.
  void PutTokenSets(uint32_t memory_node, const Step& step, const plan::WindowHeader& header,
                    const std::vector<uint64_t>& sets);
  // c0 has used up so many pieces.
  void RaiseCredit(uint32_t memory_node, uint32_t lane, uint64_t pieces);
  // Fills all that a noted piece takes of its windows. Before its credit.
  void FillFetched(uint32_t memory_node, uint32_t lane, uint64_t piece, BFloat16 value);
  // Fills both windows of a memory node and lane. Before any piece.
  void FillWindows(uint32_t memory_node, uint32_t lane, BFloat16 value);
  // What tokens bring with `activation_width`.
  static BFloat16 Activation(uint32_t sequence, uint32_t position, uint32_t layer,
                             uint32_t element);
  // K and V of the sequence's first tokens, of one head, to slots from 0 on.
  void CopyKv(uint32_t sequence, uint32_t layer, uint32_t head, uint32_t tokens, BFloat16* k,
              BFloat16* v);

  plan::EpochPeers Descriptors() const;
  transport::Transport& transport_of(uint32_t node) { return *nodes_[node]->transport; }

  const plan::EpochConfig& config() const { return config_; }
  const plan::WindowLayout& layout() const { return layout_; }
  AttentionWorker& worker(uint32_t node = 0) { return *nodes_[node]->worker; }
  WorkerCounters& counters(uint32_t node = 0) { return nodes_[node]->counters; }
  uint64_t Refused(const std::string& reason, uint32_t node = 0) const;
  uint64_t refusals(uint32_t node = 0) const { return nodes_[node]->counters.refusals.total(); }
  // The last value that a compute node's region shows of a memory node's replies.
  uint64_t Replied(uint32_t compute_node, uint32_t memory_node, uint32_t lane) const;
  // Waits until the node's thread has gone round a few times: it has seen what is there.
  void AwaitTurns(uint32_t node = 0);
  // Waits until it shows that value.
  void AwaitReply(uint32_t compute_node, uint32_t memory_node, uint32_t lane, uint64_t value);

 private:
  struct Node {
    std::unique_ptr<transport::Transport> transport;
    DeviceAllocation device_replies;
    std::unique_ptr<transport::Region> region;
    std::unique_ptr<kernels::KvDevice> device;
    WorkerCounters counters;
    std::unique_ptr<AttentionWorker> worker;
    std::atomic<bool> over{false};
    absl::Status status;
    std::thread thread;
  };
  struct ComputeNode {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::Region> region;
    std::vector<std::unique_ptr<transport::RemoteRegion>> queries;  // [memory nodes]
  };
  struct Sequence {
    uint32_t tokens = 0;
  };
  // The pieces of a memory node and lane that have been noted: where in the region.
  struct Noted {
    plan::FetchRing ring;
    std::vector<absl::Span<std::byte>> places;
  };

  void MakeNode(uint32_t index);
  void MakeComputeNode(uint32_t index);
  void Grow(uint32_t sequence, uint32_t tokens, plan::StepPlan& plan);
  plan::AttentionPath PathOf(uint32_t lane) const;
  uint32_t HomeOf(uint32_t sequence) const;
  uint32_t NodeOfToken(uint32_t sequence, uint32_t token) const;
  bool HoldsRow(uint32_t node, uint32_t sequence, uint32_t position) const;
  // Decode rows that go to the node, in its order, and how many of them are own.
  std::vector<uint32_t> RowsFor(const Step& step, uint32_t node, uint32_t& own) const;
  void MeasureLinks();
  std::unique_ptr<kernels::KvDevice> MakeReference(KvForm form);
  void Reference(const Step& step, uint32_t layer);
  // What rows that attend to INT8 must give, into `out`: of whole sequences, block by block.
  void ReferenceOfInt8(const Step& step, uint32_t layer, std::vector<BFloat16>& out);
  // A reply, into the outputs of all rows; of spans, into `partials`.
  using Partials =  // Each (row, query head) has its own, by span.
      std::map<std::pair<uint32_t, uint32_t>, std::map<uint32_t, const float*>>;
  void TakeRows(const Step& step, const Window& window, const std::byte* reply,
                std::vector<BFloat16>& out) const;
  void TakePartials(const Step& step, const Window& window, const std::byte* reply,
                    Partials& partials) const;
  void MergePartials(const AttentionDescriptor& shape, const Partials& partials,
                     std::vector<BFloat16>& out) const;

  UnitClusterOptions options_;
  std::unique_ptr<transport::FakeNetwork> network_;
  plan::EpochConfig config_;
  plan::WindowLayout layout_;
  std::vector<plan::PipelineSchedule> schedules_;  // By shard.
  std::mt19937 random_{11};
  ThreadPool pool_{{}};
  std::unique_ptr<kernels::KvDevice> reference_;
  std::unique_ptr<kernels::KvDevice> int8_reference_;  // Where rows attend to INT8.
  kernels::Int8Runs int8_runs_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<ComputeNode>> compute_;
  std::map<uint32_t, Sequence> sequences_;
  std::map<std::pair<uint32_t, uint32_t>, Noted> noted_;  // By memory node and lane.
  std::list<std::vector<std::byte>> token_sets_;
  std::vector<uint32_t> next_slot_;  // [memory nodes]
  // The unit made last for each (lane, layer): its rows, and the outputs of decode rows.
  std::map<std::pair<uint32_t, uint32_t>, std::vector<BFloat16>> rows_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<BFloat16>> expected_;
};

}  // namespace lamina::memory_node
