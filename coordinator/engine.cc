// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/units.h"
#include "common/version.h"
#include "coordinator/request_table.h"

namespace lamina::coordinator {
namespace {

constexpr Nanos kRateWindow = Seconds(10);
constexpr auto kTick = std::chrono::seconds(1);

uint64_t SlotBytes(const std::vector<AttentionDescriptor>& layers) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    bytes += 2 * uint64_t{layer.kv_width()} * 2;
  }
  return bytes;
}

std::unique_ptr<core::ServiceOrder> MakeOrder(bool priority) {
  return priority ? core::MakePriorityOrder() : core::MakeFirstComeFirstServed();
}

}  // namespace

struct Engine::Impl {
  Impl(const EngineOptions& o, const model::Tokenizer& tokenizer, const Clock& c)
      : options(o),
        clock(c),
        slot_bytes(SlotBytes(o.layers)),
        membership(o.nodes),
        scheduler(o.scheduler, MakeOrder(o.priority_order)),
        requests(tokenizer, c, o.scheduler.sequence_tokens_max) {}

  struct Node {
    NodeHello hello;
    std::shared_ptr<NodePort> port;
    double busy_share = 0;
    control::NodeCounters counters;
    uint32_t slots = 0;
    Nanos last_heard = 0;
  };

  const EngineOptions options;
  const Clock& clock;
  const uint64_t slot_bytes;

  // The queue of the thread. Guarded by mutex.
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> queue;
  bool stopping = false;

  // Engine's thread only, from here on.
  core::Membership membership;
  core::Scheduler scheduler;
  RequestTable requests;
  std::map<std::string, Node> nodes;  // Attached.
  std::vector<std::string>
      memory_names;  // Of the scheduler's epoch; their order is the plans' index.
  std::vector<core::StepPlan> plans;
  // Chunks of planned steps that are not the last of their prompts, oldest first, for each lane.
  std::vector<std::deque<std::pair<uint64_t, core::PrefillChunk>>> chunks_planned;
  std::deque<std::pair<Nanos, uint64_t>> token_counts;  // (time, requests.tokens()) in the window.
  std::function<void()> drained;
  bool draining = false;

  std::thread thread;

