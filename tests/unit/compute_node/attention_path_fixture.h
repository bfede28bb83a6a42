// SPDX-License-Identifier: Apache-2.0
//
// AttentionPathTest: a path of the parameter's case between a compute node's executor and memory
// nodes, which are real workers on threads of their own, over a network that delays and reorders;
// and plain attention over the whole sequences, whose bits every path has.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compute_node/attention_path.h"
#include "compute_node/fetch_path_maker.h"
#include "compute_node/link_measurement.h"
#include "compute_node/local_path_maker.h"
#include "compute_node/path_set.h"
#include "compute_node/remote_path_maker.h"
#include "compute_node/sparse_path_maker.h"
#include "compute_node/step_layout.h"
#include "compute_node/streaming_path_maker.h"
#include "kernels/int8_runs.h"
#include "kernels/kv_arena.h"
#include "memory_node/attention_worker.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_ring.h"
#include "tests/unit/compute_node/attention_path_cases.h"
#include "tests/unit/compute_node/chosen_int8.h"
#include "tests/unit/compute_node/slice_program.h"
#include "tests/unit/compute_node/streamed_rows.h"
#include "tests/unit/compute_node/toy_path.h"
#include "tests/unit/compute_node/whole_matrix.h"
#include "transport/fake/fake_network.h"

