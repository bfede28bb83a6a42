// SPDX-License-Identifier: Apache-2.0
//
// Timelines: the engine's part of `lamina trace`.

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/engine_internal.h"

namespace lamina::coordinator {

void Engine::StartTrace(Nanos length, std::function<void()> done) {
  impl_->Post([impl = impl_.get(), length, done = std::move(done)] {
    impl->trace.Start(impl->clock.Now(), length);
    for (const auto& [name, node] : impl->nodes) {
      node.port->StartTrace(length);
      node.port->PingClock();
    }
    done();
  });
}

void Engine::CollectTrace(std::function<void(EngineTrace)> done) {
  impl_->Post([impl = impl_.get(), done = std::move(done)] {
    const uint64_t id = impl->trace.Collect(impl->clock.Now());
    EngineTrace trace = impl->trace.Take(impl->requests.Running());
    trace.epoch = impl->membership.epoch();
    for (const core::Member* member : impl->membership.compute_members()) {
      trace.compute_nodes.push_back(member->name);
    }
    trace.prefill_nodes = impl->membership.prefill_members();
    trace.prefill_lane = impl->options.scheduler.lanes;
    for (const core::Member* member : impl->membership.memory_members()) {
      trace.memory_nodes.push_back(member->name);
    }
    for (const auto& [name, node] : impl->nodes) {
      node.port->CollectTrace(id);
    }
    done(std::move(trace));
  });
}

void Engine::ReadTrace(const std::string& name,
                       std::function<void(absl::StatusOr<TracedNode>)> done) {
  impl_->Post([impl = impl_.get(), name, done = std::move(done)] {
    if (!impl->nodes.contains(name)) {
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
      impl.nodes.at(from.name).port->PingClock();
    }
  });
}

}  // namespace lamina::coordinator
