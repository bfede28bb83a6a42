// SPDX-License-Identifier: Apache-2.0
#include "tests/support/local_link.h"

#include <chrono>
#include <utility>

#include "control/blame.h"

namespace lamina::test_support {

LocalLink::LocalLink(std::string name, control::NodeHandler& handler, coordinator::Engine& engine,
                     Nanos delay, plan::PolicyTimes times)
    : name_(std::move(name)),
      handler_(handler),
      engine_(engine),
      delay_(delay),
      times_(std::move(times)) {
  thread_ = std::thread([this] { Loop(); });
}

LocalLink::~LocalLink() { Close(); }

void LocalLink::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

plan::EpochConfig LocalLink::config() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

std::string LocalLink::region() const {
  const std::lock_guard lock(mutex_);
  return region_;
}

std::string LocalLink::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

void LocalLink::Configure(const plan::EpochConfig& config) {
  Post([this, config] { HandleConfigure(config); });
}

void LocalLink::Connect(const plan::EpochPeers& peers) {
  Post([this, peers] { HandleConnect(peers); });
}

void LocalLink::LoadLayers(const plan::Stage& stage, bool measure) {
  Post([this, stage, measure] {
    if (const absl::Status loaded = handler_.LoadLayers(stage); !loaded.ok()) {
      return engine_.NodeLoaded(source(), loaded);
    }
    engine_.NodeLoaded(source(),
                       measure && !times_.measured() ? handler_.MeasurePolicies() : times_);
  });
}

void LocalLink::Leave(const std::string&) {
  Post([this] { handler_.LeaveEpoch(); });
}

void LocalLink::SendPlan(const coordinator::OutgoingPlan& plan) {
  Post([this, plan = plan.plan()] { handler_.TakePlan(plan); });
}

void LocalLink::StartTrace(Nanos length) {
  Post([this, length] { handler_.ring().Start(RealClock().Now() + length); });
}

void LocalLink::CollectTrace(uint64_t id) {
  Post([this, id] {
    handler_.ring().Stop();
    control::NodeTrace trace{.id = id};
    trace.events = handler_.ring().Take(trace.dropped);
    engine_.NodeTrace(source(), std::move(trace));
  });
}

void LocalLink::PingClock() {
  Post([this, sent = RealClock().Now()] {
    const Nanos now = RealClock().Now();
    engine_.NodeClock(source(),
                      {.sent = sent, .node_received = now, .node_sent = now, .received = now});
  });
}

void LocalLink::Refuse(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  refused_ = std::string(why.message());
}

void LocalLink::Post(std::function<void()> message) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(message));
  }
  wake_.notify_one();
}

void LocalLink::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (closed_) {
      return;
    }
    if (delay_ > 0) {
      wake_.wait_for(lock, std::chrono::nanoseconds(delay_), [this] { return closed_; });
    }
    const std::function<void()> message = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    message();
    lock.lock();
  }
}

void LocalLink::HandleConfigure(const plan::EpochConfig& config) {
  const absl::StatusOr<control::PreparedNode> prepared = handler_.Configure(config);
  if (!prepared.ok()) {
    engine_.NodeFault(source(), config.epoch, control::Blame(prepared.status(), name_));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    config_ = config;
    region_ = prepared->region;
  }
  engine_.NodePrepared(source(), config.epoch, *prepared);
}

void LocalLink::HandleConnect(const plan::EpochPeers& peers) {
  const absl::Status status = handler_.Connect(peers);
  if (!status.ok()) {
    engine_.NodeFault(source(), peers.epoch, status);
    return;
  }
  engine_.NodeReady(source(), peers.epoch);
}

void LocalReporter::set_port(const coordinator::NodePort* port) {
  const std::lock_guard lock(mutex_);
  source_.port = port;
}

void LocalReporter::ReportResult(plan::StepResult result) {
  const std::lock_guard lock(mutex_);
  if (source_.port != nullptr) {
    engine_.StepDone(source_, std::move(result));
  }
}

void LocalReporter::ReportFault(uint64_t epoch, const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (source_.port != nullptr) {
    engine_.NodeFault(source_, epoch, status);
  }
}

void LocalReporter::ReportSpill(const plan::SpillReport& report) {
  const std::lock_guard lock(mutex_);
  if (source_.port != nullptr) {
    engine_.NodeSpilled(source_, report);
  }
}

void LocalReporter::ReportLinks(uint64_t epoch, std::vector<control::LinkReport> links) {
  const std::lock_guard lock(mutex_);
  if (source_.port != nullptr) {
    engine_.NodeLinks(source_, epoch, std::move(links));
  }
}

}  // namespace lamina::test_support
