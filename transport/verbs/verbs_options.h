// SPDX-License-Identifier: Apache-2.0
//
// What a verbs:// URI may say: "DEVICE?key=value&key=value", all of it optional.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/port_range.h"

namespace lamina::transport {

struct VerbsOptions {
  std::string device;            // Empty: the nearest to `near`, then the fastest active port.
  std::string near;              // A device on PCI like 0000:41:00.0, a GPU say; empty: none.
  std::string network;           // "10.1.0.0/16" or "eth1": only GIDs of it; empty: any.
  bool local_peers = false;      // peers=local: of this host alone; it listens on loopback.
  PortRange ports;               // At which it listens for the handshakes of connections.
  std::optional<uint32_t> port;  // The device's port, 1 to 254.
  std::optional<uint32_t> gid;   // Index into the port's GID table, 0 to 255.
  std::optional<uint32_t> mtu;   // 256, 512, 1024, 2048 or 4096 bytes; at most the port's.
  uint32_t timeout = 14;         // Until a packet is sent again: 4.096 us * 2^timeout; 1 to 31.
  uint32_t retries = 6;      // Then the peer is gone; 0 to 6, since Soft-RoCE repeats 7 forever.
  uint32_t rnr_retries = 6;  // While the peer is not ready to receive; 0 to 7.
  uint32_t queue = 256;      // Work requests in flight to one peer; 128 to 8192.

  friend bool operator==(const VerbsOptions&, const VerbsOptions&) = default;
};

// Errors: kInvalidArgument  an unknown key, or a value out of its range; names both.
absl::StatusOr<VerbsOptions> ParseVerbsOptions(absl::string_view name);

}  // namespace lamina::transport
