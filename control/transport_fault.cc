// SPDX-License-Identifier: Apache-2.0
#include "control/transport_fault.h"

#include <utility>

#include "absl/strings/cord.h"

namespace lamina::control {
namespace {

constexpr char kMark[] = "lamina/transport-fault";

}  // namespace

absl::Status TransportFault(absl::Status status, absl::string_view peer) {
  if (!status.ok()) {
    status.SetPayload(kMark, absl::Cord(peer));
  }
  return status;
}

absl::Status TransportFault(absl::Status status, const std::vector<std::string>& peers,
                            size_t index) {
  return TransportFault(std::move(status), index < peers.size() ? peers[index] : "");
}

bool IsTransportFault(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

std::string PeerOf(const absl::Status& status) {
  const auto peer = status.GetPayload(kMark);
  return peer.has_value() ? std::string(*peer) : "";
}

}  // namespace lamina::control
