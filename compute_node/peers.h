// SPDX-License-Identifier: Apache-2.0
//
// Peers: the other nodes of an epoch as a compute node reaches them, by one-sided puts, and what is
// counted of each.
//
// Threading: the data thread. Allocation: none while it runs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "compute_node/step_counters.h"
#include "control/node_handler.h"
#include "plan/window_layout.h"
#include "telemetry/fetched_bandwidth.h"
#include "telemetry/trace_ring.h"
#include "transport/transport.h"

namespace lamina::compute_node {

// As timelines number them.
using PeerId = uint16_t;
inline PeerId ComputePeer(uint32_t node) { return static_cast<PeerId>(node); }
inline PeerId MemoryPeer(uint32_t node) {
  return static_cast<PeerId>(telemetry::TraceEvent::kMemoryPeer + node);
}

// A signal of the own region that a peer is to raise.
struct AwaitedSignal {
  PeerId peer = 0;
  uint32_t word = 0;
  uint64_t value = 0;
};

// Bytes of puts, by what they are.
struct SentBytes {
  size_t rows = 0;  // Headers too.
  size_t kv = 0;
  size_t activations = 0;
  size_t sum() const { return rows + kv + activations; }
};

class Peers {
 public:
  // Peers of compute node `node` of `config`. A put that does not get through ends after `timeout`,
  // or when `abort` is raised. All references must outlive this.
  Peers(const plan::EpochConfig& config, uint32_t node, Nanos timeout,
        transport::Transport& transport, const transport::AbortWord& abort, StepCounters& counters);

  // Memory node i has memory[i], compute node i compute[i], which is null for the own one, and for
  // those that it exchanges nothing with.
  void Connect(std::vector<std::unique_ptr<transport::RemoteRegion>> memory,
               std::vector<std::unique_ptr<transport::RemoteRegion>> compute);

  // A transport may read the sources of puts until this.
  void Disconnect();

  uint32_t memory_nodes() const { return static_cast<uint32_t>(memory_.size()); }
  uint32_t compute_nodes() const { return static_cast<uint32_t>(compute_.size()); }
  const std::string& Name(PeerId peer) const;
  transport::RemoteRegion* Region(PeerId peer) const;
  bool AnyPending() const;  // Puts that have not left yet.

  // As transport::PutAll(). Errors: the transport's; kDeadlineExceeded; kCancelled; blamed on the
  // peer.
  absl::Status Put(PeerId peer, size_t offset, absl::Span<const std::byte> source,
                   const transport::SignalUpdate* signal);

  // Errors: kUnavailable, blamed on the peer, where it is known to be gone.
  absl::Status CheckThere(PeerId peer);

  // `sent` has gone to the peer in `spent`.
  void CountSent(PeerId peer, const SentBytes& sent, Nanos spent);

  // What left at `began` was answered by the peer and taken at `ended`, `bytes` both ways together.
  void CountExchange(PeerId peer, Nanos began, Nanos ended, size_t bytes);

  // What comes of K and V from a memory node, of all lanes. Requires: a path on memory nodes.
  telemetry::FetchedBandwidth& Fetched(uint32_t memory_node) {
    return memory_links_[memory_node]->fetched;
  }

  // The thread has stood still for the peer.
  void CountWait(PeerId peer, Nanos waited);

  // Whether a window of the peer's has the header that it must have. Errors: as
  // plan::CheckHeader(), blamed on the sender; it is then counted and logged.
  absl::Status CheckWindow(PeerId sender, const plan::WindowHeader& header,
                           const plan::WindowHeader& expected);
  // Does that for a window whose header is sealed, and looks at the seal first. Errors: kInternal
  // too where the header changed on the way: the fault that CheckData() finds.
  absl::Status CheckSealedWindow(PeerId sender, const plan::WindowHeader& header,
                                 const plan::WindowHeader& expected);
  // Compares the checksum of a window's data with the one that the header has, if it has any.
  // Errors: kInternal, marked as the sender's; logged and counted.
  absl::Status CheckData(PeerId sender, const plan::WindowHeader& header, uint64_t checksum);

  // The error of a wait for the peer in vain, blamed on it.
  absl::Status NothingFrom(PeerId peer, Nanos waited) const;

 private:
  telemetry::LinkCounters& Link(PeerId peer) const;
  // Counts and logs a window that changed on the way. Returns `why`, blamed on the sender.
  absl::Status Damaged(PeerId sender, absl::Status why);

  const plan::EpochConfig& config_;
  const Nanos timeout_;
  transport::Transport& transport_;
  const transport::AbortWord& abort_;
  StepCounters& counters_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> memory_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> compute_;
  std::vector<telemetry::LinkCounters*> memory_links_;   // [memory nodes]; null under policy local.
  std::vector<telemetry::LinkCounters*> compute_links_;  // [compute nodes]; null as their regions.
};

}  // namespace lamina::compute_node