namespace lamina::compute_node {

inline constexpr uint64_t kEpoch = 3;
inline constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.
inline constexpr uint32_t kSlots = 4096;     // A memory node has so many.

class Reports final : public control::NodeReporter {
 public:
  void ReportResult(plan::StepResult) override {}
  void ReportFault(uint64_t, const absl::Status&) override {}
  void ReportSpill(const plan::SpillReport&) override {}
  void ReportLinks(uint64_t, std::vector<control::LinkReport>) override {}
};

// A memory node's worker with what it needs.
struct MemoryNode {
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Region> region;
  std::unique_ptr<kernels::KvDevice> device;
  memory_node::WorkerCounters counters;
  std::unique_ptr<memory_node::AttentionWorker> worker;
  std::thread thread;
};

class AttentionPathTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    network_ = std::make_unique<transport::FakeNetwork>(
        transport::FakeNetworkOptions{.seed = 11, .delay_steps_max = 5});
    MakeConfig();
    ASSERT_TRUE(plan::CheckEpoch(config_).ok()) << plan::CheckEpoch(config_);
    ASSERT_TRUE(executor().device().Begin().ok());
    ASSERT_TRUE(executor().Prepare(config_.rows_max + config_.chunk_tokens_max).ok());
    transport_ = network_->MakeTransport();
    const plan::WindowLayout layout(plan::WindowShapeOf(config_));
    region_ = *transport_->CreateRegion({.name = "c0",
                                         .bytes = layout.compute_region_bytes(),
                                         .signal_words = layout.compute_region_words(),
                                         .epoch = kEpoch});
    windows_.emplace(*region_, nullptr);
    pieces_taken_.assign(config_.lanes, std::vector<plan::FetchRing>(config_.memory_nodes.size()));
    peers_.emplace(config_, 0, kLong, *transport_, abort_, counters_);
    context_.emplace(WorkerContext{.config = config_,
                                   .node = 0,
                                   .layout = layout,
                                   .schedule = plan::ScheduleOf(config_, 0),
                                   .peer_deadline = kLong,
                                   .executor = executor(),
                                   .pool = pool_,
                                   .transport = *transport_,
                                   .region = *region_,
                                   .windows = *windows_,
                                   .peers = *peers_,
                                   .sequences = sequences_,
                                   .intervals = intervals_,
                                   .counters = counters_,
                                   .pieces_taken = pieces_taken_});
    MakePath();
    ConnectMemoryNodes();
    for (uint32_t i = 0; i < kLanes; ++i) {
      Lane& lane = lanes_.emplace_back();
      lane.index = i;
      lane.paths.resize(paths_->count());
      auto buffers = executor().MakeBuffers(config_.rows_max + config_.chunk_tokens_max);
      ASSERT_TRUE(buffers.ok()) << buffers.status();
      lane.buffers = *std::move(buffers);
      for (const absl::Span<std::byte> bytes : lane.buffers.Allocations()) {
        ASSERT_TRUE(transport_->RegisterSource(bytes, transport::MemoryKind::kHost).ok());
      }
    }
    for (uint32_t i = 0; i < kSequences; ++i) {
      expected_.push_back(kernels::KvArena::Create(config_.layers, kTokensMax).value());
      if (GetParam().int8) {
        int8_.push_back(*kernels::CpuKvDevices(kernels::ReferenceAttention(),
                                               pool_)({.layers = config_.layers,
                                                       .slots = kInt8BlockTokens,
                                                       .context_tokens_max = kTokensMax,
                                                       .query_tokens_max = kInt8BlockTokens,
                                                       .int8_slots = kTokensMax}));
      }
    }
  }

  void TearDown() override {
    for (const auto& node : memory_) {
      if (node->thread.joinable()) {
        node->worker->Stop();
        node->thread.join();
      }
    }
    paths_->Close();
    peers_->Disconnect();
    for (const auto& node : memory_) {
      node->worker.reset();
    }
  }

  void MakeConfig() {
    config_ = {
        .epoch = kEpoch,
        .lanes = kLanes,
        .plan_ahead = 1,
        .rows_max = kSequences,
        .chunk_tokens_max = kChunkTokens,
        .scratch_tokens = kSequences * kTokensMax,
        .sequence_tokens_max = kTokensMax,
        .compute_nodes = {"c0"},
        .attention_paths = {GetParam().kind},
        .fetch_bytes = GetParam().fetch_bytes,
        .fetch_heads = GetParam().fetch_heads,
        .activation_width = GetParam().recomputed + GetParam().activation_share == 0
                                ? 0
                                : executor().program().Width(KvInputOf(executor().program(), 0)),
        .resident_tokens = (kSequences + 1) * GetParam().activations_here,
        .activation_share = GetParam().activation_share,
        .int8_tails = GetParam().int8 ? kSequences + 1 : 0,
        .sparse_tokens = GetParam().sparse_tokens,
        .sparse_ratio = GetParam().sparse_ratio,
        .memory_nodes = {"m0", "m1"},
        .slots = {kSlots, kSlots},
        .heads = GetParam().heads,
        .span_tokens = GetParam().span_tokens,
        .transport = "fake://unnamed"};
    if (!config_.heads.empty()) {
      config_.partition = Partition::kHead;
    } else if (config_.span_tokens > 0) {
      config_.partition = Partition::kTokenRange;
    }
    if (GetParam().kind == plan::AttentionPath::kLocal) {
      config_.memory_nodes = {"c0"};
      config_.slots = {kSlots};
    }
    for (uint32_t layer = 0; layer + 1 < executor().slice_count(); ++layer) {
      config_.layers.push_back(executor().attention(layer).descriptor);
    }
    config_.streaming = ForLayers(GetParam().streaming, config_.layers.size());
  }

  void MakePath() {
    const auto kv = kernels::CpuKvDevices(kernels::CpuAttention(), pool_);
    if (GetParam().toy) {
      maker_ = std::make_unique<ToyPathMaker>(kv);
    } else if (GetParam().kind == plan::AttentionPath::kLocal) {
      maker_ = std::make_unique<LocalPathMaker>("c0", executor().device(), /*holds_kv=*/true);
    } else if (GetParam().kind == plan::AttentionPath::kFetch ||
               GetParam().kind == plan::AttentionPath::kRecompute ||
               GetParam().kind == plan::AttentionPath::kHybrid) {
      maker_ = std::make_unique<FetchPathMaker>(GetParam().kind, "c0", executor().device(),
                                                kernels::CpuAttention());
    } else if (GetParam().kind == plan::AttentionPath::kSparse) {
      maker_ = std::make_unique<SparsePathMaker>(
          executor().device(), kernels::CpuAttention(),
          GetParam().resident_tokens * kernels::KvArena::SlotBytes(config_.layers));
    } else if (GetParam().kind == plan::AttentionPath::kStreaming) {
      maker_ = std::make_unique<StreamingPathMaker>(executor().device(), kernels::CpuAttention());
    } else {
      maker_ = std::make_unique<RemotePathMaker>(plan::AttentionPath::kRemote, "c0",
                                                 executor().device());
    }
    ASSERT_TRUE(
        maker_->Reserve(config_, {.layers = static_cast<uint32_t>(config_.layers.size())}).ok());
    PathMaker* const makers[] = {maker_.get()};
    paths_ = std::make_unique<PathSet>(*context_, makers);
    ASSERT_TRUE(paths_->Prepare().ok());
  }

  void ConnectMemoryNodes() {
    const plan::WindowLayout& layout = context_->layout;
    std::vector<std::unique_ptr<transport::RemoteRegion>> queries;
    const bool remote = config_.attention_paths.on_memory_nodes();
    for (uint32_t i = 0; remote && i < config_.memory_nodes.size(); ++i) {
      auto& node = *memory_.emplace_back(std::make_unique<MemoryNode>());
      node.transport = network_->MakeTransport();
      node.region = *node.transport->CreateRegion({.name = config_.memory_nodes[i],
                                                   .bytes = layout.query_region_bytes(),
                                                   .signal_words = layout.query_region_words(),
                                                   .epoch = kEpoch});
      node.device = *kernels::CpuKvDevices(
          kernels::CpuAttention(), memory_pool_)(memory_node::AttentionWorker::DeviceOptions(
          config_, i, config_.KvFormOf(plan::AttentionPath::kRemote), kSlots));
      node.worker = std::make_unique<memory_node::AttentionWorker>(
          memory_node::AttentionWorker::Options{.config = config_, .node = i, .checks_data = true},
          *node.transport, *node.region, *node.device, memory_pool_, node.counters);
      memory_node::PeerRegions replies;
      replies.compute.push_back(*node.transport->OpenRegion(region_->Descriptor(), kEpoch));
      node.worker->SetPeers(std::move(replies));
      queries.push_back(*transport_->OpenRegion(node.region->Descriptor(), kEpoch));
      node.thread = std::thread([&node] { EXPECT_TRUE(node.worker->Run().ok()); });
    }
    peers_->Connect(std::move(queries), std::vector<std::unique_ptr<transport::RemoteRegion>>(1));
    ASSERT_TRUE(paths_->Open().ok());
    Reports reports;
    ASSERT_TRUE(MeasureLinks(*context_, abort_, reports).ok());
  }

  virtual SliceExecutor& executor() { return program_.executor(); }

  // Slots for tokens [first, first + tokens) of the sequence; spans lie on the nodes in turn.
  void Allocate(plan::SequenceId id, uint32_t first, uint32_t tokens, plan::StepPlan& plan) {
    const uint32_t span = config_.span_tokens;
    while (tokens > 0) {
      const uint32_t count = span == 0 ? tokens : std::min(tokens, span - first % span);
      const uint32_t nodes = static_cast<uint32_t>(config_.memory_nodes.size());
      const uint32_t node =
          span == 0 ? NodeOf(id) : (static_cast<uint32_t>(id) + first / span) % nodes;
      plan.allocations.push_back({.sequence = id,
                                  .extent = {.first_slot = taken_[node], .tokens = count},
                                  .memory_node = node});
      taken_[node] += count + 1;  // Extents do not touch.
      first += count;
      tokens -= count;
    }
  }

  // Returns the node of a sequence that lies on one.
  uint32_t NodeOf(plan::SequenceId id) const {
    const bool by_request =
        config_.partition == Partition::kRequest && config_.memory_nodes.size() > 1;
    return by_request ? static_cast<uint32_t>(id % 2) : 0;
  }

  // A sequence of so many prompt tokens joins.
  void Join(plan::SequenceId id, uint32_t tokens, plan::StepPlan& plan) {
    plan.joins.push_back(
        {.id = id,
         .tokens = std::vector<TokenId>(tokens, 1),
         .prompt_tokens = tokens,
         .tokens_max = kTokensMax,
         .memory_node = NodeOf(id),
         .path = GetParam().kind,
         .bare_tokens = GetParam().bare,
         .resident = {.first = GetParam().first_here,
                      .tokens = GetParam().activations_here,
                      .place = static_cast<uint32_t>(id) * GetParam().activations_here}});
    Allocate(id, 0, tokens, plan);
    prompt_[id] = tokens;
    done_[id] = 0;
  }

  // The next tokens of the sequence's prompt, at most so many; behind the prompt a decode row.
  void AddRows(plan::SequenceId id, uint32_t tokens, plan::StepPlan& plan) {
    if (done_[id] < prompt_[id]) {
      const uint32_t count = std::min(tokens, prompt_[id] - done_[id]);
      plan.chunks.push_back({.sequence = id,
                             .first_token = done_[id],
                             .tokens = count,
                             .scratch_offset = static_cast<uint32_t>(id - 1) * kTokensMax,
                             .last = done_[id] + count == prompt_[id]});
      done_[id] += count;
      return;
    }
    Allocate(id, done_[id], 1, plan);
    plan.rows.push_back({.sequence = id, .position = done_[id]});
    sequences_.Find(id)->tokens.resize(done_[id] + 1, 1);
    ++done_[id];
  }

  void BeginStep(uint32_t index, plan::StepPlan plan) {
    Lane& lane = lanes_[index];
    plan.epoch = kEpoch;
    plan.lane = index;
    plan.step = ++steps_[index];
    plan.chunking = GetParam().chunking;
    plan.recomputed = GetParam().recomputed;
    for (size_t node = late_nodes_; node < memory_.size(); ++node) {
      memory_[node]->worker->PushPlan(plan);
    }
    lane.plan = std::move(plan);
    ASSERT_TRUE(sequences_.Apply(lane.plan, 96, config_.span_tokens).ok());
    ASSERT_TRUE(paths_->Apply(lane.plan).ok());
    const absl::Status laid = LayOut(
        config_, sequences_, [](const Sequence&) { return 0; }, lane);
    ASSERT_TRUE(laid.ok()) << laid;
    const absl::Status begun = paths_->BeginStep(lane);
    ASSERT_TRUE(begun.ok()) << begun;
    ASSERT_TRUE(executor().SetRows(lane.inputs(), lane.buffers).ok());
  }

  // The weights of the lane's slice come, for a while.
  void AwaitWeights(Lane& lane) {
    for (uint64_t looks = random_() % 400; looks > 0; --looks) {
      transport_->Progress();
      const absl::Status made = paths_->WhileWeightsCome(lane);
      ASSERT_TRUE(made.ok()) << made;
    }
  }

  // q, k and v of the slice are random, or what they are made from is; the rows' attention begins.
  void BeginLayer(Lane& lane, uint32_t layer) {
    lane.slice = layer;
    if (GetParam().ahead) {
      AwaitWeights(lane);
    }
    const auto may_run = paths_->BeforeSlice(lane);
    ASSERT_TRUE(may_run.ok() && *may_run);
    const auto next = [this] { return ToBFloat16(normal_(random_)); };
    const auto qkv = executor().QkvRows(layer, lane.positions.size(), lane.buffers);
    for (size_t row = 0; row < qkv.rows; ++row) {
      std::generate_n(qkv.row(row), qkv.cols, next);
    }
    if (config_.activation_width > 0) {
      const auto in =
          lane.buffers.Activations(KvInputOf(executor().program(), layer), lane.positions.size());
      for (size_t row = 0; row < in.rows; ++row) {
        std::generate_n(static_cast<BFloat16*>(in.data) + row * in.stride, in.cols, next);
      }
      executor().RunKvOps(layer, 0, lane.buffers);
    }
    wanted_[lane.index] = Expect(lane, layer);
    const absl::Status attended = paths_->Attend(lane);
    ASSERT_TRUE(attended.ok()) << attended;
    lane.slice = layer + 1;
    awaiting_[lane.index] = paths_->Await(lane);
  }

  // Outputs of the last layer are those of rows that are sampled or scored alone.
  bool IsRead(const Lane& lane, uint32_t layer, size_t row) const {
    return layer + 1 < config_.layers.size() ||
           std::any_of(lane.tail.begin(), lane.tail.end(),
                       [row](const TailRow& tail) { return tail.row == row; });
  }

  void EndLayer(Lane& lane, uint32_t layer) {
    const Nanos deadline = RealClock().Now() + kLong;
    while (awaiting_[lane.index] && RealClock().Now() < deadline) {
      transport_->Progress();
      const auto polled = paths_->Poll(lane);
      ASSERT_TRUE(polled.ok()) << polled.status();
      awaiting_[lane.index] = !*polled;
    }
    ASSERT_FALSE(awaiting_[lane.index]) << "outputs did not come";
    EXPECT_TRUE(paths_->Poll(lane).value_or(false)) << "what has come stays";
    const auto out = executor().AttentionRows(layer, lane.positions.size(), lane.buffers);
    const std::vector<BFloat16>& wanted = wanted_[lane.index];
    for (size_t row = 0; row < out.rows; ++row) {
      if (!IsRead(lane, layer, row)) {
        continue;
      }
      ASSERT_EQ(
          std::memcmp(out.row(row), wanted.data() + row * out.cols, out.cols * sizeof(BFloat16)), 0)
          << "row " << row << " of step " << lane.plan.step << " layer " << layer;
    }
  }

  // Path sparse: each token that the rows attend to as an extent, their own at the end.
  std::vector<Extent> ChooseTokens(plan::SequenceId id, uint32_t layer, uint32_t first,
                                   uint32_t tokens) {
    std::vector<uint32_t> before(first);
    std::iota(before.begin(), before.end(), 0);
    if (first >= prompt_[id]) {
      before = matrices_[{id, layer}].Choose(GetParam().sparse_ratio);
    }
    std::vector<Extent> chosen;
    for (const uint32_t token : before) {
      chosen.push_back({.first_slot = token, .tokens = 1});
    }
    for (uint32_t own = 0; own < tokens; ++own) {
      chosen.push_back({.first_slot = first + own, .tokens = 1});
    }
    return chosen;
  }

  // Those of the item's queries, whose extents are single tokens, become rows of the matrix.
  void KeepWeights(plan::SequenceId id, uint32_t layer, const kernels::AttentionItem& item) {
    const AttentionDescriptor& shape = config_.layers[layer];
    std::vector<uint32_t> tokens;
    for (const std::vector<float>& row :
         WeightsOf(shape, expected_[id - 1].View(layer), item, pool_)) {
      tokens.resize(row.size());
      std::transform(item.extents.begin(), item.extents.begin() + row.size(), tokens.begin(),
                     [](const Extent& extent) { return extent.first_slot; });
      matrices_[{id, layer}].Add(tokens, row, shape.query_heads);
    }
  }

  // Plain attention of all rows over their sequences, with K and V of these rows stored first.
  std::vector<BFloat16> Expect(const Lane& lane, uint32_t layer) {
    const AttentionDescriptor& shape = config_.layers[layer];
    const size_t rows = lane.positions.size();
    const auto qkv = executor().QkvRows(layer, rows, lanes_[lane.index].buffers);
    std::vector<BFloat16> wanted(rows * shape.q_width());
    const auto attend = [&](plan::SequenceId id, uint32_t row, uint32_t first, uint32_t tokens) {
      kernels::KvArena& arena = expected_[id - 1];
      const Extent own{.first_slot = first, .tokens = tokens};
      const Extent all{.first_slot = 0, .tokens = first + tokens};
      const BFloat16* k = qkv.row(row) + shape.q_width();
      if (GetParam().int8 && GetParam().sparse_ratio > 0) {
        return AttendChosenInt8({shape, *int8_[id - 1], layer, first, tokens, prompt_[id],
                                 qkv.row(row), qkv.stride, &wanted[row * shape.q_width()]},
                                GetParam().sparse_ratio, matrices_[{id, layer}], pool_);
      }
      if (GetParam().int8) {
        const kernels::Int8Run run{.slots = {&all, 1},
                                   .first_token = first,
                                   .tokens = tokens,
                                   .k = k,
                                   .v = k + shape.kv_width(),
                                   .kv_stride = qkv.stride,
                                   .q = qkv.row(row),
                                   .q_stride = qkv.stride,
                                   .out = wanted.data() + row * shape.q_width(),
                                   .out_stride = shape.q_width()};
        EXPECT_TRUE(
            kernels::Int8Runs().Run(*int8_[id - 1], layer, AllHeads(shape), {&run, 1}).ok());
        return;
      }
      kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, {&own, 1}, arena.k(layer),
                       arena.v(layer), arena.head_stride(layer));
      kernels::AttentionItem item{.extents = {&all, 1},
                                  .first_position = first,
                                  .query_tokens = tokens,
                                  .q = qkv.row(row),
                                  .q_stride = qkv.stride,
                                  .out = wanted.data() + row * shape.q_width(),
                                  .out_stride = shape.q_width()};
      std::vector<Extent> chosen;
      if (GetParam().sparse_ratio > 0) {
        chosen = ChooseTokens(id, layer, first, tokens);
        item.extents = chosen;
        item.first_position = static_cast<uint32_t>(chosen.size()) - tokens;
        KeepWeights(id, layer, item);
      }
      const auto scratch =
          kernels::ReferenceAttention().MakeScratch(shape, kChunkTokens, kTokensMax, 1);
      kernels::ReferenceAttention().Attend(shape, arena.View(layer), {&item, 1}, *scratch, pool_);
      AttendStreamed(config_.streaming, shape, layer, item, arena, pool_);
    };
    for (uint32_t row = 0; row < lane.decode_rows; ++row) {
      attend(lane.plan.rows[row].sequence, row, lane.positions[row], 1);
    }
    for (const ChunkRows& chunk : lane.chunks) {
      attend(chunk.plan.sequence, chunk.first_row, chunk.plan.first_token, chunk.plan.tokens);
    }
    return wanted;
  }

  // All layers of a step in each lane, one lane's attention overlapped with the other's.
  void RunSteps(std::vector<plan::StepPlan> plans) {
    for (uint32_t i = 0; i < plans.size(); ++i) {
      BeginStep(i, std::move(plans[i]));
    }
    for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
      for (uint32_t i = 0; i < plans.size(); ++i) {
        BeginLayer(lanes_[i], layer);
      }
      for (uint32_t i = 0; i < plans.size(); ++i) {
        EndLayer(lanes_[i], layer);
      }
    }
    for (uint32_t i = 0; i < plans.size(); ++i) {
      paths_->EndStep(lanes_[i]);
    }
    const bool fetches = config_.attention_paths.fetch();
    for (uint32_t node = 0; fetches && node < config_.memory_nodes.size(); ++node) {
      EXPECT_FALSE(peers_->Fetched(node).MayCome()) << "every piece of the steps has come";
    }
  }

  Program program_{Spec("llama"), DType::kBF16};
  ThreadPool pool_{{.threads = 2}};
  ThreadPool memory_pool_{{}};
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_{0.0f, 1.0f};
  plan::EpochConfig config_;
  std::unique_ptr<transport::FakeNetwork> network_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Region> region_;
  transport::AbortWord abort_{0};
  StepCounters counters_;
  Intervals intervals_{counters_.meter};
  SequenceTable sequences_;
  PiecesTaken pieces_taken_;
  std::optional<WindowReader> windows_;
  std::optional<Peers> peers_;
  std::optional<WorkerContext> context_;
  std::vector<std::unique_ptr<MemoryNode>> memory_;
  std::unique_ptr<PathMaker> maker_;
  std::unique_ptr<PathSet> paths_;
  std::vector<Lane> lanes_;
  std::vector<kernels::KvArena> expected_;                                 // One for each sequence.
  std::vector<std::unique_ptr<kernels::KvDevice>> int8_;                   // INT8's, likewise.
  std::map<std::pair<plan::SequenceId, uint32_t>, WholeMatrix> matrices_;  // With path sparse.
  std::map<uint32_t, std::vector<BFloat16>> wanted_;
  std::map<uint32_t, bool> awaiting_;
  size_t late_nodes_ = 0;  // The first so many memory nodes are not told of steps that begin.
  std::map<uint32_t, uint64_t> steps_;
  std::map<uint32_t, uint32_t> taken_;  // Slots of a memory node.
  std::map<plan::SequenceId, uint32_t> prompt_;
  std::map<plan::SequenceId, uint32_t> done_;
};

}  // namespace lamina::compute_node
