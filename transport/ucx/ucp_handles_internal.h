// SPDX-License-Identifier: Apache-2.0
//
// One move-only owner for each handle of UCP. A handle must die before what it was made from; the
// holder declares its members in that order.

#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/ucx/peer_watch.h"

namespace lamina::transport {

// "ucx: WHAT: message of UCX", with the code that fits: no memory kResourceExhausted, no device or
// transport kInvalidArgument, all else kUnavailable.
absl::Status UcsError(absl::string_view what, ucs_status_t status);

struct DestroyUcpContext {
  void operator()(ucp_context_h context) const noexcept { ucp_cleanup(context); }
};
using UcpContext = std::unique_ptr<std::remove_pointer_t<ucp_context_h>, DestroyUcpContext>;

// `transports` is a list for UCX_TLS; empty leaves UCX's choice. With kThisHost TCP goes over
// loopback, unless UCX_NET_DEVICES says otherwise or RDMA, whose devices it means too, is taken.
absl::StatusOr<UcpContext> MakeUcpContext(absl::string_view transports, PeerReach reach);

// What UCX_NET_DEVICES names: interfaces, "eth1", and ports of RDMA devices, "mlx5_0:1". Empty
// where it leaves the choice to UCX.
absl::StatusOr<std::vector<std::string>> NamedDevices();

// Whether a context of these may put over RDMA: there is a device, and the list, or UCX_TLS where
// it is empty, names it.
absl::StatusOr<bool> TakesRdma(absl::string_view transports);

// Whether UCX was built with CUDA and finds a device.
absl::StatusOr<bool> HasCudaMemory(ucp_context_h context);

struct DestroyUcpWorker {
  void operator()(ucp_worker_h worker) const noexcept { ucp_worker_destroy(worker); }
};
using UcpWorker = std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, DestroyUcpWorker>;

absl::StatusOr<UcpWorker> MakeUcpWorker(ucp_context_h context);
// What a peer needs to make an endpoint.
absl::StatusOr<std::string> AddressOf(ucp_worker_h worker);

// Memory that UCX knows: allocated by it, or the caller's. Unregistered and freed when destroyed.
class UcpMemory {
 public:
  // Zeroed, at least 64-byte aligned.
  static absl::StatusOr<UcpMemory> Allocate(ucp_context_h context, size_t bytes);
  static absl::StatusOr<UcpMemory> Register(ucp_context_h context, const void* data, size_t bytes,
                                            ucs_memory_type_t type);

  UcpMemory(UcpMemory&& other) noexcept;
  UcpMemory& operator=(UcpMemory&& other) noexcept;
  UcpMemory(const UcpMemory&) = delete;
  UcpMemory& operator=(const UcpMemory&) = delete;
  ~UcpMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  ucp_mem_h handle() const { return handle_; }
  // For UnpackRemoteKey() of a peer.
  absl::StatusOr<std::string> PackRemoteKey() const;

 private:
  static absl::StatusOr<UcpMemory> Map(ucp_context_h context, const ucp_mem_map_params_t& params);
  UcpMemory(ucp_context_h context, ucp_mem_h handle) : context_(context), handle_(handle) {}

  ucp_context_h context_ = nullptr;
  ucp_mem_h handle_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

struct DestroyUcpRemoteKey {
  void operator()(ucp_rkey_h key) const noexcept { ucp_rkey_destroy(key); }
};
using UcpRemoteKey = std::unique_ptr<std::remove_pointer_t<ucp_rkey_h>, DestroyUcpRemoteKey>;

absl::StatusOr<UcpRemoteKey> UnpackRemoteKey(ucp_ep_h endpoint, absl::string_view packed);

struct EndpointLanes {
  std::string names;               // "tcp/eth0", or "sysv, tcp/lo".
  bool has_remote_writes = false;  // One of them writes to the peer's memory by itself.
};

// UCX tells this only in a text for people, which is read here; nothing is found when it has
// another form.
EndpointLanes DescribeEndpoint(ucp_ep_h endpoint);

}  // namespace lamina::transport
