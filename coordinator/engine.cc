// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine.h"

#include <atomic>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log_event.h"
#include "coordinator/engine_internal.h"

namespace lamina::coordinator {
namespace {

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

Engine::Impl::Impl(const EngineOptions& o, const model::Tokenizer& tokenizer, const Clock& c)
    : options(o),
      clock(c),
      slot_bytes(SlotBytes(o.layers)),
      membership(o.nodes),
      transport(o.transports),
      scheduler(o.scheduler, MakeOrder(o.priority_order)),
      requests(tokenizer, c, o.scheduler.sequence_tokens_max),
      silence(o.node_silence_max, c.Now()),
      threads({.working = o.stuck_after}) {
  requests.SetOnEnd([this](const RequestRecord& record) {
    trace.Ended(record);
    if (options.on_request_end != nullptr) {
      options.on_request_end(record);
    }
  });
}

void Engine::Impl::Post(std::function<void()> event) {
  {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(event));
  }
  wake.notify_one();
}

void Engine::Impl::PostOf(const NodeSource& from, std::function<void(Impl&)> event) {
  Post([this, from, event = std::move(event)] {
    if (const auto node = nodes.find(from.name);
        node != nodes.end() && node->second.port.get() == from.port) {
      event(*this);
    }
  });
}

void Engine::Impl::Loop() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    wake.wait_for(lock, kTick, [this] { return !queue.empty() || stopping; });
    std::deque<std::function<void()>> batch;
    batch.swap(queue);
    lock.unlock();
    if (const Nanos late = silence.Turn(clock.Now()); late > 0) {
      LogWarning("the coordinator itself stood still for ", ToSeconds(late),
                 " s; it does not count that time as silence of its nodes");
    }
    RetrySetAside();
    for (std::function<void()>& event : batch) {
      event();
    }
    DropSilentNodes();
    DropStuckNodes();
    WatchLoad();
    AdvanceMembership();
    PlanSteps();
    if (draining && requests.empty() && drained) {
      std::exchange(drained, nullptr)();
    }
    lock.lock();
  }
}

void Engine::Impl::Deliver(core::Events& events) {
  for (const plan::SequenceId id : requests.Deliver(events)) {
    scheduler.Finish(id);
  }
}

void Engine::Impl::EndRequest(uint64_t key, const absl::Status& status) {
  for (const plan::SequenceId id : requests.End(key, status)) {
    scheduler.Finish(id);
  }
}

absl::Status Engine::Impl::CheckServing() const {
  if (draining) {
    return absl::UnavailableError("the coordinator is stopping; try again when it is back");
  }
  if (membership.phase() == core::MembershipPhase::kWaiting) {
    return absl::UnavailableError(
        absl::StrCat("the cluster is not serving: ", membership.Describe()));
  }
  return absl::OkStatus();
}

void Engine::Impl::NoteRefused(const std::string& request_id, const absl::Status& status) {
  LogEvent(LogLevel::kInfo, "refused",
           {{"request_id", request_id},
            {"status", absl::StatusCodeToString(status.code())},
            {"error", status.message()}});
  requests.metrics().CountFailure(status.code());
}

void Engine::Impl::Submit(GenerateSpec spec, uint64_t key,
                          const std::shared_ptr<RequestSink>& sink) {
  const std::string id = spec.followed_id.empty() ? spec.request_id : spec.followed_id;
  if (const absl::Status serving = CheckServing(); !serving.ok()) {
    NoteRefused(id, serving);
    sink->OnDone(serving);
    return;
  }
  auto sequences = requests.Admit(std::move(spec), key, sink);
  if (!sequences.ok()) {
    NoteRefused(id, sequences.status());
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

void Engine::NoteRefused(const std::string& request_id, const absl::Status& status) {
  impl_->NoteRefused(request_id, status);
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

void Engine::NodeLeft(const NodeSource& from) {
  impl_->Post([impl = impl_.get(), from] { impl->NodeLeft(from); });
}

void Engine::NodePrepared(const NodeSource& from, uint64_t epoch, control::PreparedNode prepared) {
  impl_->PostOf(from, [from, epoch, prepared = std::move(prepared)](Impl& impl) {
    impl.NodePrepared(from.name, epoch, prepared);
  });
}

void Engine::NodeReady(const NodeSource& from, uint64_t epoch) {
  impl_->PostOf(from, [from, epoch](Impl& impl) { impl.NodeReady(from.name, epoch); });
}

void Engine::NodeLoaded(const NodeSource& from, const absl::Status& status) {
  impl_->PostOf(from, [from, status](Impl& impl) { impl.NodeLoaded(from.name, status); });
}

void Engine::NodeFault(const NodeSource& from, uint64_t epoch, const absl::Status& status) {
  impl_->PostOf(from,
                [from, epoch, status](Impl& impl) { impl.NodeFault(from.name, epoch, status); });
}

void Engine::NodeLinks(const NodeSource& from, uint64_t epoch,
                       std::vector<control::LinkReport> links) {
  impl_->PostOf(from, [from, epoch, links = std::move(links)](Impl& impl) {
    impl.NodeLinks(from.name, epoch, links);
  });
}

void Engine::NodeStatus(const NodeSource& from, double busy_share,
                        const telemetry::NodeCounters& counters) {
  impl_->PostOf(from, [from, busy_share, counters](Impl& impl) {
    impl.NodeStatus(from.name, busy_share, counters);
  });
}

void Engine::StepDone(const NodeSource& from, plan::StepResult result) {
  impl_->PostOf(from, [from, result = std::move(result)](Impl& impl) mutable {
    impl.StepDone(from.name, std::move(result));
  });
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
