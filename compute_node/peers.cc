// SPDX-License-Identifier: Apache-2.0
#include "compute_node/peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "control/blame.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::compute_node {
namespace {

bool IsMemory(PeerId peer) { return peer >= telemetry::TraceEvent::kMemoryPeer; }

// Among the nodes of its role.
size_t IndexOf(PeerId peer) {
  return IsMemory(peer) ? peer - telemetry::TraceEvent::kMemoryPeer : peer;
}

}  // namespace

Peers::Peers(const plan::EpochConfig& config, uint32_t node, Nanos timeout,
             transport::Transport& transport, const transport::AbortWord& abort,
             StepCounters& counters)
    : config_(config),
      timeout_(timeout),
      transport_(transport),
      abort_(abort),
      counters_(counters) {
  for (const std::string& name : config.memory_nodes) {
    memory_links_.push_back(config.attention_paths.on_memory_nodes() ? counters.meter.Link(name)
                                                                     : nullptr);
  }
  for (telemetry::LinkCounters* link : memory_links_) {
    if (link != nullptr) {
      link->exchange.Forget();  // The epoch may have another transport.
      link->fetched.Begin(config.lanes);
    }
  }
  compute_links_.resize(config.compute_nodes.size());
  for (const uint32_t other : plan::ComputeNodeView(config, node).opens().compute) {
    compute_links_[other] = counters.meter.Link(config.compute_nodes[other]);
  }
}

void Peers::Connect(std::vector<std::unique_ptr<transport::RemoteRegion>> memory,
                    std::vector<std::unique_ptr<transport::RemoteRegion>> compute) {
  memory_ = std::move(memory);
  compute_ = std::move(compute);
}

void Peers::Disconnect() {
  memory_.clear();
  compute_.clear();
}

const std::string& Peers::Name(PeerId peer) const {
  return (IsMemory(peer) ? config_.memory_nodes : config_.compute_nodes)[IndexOf(peer)];
}

transport::RemoteRegion* Peers::Region(PeerId peer) const {
  return (IsMemory(peer) ? memory_ : compute_)[IndexOf(peer)].get();
}

telemetry::LinkCounters& Peers::Link(PeerId peer) const {
  return *(IsMemory(peer) ? memory_links_ : compute_links_)[IndexOf(peer)];
}

bool Peers::AnyPending() const {
  const auto pending = [this](const std::unique_ptr<transport::RemoteRegion>& peer) {
    return peer != nullptr && transport_.Pending(*peer) > 0;
  };
  return std::any_of(memory_.begin(), memory_.end(), pending) ||
         std::any_of(compute_.begin(), compute_.end(), pending);
}

absl::Status Peers::Put(PeerId peer, size_t offset, absl::Span<const std::byte> source,
                        const transport::SignalUpdate* signal) {
  absl::Status put = transport::PutAll(
      transport_, *Region(peer), offset, source, signal,
      {.deadline = RealClock().Now() + timeout_, .abort = &abort_, .beat = &counters_.beat});
  if (!put.ok() && !absl::IsCancelled(put)) {
    telemetry::AddTo(Link(peer).failures, 1);
  }
  return control::Blame(std::move(put), Name(peer));
}

// A Put of nothing says whether the peer is gone.
absl::Status Peers::CheckThere(PeerId peer) {
  transport::RemoteRegion* const region = Region(peer);
  if (region == nullptr) {
    return absl::OkStatus();
  }
  absl::Status there = transport_.Put(*region, 0, {}, nullptr);
  return absl::IsUnavailable(there) ? control::Blame(std::move(there), Name(peer))
                                    : absl::OkStatus();
}

void Peers::CountSent(PeerId peer, const SentBytes& sent, Nanos spent) {
  telemetry::LinkCounters& link = Link(peer);
  const size_t bytes = sent.sum();
  telemetry::AddTo(counters_.bytes_sent, bytes);
  telemetry::AddTo(link.bytes, bytes);
  telemetry::AddTo(link.puts, 1);
  telemetry::AddTo(link.nanos, static_cast<uint64_t>(spent));
  counters_.bus.Count(BusKind::kRows, sent.rows);
  counters_.bus.Count(BusKind::kKv, sent.kv);
  counters_.bus.Count(BusKind::kActivations, sent.activations);
}

void Peers::CountExchange(PeerId peer, Nanos began, Nanos ended, size_t bytes) {
  if (ended > began) {
    Link(peer).exchange.Note(ended, ended - began, bytes);
  }
}

void Peers::CountWait(PeerId peer, Nanos waited) {
  telemetry::LinkCounters& link = Link(peer);
  telemetry::AddTo(link.waited_nanos, static_cast<uint64_t>(waited));
  link.fetched.CountWait(waited);
}

absl::Status Peers::CheckWindow(PeerId sender, const plan::WindowHeader& header,
                                const plan::WindowHeader& expected) {
  absl::Status checked = plan::CheckHeader(header, expected);
  if (!checked.ok()) {
    counters_.refusals.Count(telemetry::RefusalOf(header, expected));
    LogWarning("refused a window of ", Name(sender), " ", checked.message());
  }
  return control::Blame(std::move(checked), Name(sender));
}

absl::Status Peers::CheckSealedWindow(PeerId sender, const plan::WindowHeader& header,
                                      const plan::WindowHeader& expected) {
  if (absl::Status sealed = plan::CheckSeal(header, expected); !sealed.ok()) {
    return Damaged(sender, std::move(sealed));
  }
  return CheckWindow(sender, header, expected);
}

absl::Status Peers::CheckData(PeerId sender, const plan::WindowHeader& header, uint64_t checksum) {
  if (header.data_checksum == checksum) {
    return absl::OkStatus();
  }
  return Damaged(sender, absl::InternalError(absl::StrCat(
                             "window of lane ", header.lane, " step ", header.step, " layer ",
                             header.layer, ": its data changed on the way, their checksum is ",
                             checksum, " and was ", header.data_checksum)));
}

absl::Status Peers::Damaged(PeerId sender, absl::Status why) {
  counters_.refusals.Count(telemetry::Refusal::kDamaged);
  LogWarning("refused a window of ", Name(sender), " ", why.message());
  return control::Blame(std::move(why), Name(sender));
}

absl::Status Peers::NothingFrom(PeerId peer, Nanos waited) const {
  return control::Blame(absl::DeadlineExceededError(absl::StrCat("nothing from ", Name(peer),
                                                                 " for ", ToSeconds(waited), " s")),
                        Name(peer));
}

}  // namespace lamina::compute_node
