// SPDX-License-Identifier: Apache-2.0
#include "control/transport_fault.h"

#include "absl/strings/cord.h"

namespace lamina::control {
namespace {

constexpr char kMark[] = "lamina/transport-fault";

}  // namespace

absl::Status TransportFault(absl::Status status) {
  if (!status.ok()) {
    status.SetPayload(kMark, absl::Cord());
  }
  return status;
}

bool IsTransportFault(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

}  // namespace lamina::control
