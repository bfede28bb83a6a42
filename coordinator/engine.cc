// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine.h"

#include <atomic>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/engine_internal.h"

namespace lamina::coordinator {

Engine::Engine(const EngineOptions& options, const model::Tokenizer& tokenizer, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, tokenizer, clock)) {
  impl_->loop.Start();
}

// Before anything that the loop's thread uses goes.
Engine::~Engine() { impl_->loop.Stop(); }

uint64_t Engine::NewKey() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void Engine::Submit(GenerateSpec spec, uint64_t key, std::shared_ptr<RequestSink> sink) {
  impl_->loop.Post(
      [impl = impl_.get(), spec = std::move(spec), key, sink = std::move(sink)]() mutable {
        impl->Submit(std::move(spec), key, sink);
      });
}

void Engine::NoteRefused(const std::string& request_id, const absl::Status& status) {
  impl_->NoteRefused(request_id, status);
}

void Engine::Cancel(uint64_t key) {
  impl_->loop.Post([impl = impl_.get(), key] {
    impl->EndRequest(key, absl::CancelledError("cancelled by the client"));
  });
}

void Engine::CancelById(const std::string& request_id,
                        std::function<void(const absl::Status&)> done) {
  impl_->loop.Post([impl = impl_.get(), request_id, done = std::move(done)] {
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
  impl_->loop.Post([impl = impl_.get(), hello, port = std::move(port)] {
    if (const absl::Status may = impl->changes.CheckJoin(hello); !may.ok()) {
      LogWarning("refused node ", hello.identity.name, ": ", may.message());
      return port->Refuse(may);
    }
    impl->members.Joined(hello, port);
  });
}

void Engine::AddNode(const std::string& name,
                     std::function<void(const absl::StatusOr<std::string>&)> done) {
  impl_->loop.Post(
      [impl = impl_.get(), name, done = std::move(done)] { done(impl->changes.Add(name)); });
}

void Engine::DrainNode(const std::string& name,
                       std::function<void(const absl::StatusOr<std::string>&)> done) {
  impl_->loop.Post(
      [impl = impl_.get(), name, done = std::move(done)] { done(impl->changes.Drain(name)); });
}

void Engine::NodeLeft(const NodeSource& from) {
  impl_->loop.Post([impl = impl_.get(), from] { impl->members.Left(from); });
}

void Engine::NodeLeaving(const NodeSource& from) {
  impl_->PostOf(from, [from](Impl& impl) { impl.departures.Asked(from, impl.clock.Now()); });
}

void Engine::NodePrepared(const NodeSource& from, uint64_t epoch, control::PreparedNode prepared) {
  impl_->PostOf(from, [from, epoch, prepared = std::move(prepared)](Impl& impl) {
    impl.members.Prepared(from.name, epoch, prepared);
  });
}

void Engine::NodeReady(const NodeSource& from, uint64_t epoch) {
  impl_->PostOf(from, [from, epoch](Impl& impl) { impl.members.Ready(from.name, epoch); });
}

void Engine::NodeLoaded(const NodeSource& from, absl::StatusOr<plan::PolicyTimes> times) {
  impl_->PostOf(from, [from, times = std::move(times)](Impl& impl) {
    impl.members.Loaded(from.name, times);
  });
}

void Engine::NodeFault(const NodeSource& from, uint64_t epoch, const absl::Status& status) {
  impl_->PostOf(
      from, [from, epoch, status](Impl& impl) { impl.members.Fault(from.name, epoch, status); });
}

void Engine::NodeLinks(const NodeSource& from, uint64_t epoch,
                       std::vector<control::LinkReport> links) {
  impl_->PostOf(from, [from, epoch, links = std::move(links)](Impl& impl) {
    impl.members.Links(from.name, epoch, links);
  });
}

void Engine::NodeSpilled(const NodeSource& from, const plan::SpillReport& report) {
  impl_->PostOf(from, [report](Impl& impl) {
    impl.restores.Reported(report, impl.clock.Now());
    impl.scheduler.OnSpilled(report);
  });
}

void Engine::NodeStatus(const NodeSource& from, double busy_share,
                        const telemetry::NodeCounters& counters) {
  impl_->PostOf(from, [from, busy_share, counters](Impl& impl) {
    impl.members.TakeStatus(from.name, busy_share, counters);
    impl.UseCosts();
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
  impl_->loop.Post([impl = impl_.get(), &promise] { promise.set_value(impl->Status()); });
  return future.get();
}

void Engine::GetStatus(std::function<void(const EngineStatus&)> done) {
  impl_->loop.Post([impl = impl_.get(), done = std::move(done)] { done(impl->Status()); });
}

void Engine::StartTrace(Nanos length, std::function<void()> done) {
  impl_->loop.Post([impl = impl_.get(), length, done = std::move(done)] {
    impl->trace.Start(impl->clock.Now(), length);
    for (const auto& [name, node] : impl->members.nodes().all()) {
      node.port->StartTrace(length);
      node.port->PingClock();
    }
    done();
  });
}

void Engine::CollectTrace(std::function<void(EngineTrace)> done) {
  impl_->loop.Post([impl = impl_.get(), done = std::move(done)] { done(impl->TakeTrace()); });
}

void Engine::ReadTrace(const std::string& name,
                       std::function<void(absl::StatusOr<TracedNode>)> done) {
  impl_->loop.Post([impl = impl_.get(), name, done = std::move(done)] {
    if (impl->members.nodes().Find(name) == nullptr) {
      done(absl::NotFoundError(absl::StrCat("no node ", name, " is there")));
    } else {
      done(impl->trace.NodeOf(name));
    }
  });
}

void Engine::NodeTrace(const NodeSource& from, control::NodeTrace trace) {
  impl_->PostOf(from, [from, trace = std::move(trace)](Impl& impl) mutable {
    impl.trace.TakeNode(from.name, std::move(trace));
  });
}

void Engine::NodeClock(const NodeSource& from, const ClockSample& sample) {
  impl_->PostOf(from, [from, sample](Impl& impl) {
    if (impl.trace.TakeClock(from.name, sample)) {
      impl.members.nodes().at(from.name).port->PingClock();
    }
  });
}

void Engine::Drain(std::function<void()> done) {
  impl_->loop.Post([impl = impl_.get(), done = std::move(done)]() mutable {
    impl->draining = true;
    impl->drained = std::move(done);
  });
}

const RequestMetrics& Engine::metrics() const { return impl_->requests.metrics(); }

const core::SchedulerOptions& Engine::limits() const { return impl_->options.scheduler; }

const std::string& Engine::lossy() const { return impl_->options.lossy; }

bool Engine::has_both_forms() const { return impl_->options.kv.has_both(); }

const std::vector<PreparedPolicy>& Engine::policies() const { return impl_->options.policies; }

}  // namespace lamina::coordinator
