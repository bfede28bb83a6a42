// SPDX-License-Identifier: Apache-2.0
//
// verbs://: a Put is an RDMA WRITE, and a signal is another one of eight bytes behind it.
//
//   verbs://                                the fastest active port
//   verbs://mlx5_0?port=1&gid=3&mtu=1024    this one; all parts may be left out
//   verbs://?timeout=14&retries=6&rnr_retries=6&queue=256
//
// Between two Transports there is one reliable connected queue pair for each direction, made by the
// first OpenRegion(). It is set up over a TCP connection to the owner of the region, whose address
// stands in the descriptor; that connection stays, and its end says that the peer is gone.
//
// Signals:  all Puts to a peer use one queue pair, which writes in order. The
//           signal is inline, on one doorbell with its data, and the only part that is completed.
// Progress: the target's processor takes no part. The sender reaps completions in Progress() and
//           Wait(); a Put to a peer that is idle costs no call.
// Devices:  own regions in the host's memory are shown to devices, and a RemoteRegion has an outbox
//           for them (outbox/outboxes.h), whose proxy has a queue pair of its own to each peer.
// Memory:   the host's by ibv_reg_mr; a device's by a dmabuf, else by ibv_reg_mr where peermem is
//           there, else not (kFailedPrecondition; staging/device_transport.h goes on from there).
//           Signal words lie in the host's. A region that its device polls has others besides: in
//           the device's memory, raised first, where it orders the writes of NICs, else those of a
//           thread that flushes (outbox/landing_proxy.h). A region that was destroyed stays
//           registered until its senders have drained or are gone, so that what was in flight
//           cannot break the queue pair that their other regions share.
// Errors:   a queue pair that failed, or whose TCP connection ended, is destroyed: its Puts vanish
//           and its views say kUnavailable. OpenRegion() makes a new one.
// Wait:     never kUnavailable: a word's writer is not known to the transport.
// See:      docs/adr/0025-verbs-connections.md, docs/adr/0026-verbs-signals.md.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cluster_secret.h"
#include "common/device_memory.h"
#include "transport/transport.h"

namespace lamina::transport {

// Whether this build has libibverbs.
bool VerbsIsBuilt();

// `name` is what follows "verbs://". `device`, which may be null, outlives the transport. Peers
// prove that they know `secret`.
//
// Errors: kInvalidArgument     an unknown option, or a value out of its range.
//         kFailedPrecondition  no RDMA device here, or none of that name; its port is down, or has
//                              no GID; says what there is and what to do.
//         kPermissionDenied    the device file may not be opened.
//         kResourceExhausted   the device, or the memlock limit, refused.
//         kUnimplemented       this build lacks libibverbs; says how to get it.
absl::StatusOr<std::unique_ptr<Transport>> MakeVerbsTransport(absl::string_view name,
                                                              DeviceMemory* device,
                                                              const ClusterSecret& secret);

}  // namespace lamina::transport
