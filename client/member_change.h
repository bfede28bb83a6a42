// SPDX-License-Identifier: Apache-2.0
//
// Changes of a running cluster's members: a memory node more, or one fewer. The caller proves that
// it knows the cluster's secret, and with TLS shows a certificate of the node.
//
// Threading: any thread; blocks for kMemberChangeWait at most.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/cluster_secret.h"
#include "common/tls.h"

namespace lamina::client {

inline constexpr Nanos kMemberChangeWait = Seconds(10);

enum class MemberChangeKind : uint8_t { kAdd, kDrain };

struct MemberChange {
  std::string server;  // host:port of the coordinator.
  TlsFiles tls;        // With a certificate of the node where the cluster has TLS.
  ClusterSecret secret;
  MemberChangeKind kind = MemberChangeKind::kAdd;
  std::string node;
};

// What follows, in words of the coordinator's.
// Errors: of Client::Connect(); of control::ProveChange(); kPermissionDenied for a secret or
//         certificate that is not right; those of coordinator/member_changes.h.
absl::StatusOr<std::string> ChangeMembers(const MemberChange& change);

}  // namespace lamina::client
