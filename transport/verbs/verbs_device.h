// SPDX-License-Identifier: Apache-2.0
//
// The RDMA ports of this host, and the rule by which verbs:// takes one. Types of our own, so that
// `lamina doctor` shows the same.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/verbs/pci_place.h"
#include "transport/verbs/verbs_options.h"

namespace lamina::transport {

enum class GidKind : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

struct VerbsGid {
  uint32_t index = 0;
  GidKind kind = GidKind::kInfiniBand;
  std::string text;  // "fe80::1", "::ffff:192.0.2.1".
  bool ipv4 = false;
  bool link_local = false;
  std::string interface;  // The network interface that it belongs to: "eth1". Empty: unknown.
};

struct VerbsPort {
  std::string device;   // "mlx5_0".
  uint32_t port = 0;    // From 1.
  std::string refused;  // Why the device cannot be opened; the rest is empty then.
  bool active = false;
  std::string state;  // "active", "down", ...
  bool ethernet = false;
  uint32_t mtu = 0;  // Active, bytes.
  double gbit = 0;   // Active speed times width, Gbit/s.
  uint64_t message_bytes_max = 0;
  std::vector<VerbsGid> gids;
  PciPlace place;
};

// In the order of the devices' names. Empty where there is no RDMA device. Does I/O.
std::vector<VerbsPort> ListVerbsPorts();

struct VerbsChoice {
  VerbsPort port;
  VerbsGid gid;
  uint32_t mtu = 0;
  std::string reason;  // "rxe0 port 1, GID 1 (::ffff:192.0.2.1, RoCE v2), MTU 1024".
};

// The rule: the named device and port; else among the active ports those nearest to `near` by PCI
// Express, if it has a path, then the fastest, then the first by name. Its GID: the named one; else
// RoCE v2 before RoCE v1, IPv4 before global IPv6 before link-local. Its MTU: the smaller of the
// port's and the named one. Where options.network is given, only GIDs with an address in it, or of
// the interface that it names, count, and only ports that have one; of a named device those of
// InfiniBand, too.
//
// Errors: kFailedPrecondition  none fits; says what there is and what to do.
//         kPermissionDenied    the device may not be opened.
absl::StatusOr<VerbsChoice> ChooseVerbsPort(const std::vector<VerbsPort>& ports,
                                            const VerbsOptions& options, const PciPlace& near = {});

// Where the device that options.near names sits; without a path when it names none. Does I/O.
// Errors: kFailedPrecondition  this host has no such device.
absl::StatusOr<PciPlace> FindNear(const VerbsOptions& options);

}  // namespace lamina::transport