  void Post(std::function<void()> event) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(event));
    }
    wake.notify_one();
  }

  void Loop() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      wake.wait_for(lock, kTick, [this] { return !queue.empty() || stopping; });
      std::deque<std::function<void()>> batch;
      batch.swap(queue);
      lock.unlock();
      for (std::function<void()>& event : batch) {
        event();
      }
      DropSilentNodes();
      AdvanceMembership();
      PlanSteps();
      if (draining && requests.empty() && drained) {
        std::exchange(drained, nullptr)();
      }
      lock.lock();
    }
  }

  // --- Requests ---

  void Deliver(core::Events& events) {
    for (const core::SequenceId id : requests.Deliver(events)) {
      scheduler.Finish(id);
    }
  }

  void EndRequest(uint64_t key, const absl::Status& status) {
    for (const core::SequenceId id : requests.End(key, status)) {
      scheduler.Finish(id);
    }
  }

  absl::Status CheckServing() const {
    if (draining) {
      return absl::UnavailableError("the coordinator is stopping; try again when it is back");
    }
    if (membership.phase() == core::MembershipPhase::kWaiting) {
      return absl::UnavailableError(
          absl::StrCat("the cluster is not serving: ", membership.Describe()));
    }
    return absl::OkStatus();
  }

  void Submit(GenerateSpec spec, uint64_t key, const std::shared_ptr<RequestSink>& sink) {
    if (const absl::Status serving = CheckServing(); !serving.ok()) {
      requests.metrics().CountFailure(serving.code());
      sink->OnDone(serving);
      return;
    }
    auto sequences = requests.Admit(std::move(spec), key, sink);
    if (!sequences.ok()) {
      requests.metrics().CountFailure(sequences.status().code());
      sink->OnDone(sequences.status());
      return;
    }
    for (core::SequenceRequest& sequence : *sequences) {
      const absl::Status submitted = scheduler.Submit(std::move(sequence));
      if (!submitted.ok()) {
        EndRequest(key, submitted);
        return;
      }
    }
  }

  // --- Membership ---

  void AdvanceMembership() {
    for (;;) {
      switch (membership.Next()) {
        case core::MembershipAction::kNone:
          return;
        case core::MembershipAction::kConfigure:
          Configure();
          break;
        case core::MembershipAction::kConnect:
          Connect();
          break;
        case core::MembershipAction::kServe:
          LogInfo("serving epoch ", membership.epoch());
          break;
      }
    }
  }

  // Starts an epoch of the members there are: sequences of memory nodes that are gone end, the
  // others are recomputed.
  void Configure() {
    std::vector<std::string> names;
    std::vector<core::MemoryNodeShare> shares;
    for (const core::Member* member : membership.memory_members()) {
      const Node& node = nodes.at(member->name);
      names.push_back(member->name);
      shares.push_back(
          {.name = member->name,
           .slots = node.slots,
           .bandwidth_bytes_per_second = node.hello.identity.bandwidth_bytes_per_second});
    }
    std::vector<std::string> lost;
    for (const std::string& name : memory_names) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        lost.push_back(name);
      }
    }
    memory_names = names;
    chunks_planned.assign(options.scheduler.lanes, {});
    core::Events events;
    scheduler.StartEpoch(membership.epoch(), shares, lost, events);
    Deliver(events);
    const control::EpochConfig config = MakeConfig(shares);
    LogInfo("configuring epoch ", config.epoch, " compute ",
            absl::StrJoin(config.compute_nodes, ","), " memory ",
            absl::StrJoin(config.memory_nodes, ","));
    for (const core::Member* member : Members()) {
      nodes.at(member->name).port->Configure(config);
    }
  }

  control::EpochConfig MakeConfig(const std::vector<core::MemoryNodeShare>& shares) const {
    control::EpochConfig config{.epoch = membership.epoch(),
                                .lanes = options.scheduler.lanes,
                                .rows_max = options.scheduler.rows_max,
                                .chunk_tokens_max = options.scheduler.step_tokens_max,
                                .scratch_tokens = options.scheduler.scratch_tokens,
                                .sequence_tokens_max = options.scheduler.sequence_tokens_max,
                                .layers = options.layers,
                                .transport = options.transport};
    for (const core::Member* member : membership.compute_members()) {
      config.compute_nodes.push_back(member->name);
    }
    for (const core::MemoryNodeShare& share : shares) {
      config.memory_nodes.push_back(share.name);
      config.slots.push_back(share.slots);
    }
    return config;
  }

  void Connect() {
    control::EpochPeers peers{.epoch = membership.epoch()};
    for (const core::Member* member : membership.compute_members()) {
      peers.compute_regions.push_back(member->region);
    }
    for (const core::Member* member : membership.memory_members()) {
      peers.memory_regions.push_back(member->region);
    }
    for (const core::Member* member : Members()) {
      nodes.at(member->name).port->Connect(peers);
    }
  }

  std::vector<const core::Member*> Members() const {
    std::vector<const core::Member*> members = membership.compute_members();
    const std::vector<const core::Member*> memory = membership.memory_members();
    members.insert(members.end(), memory.begin(), memory.end());
    return members;
  }

  absl::Status CheckHello(const NodeHello& hello) const {
    const control::NodeIdentity& identity = hello.identity;
    if (hello.version != kVersion) {
      return absl::FailedPreconditionError(absl::StrCat("node ", identity.name, " is of version ",
                                                        hello.version, ", the coordinator of ",
                                                        kVersion, "; install the same version"));
    }
    if (!identity.is_memory && identity.model_fingerprint != options.model_fingerprint) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the model of ", identity.name, " is not the coordinator's; give both the same file"));
    }
    const uint64_t slots = identity.capacity_bytes / slot_bytes;
    const uint32_t least = options.scheduler.sequence_tokens_max;
    if (identity.is_memory && slots < least) {
      return absl::FailedPreconditionError(
          absl::StrCat("memory node ", identity.name, " has ", FormatBytes(identity.capacity_bytes),
                       ": room for ", slots, " tokens, but one request may have ", least,
                       " (limits.sequence_tokens_max); raise its capacity to ",
                       FormatBytes(slot_bytes * least), " or lower the limit"));
    }
    return absl::OkStatus();
  }

  void NodeJoined(const NodeHello& hello, std::shared_ptr<NodePort> port) {
    const std::string& name = hello.identity.name;
    absl::Status status = CheckHello(hello);
    if (status.ok()) {
      status = membership.Join(name, hello.identity.is_memory);
    }
    if (!status.ok()) {
      LogWarning("refused node ", name, ": ", status.message());
      port->Refuse(std::string(status.message()));
      return;
    }
    const auto slots = static_cast<uint32_t>(
        std::min<uint64_t>(hello.identity.capacity_bytes / slot_bytes, uint64_t{1} << 31));
    nodes[name] = {
        .hello = hello, .port = std::move(port), .slots = slots, .last_heard = clock.Now()};
    LogInfo("joined ", name, " pid ", hello.pid, " kernels ", hello.identity.kernels);
  }

  void NodeLeft(const std::string& name, const NodePort* port) {
    const auto found = nodes.find(name);
    if (found == nodes.end() || found->second.port.get() != port) {
      return;  // Refused, or already replaced.
    }
    LogWarning("lost ", name);
    nodes.erase(found);
    membership.Leave(name);
    if (membership.phase() == core::MembershipPhase::kWaiting) {
      core::Events events;
      scheduler.FailAll(absl::UnavailableError(absl::StrCat(
                            "node ", name, " is gone and the cluster cannot go on without it")),
                        events);
      Deliver(events);
    }
  }

  void DropSilentNodes() {
    if (options.node_silence_max == 0) {
      return;
    }
    const Nanos oldest = clock.Now() - options.node_silence_max;
    std::vector<std::pair<std::string, std::shared_ptr<NodePort>>> silent;
    for (const auto& [name, node] : nodes) {
      if (node.last_heard < oldest) {
        silent.emplace_back(name, node.port);
      }
    }
    for (const auto& [name, port] : silent) {
      LogWarning("no sign of life from ", name, " for ", ToSeconds(options.node_silence_max), " s");
      port->End();
      NodeLeft(name, port.get());
    }
  }

  void NodeFault(const std::string& name, uint64_t epoch, const absl::Status& status,
                 const std::string& peer) {
    LogError("fault of ", name, " epoch ", epoch, peer.empty() ? "" : " blames ", peer, ": ",
             status.message());
    membership.Fault(name, epoch, status);
    if (membership.phase() == core::MembershipPhase::kWaiting) {
      core::Events events;
      scheduler.FailAll(absl::UnavailableError(absl::StrCat("node ", name, ": ", status.message())),
                        events);
      Deliver(events);
    }
  }

  // --- Steps ---

  void PlanSteps() {
    if (membership.phase() != core::MembershipPhase::kServing) {
      return;
    }
    plans.clear();
    scheduler.Plan(plans);
    for (core::StepPlan& plan : plans) {
      for (const core::PrefillChunk& chunk : plan.chunks) {
        if (!chunk.last) {
          chunks_planned[plan.lane].emplace_back(plan.step, chunk);
        }
      }
      for (const core::SequenceJoin& join : plan.joins) {
        requests.Started(join.id);
      }
      for (const core::Member* member : membership.compute_members()) {
        nodes.at(member->name).port->SendPlan(plan);
      }
      // Memory nodes need no tokens.
      for (core::SequenceJoin& join : plan.joins) {
        join.tokens.clear();
        join.end_tokens.clear();
        join.sampling = {};
      }
      for (const core::Member* member : membership.memory_members()) {
        nodes.at(member->name).port->SendPlan(plan);
      }
    }
  }

  void StepDone(const core::StepResult& result) {
    core::Events events;
    const absl::Status status = scheduler.OnStepDone(result, events);
    if (!status.ok()) {
      LogError("step result refused: ", status.message());
      const std::vector<const core::Member*> compute = membership.compute_members();
      if (!compute.empty()) {
        NodeFault(compute.front()->name, membership.epoch(), status, "");
      }
    } else if (result.epoch == membership.epoch()) {
      membership.NoteProgress();
      ReportChunks(result);
    }
    Deliver(events);
    CountTokens();
  }

  void ReportChunks(const core::StepResult& result) {
    auto& planned = chunks_planned[result.lane];
    while (!planned.empty() && planned.front().first <= result.step) {
      const core::PrefillChunk& chunk = planned.front().second;
      requests.Progress(chunk.sequence, chunk.first_token + chunk.tokens);
      planned.pop_front();
    }
  }

  void CountTokens() {
    const Nanos now = clock.Now();
    // At most a hundred entries: one for each tenth of a second.
    if (token_counts.empty() || now - token_counts.back().first > kRateWindow / 100) {
      token_counts.emplace_back(now, requests.tokens());
    }
    while (token_counts.size() > 1 && now - token_counts.front().first > kRateWindow) {
      token_counts.pop_front();
    }
  }

  double TokensPerSecond() {
    const Nanos now = clock.Now();
    while (token_counts.size() > 1 && now - token_counts.front().first > kRateWindow) {
      token_counts.pop_front();
    }
    if (token_counts.empty() || now <= token_counts.front().first) {
      return 0;
    }
    const double tokens = static_cast<double>(requests.tokens() - token_counts.front().second);
    return tokens / ToSeconds(std::max(now - token_counts.front().first, Seconds(1)));
  }

  EngineStatus Status() {
    EngineStatus status{.epoch = membership.epoch(),
                        .state = draining ? "draining" : membership.Describe(),
                        .transport = options.transport.substr(0, options.transport.find(':')),
                        .scheduler = scheduler.Stats(),
                        .tokens_per_second = TokensPerSecond(),
                        .tokens_generated = requests.tokens(),
                        .requests_finished = requests.finished(),
                        .requests_failed = requests.failed()};
    for (const core::Member& member : membership.all()) {
      NodeReport report{.member = member};
      if (const auto node = nodes.find(member.name); node != nodes.end()) {
        report.hello = node->second.hello;
        report.busy_share = node->second.busy_share;
        report.counters = node->second.counters;
      }
      const auto index = std::find(memory_names.begin(), memory_names.end(), member.name);
      if (index != memory_names.end()) {
        report.kv = scheduler.kv().Stats(static_cast<uint32_t>(index - memory_names.begin()));
      }
      status.nodes.push_back(std::move(report));
    }
    return status;
  }
};

