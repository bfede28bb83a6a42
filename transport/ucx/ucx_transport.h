// SPDX-License-Identifier: Apache-2.0
//
// ucx://: puts over UCP, which takes what it finds between two processes: shared memory, TCP, RDMA.
//
//   ucx://          whatever UCX would take; its own variables (UCX_TLS, UCX_NET_DEVICES) hold
//   ucx://tcp       only these transports of UCX, in the form of its UCX_TLS: "tcp", "sm", "rc,sm"
//   ucx://tcp?peers=local   the same, for processes of this host alone: it listens on loopback
//
// Each transport has two workers. All endpoints belong to one of them, and peers connect to the
// other: so two views in opposite directions share nothing, and closing one does not end the other.
//
// A region's descriptor holds its packed remote key, the address of the receiving worker, and where
// the owner's PeerWatch listens. OpenRegion() asks that watch and keeps the connection; its end
// says that the owner has destroyed the region or died, whatever UCX carries the data over.
// See: docs/adr/0021-peer-watch.md.
//
// Data:       over shared memory and RDMA by put, and a signal by a put of eight bytes behind a
// fence;
//             elsewhere by active messages. All views of one peer share an endpoint, so that a
//             fence covers all earlier puts to it.
//             See: docs/adr/0020-ucx-puts-and-messages.md.
// Progress:   with messages the target must call Progress() or Wait(), and the sender too while
//             Pending() is not 0, or a while longer where a socket was full.
// Memory:     allocated through UCX, so that processes of one host map it. A device's is registered
//             where UCX knows it (CUDA), else not (kFailedPrecondition; staging/device_transport.h
//             goes on from there), nor, where staging is no choice, without RDMA, since messages
//             are copied there too; signal words always lie in the host's. Of a region that was
//             destroyed it lasts as long as the Transport: a late put touches nothing else.
// Wait:       never kUnavailable: a word's writer is not known to the transport.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cluster_secret.h"
#include "common/device_memory.h"
#include "transport/transport.h"

namespace lamina::transport {

// Whether this build has UCX.
bool UcxIsBuilt();

// `name` is what follows "ucx://". `device`, which may be null, outlives the transport. Peers
// prove that they know `secret`.
//
// Errors: kInvalidArgument  UCX knows no transport of that name, or has no device for it; an
// unknown
//                           option.
//         kUnimplemented    this build lacks UCX; says how to get it.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(absl::string_view name,
                                                            DeviceMemory* device,
                                                            const ClusterSecret& secret);

}  // namespace lamina::transport