Engine::Engine(const EngineOptions& options, const model::Tokenizer& tokenizer, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, tokenizer, clock)) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

uint64_t Engine::NewKey() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void Engine::Submit(GenerateSpec spec, uint64_t key, std::shared_ptr<RequestSink> sink) {
  impl_->Post([impl = impl_.get(), spec = std::move(spec), key, sink = std::move(sink)]() mutable {
    impl->Submit(std::move(spec), key, sink);
  });
}

void Engine::Cancel(uint64_t key) {
  impl_->Post([impl = impl_.get(), key] {
    impl->EndRequest(key, absl::CancelledError("cancelled by the client"));
  });
}

void Engine::CancelById(const std::string& request_id,
                        std::function<void(const absl::Status&)> done) {
  impl_->Post([impl = impl_.get(), request_id, done = std::move(done)] {
    const uint64_t key = impl->requests.KeyOf(request_id);
    if (key == 0) {
      done(absl::NotFoundError(absl::StrCat("no request ", request_id, " is running or waiting")));
      return;
    }
    impl->EndRequest(key, absl::CancelledError("cancelled by its id"));
    done(absl::OkStatus());
  });
}

void Engine::NodeJoined(const NodeHello& hello, std::shared_ptr<NodePort> port) {
  impl_->Post(
      [impl = impl_.get(), hello, port = std::move(port)] { impl->NodeJoined(hello, port); });
}

void Engine::NodeLeft(const std::string& name, const NodePort* port) {
  impl_->Post([impl = impl_.get(), name, port] { impl->NodeLeft(name, port); });
}

void Engine::NodePrepared(const std::string& name, uint64_t epoch, std::string region) {
  impl_->Post([impl = impl_.get(), name, epoch, region = std::move(region)] {
    impl->membership.Prepared(name, epoch, region);
  });
}

void Engine::NodeReady(const std::string& name, uint64_t epoch) {
  impl_->Post([impl = impl_.get(), name, epoch] { impl->membership.Ready(name, epoch); });
}

void Engine::NodeFault(const std::string& name, uint64_t epoch, const absl::Status& status,
                       const std::string& peer) {
  impl_->Post([impl = impl_.get(), name, epoch, status, peer] {
    impl->NodeFault(name, epoch, status, peer);
  });
}

void Engine::NodeStatus(const std::string& name, double busy_share,
                        const control::NodeCounters& counters) {
  impl_->Post([impl = impl_.get(), name, busy_share, counters] {
    if (const auto node = impl->nodes.find(name); node != impl->nodes.end()) {
      node->second.busy_share = busy_share;
      node->second.counters = counters;
      node->second.last_heard = impl->clock.Now();
    }
  });
}

void Engine::StepDone(core::StepResult result) {
  impl_->Post([impl = impl_.get(), result = std::move(result)] { impl->StepDone(result); });
}

EngineStatus Engine::GetStatus() {
  std::promise<EngineStatus> promise;
  std::future<EngineStatus> future = promise.get_future();
  impl_->Post([impl = impl_.get(), &promise] { promise.set_value(impl->Status()); });
  return future.get();
}

void Engine::Drain(std::function<void()> done) {
  impl_->Post([impl = impl_.get(), done = std::move(done)]() mutable {
    impl->draining = true;
    impl->drained = std::move(done);
  });
}

const RequestMetrics& Engine::metrics() const { return impl_->requests.metrics(); }

uint32_t Engine::sequence_tokens_max() const {
  return impl_->options.scheduler.sequence_tokens_max;
}

}  // namespace lamina::coordinator
