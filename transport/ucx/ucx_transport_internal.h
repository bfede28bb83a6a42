// SPDX-License-Identifier: Apache-2.0
//
// UcxTransport: ucx://. ucx_transport.cc sets it up, with its regions, views and sources;
// ucx_put.cc is what runs while data flows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/idle_naps.h"
#include "common/units.h"
#include "transport/transport.h"
#include "transport/ucx/peer_watch.h"
#include "transport/ucx/ucp_handles_internal.h"
#include "transport/ucx/ucx_region_internal.h"

namespace lamina::transport {

class UcxTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Make(absl::string_view name,
                                                         DeviceMemory* device,
                                                         const ClusterSecret& secret);
  ~UcxTransport() override { LAMINA_CHECK(peers_.empty() && regions_.empty()); }
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  absl::string_view scheme() const override { return "ucx"; }
  const Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override;
  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override;
  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override;
  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override;
  uint32_t Pending(const RemoteRegion& target) const override {
    return static_cast<const UcxRemoteRegion&>(target).pending_;
  }
  uint32_t Progress() override;
  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override;

  // Ends what a view has under way.
  void Close(UcxRemoteRegion& view);

 private:
  static constexpr uint64_t kPutBytesMax = MiB(64);
  static constexpr uint32_t kInFlightMax = 1024;
  // UCX puts a long message together in memory that it allocates; pieces of this size it gets back
  // from the heap without asking the kernel.
  static constexpr size_t kPieceBytes = KiB(64);
  // A Put of the largest size always fits.
  static constexpr uint32_t kOperationsMax = kInFlightMax + kPutBytesMax / kPieceBytes;
  static constexpr unsigned kMessageId = 1;

  // An operation that UCX has not ended, and what it reads besides the source.
  struct Operation {
    UcxTransport* transport = nullptr;
    UcxRemoteRegion* view = nullptr;
    union {
      uint64_t value;      // A signal by put.
      UcxMessage message;  // The head of an active message.
    };
  };
  struct Source {
    const std::byte* begin;
    const std::byte* end;
    ucp_mem_h handle;
    ucs_memory_type_t type;
  };

  explicit UcxTransport(DeviceMemory* device) : device_(device), operations_(kOperationsMax) {}

  absl::Status SetUp(absl::string_view name, const ClusterSecret& secret);
  // How UCX is told of the device's memory.
  absl::StatusOr<ucs_memory_type_t> DeviceType() const;
  absl::StatusOr<UcxMemory> MakeMemory(const RegionOptions& options) const;
  void Retire(UcxRegion& region, UcxMemory memory);
  absl::StatusOr<UcxPeer*> FindPeer(const WatchId& id, const std::string& address);
  void ReleasePeer(UcxPeer& peer);
  void AddSource(const UcpMemory& memory, ucs_memory_type_t type);
  const Source* FindSource(absl::Span<const std::byte> bytes) const;
  Operation& Take(UcxRemoteRegion& view);
  void Release(Operation& operation);
  bool Track(Operation& operation, ucs_status_ptr_t request);
  bool PutDirect(UcxRemoteRegion& view, size_t offset, absl::Span<const std::byte> source,
                 const Source& registered);
  bool RaiseDirect(UcxRemoteRegion& view, const SignalUpdate& signal);
  bool SendMessages(UcxRemoteRegion& view, size_t offset, absl::Span<const std::byte> source,
                    ucs_memory_type_t type, const SignalUpdate* signal);
  static void OnDone(void* request, ucs_status_t status, void* done);
  static ucs_status_t OnMessage(void* transport, const void* header, size_t header_bytes,
                                void* data, size_t bytes, const ucp_am_recv_param_t* param);

  Capabilities capabilities_ = {.one_sided = false,  // Depends on the peer; see path().
                                .local_host_only = false,
                                .put_bytes_max = kPutBytesMax,
                                .in_flight_max = kInFlightMax};
  // Order matters: members die last to first.
  DeviceMemory* const device_;                 // Null where there is none.
  bool knows_cuda_ = false;                    // UCX knows memory of CUDA.
  bool takes_rdma_ = false;                    // It puts over RDMA into memory that it knows.
  std::vector<DeviceAllocation> allocations_;  // Allocations of regions that were destroyed.
  UcpContext context_;
  std::unique_ptr<PeerWatch> watch_;
  std::string receiver_address_;
  // Held while regions, views and sources are made and ended; not on the data path.
  std::mutex set_up_;
  std::vector<UcpMemory> memories_;  // Registered sources, and regions that were destroyed.
  UcpWorker receiver_;               // Peers connect to it.
  UcpWorker sender_;                 // All endpoints of ours are its.
  std::vector<Source> sources_;      // By `begin`; they may overlap.
  std::map<WatchId, UcxRegion*> regions_;
  std::vector<std::unique_ptr<UcxPeer>> peers_;
  std::vector<Operation> operations_;
  std::vector<Operation*> free_;
  uint32_t completed_ = 0;
  IdleNaps naps_;         // Those of Wait().
  uint64_t refused_ = 0;  // Messages to no region of ours, or outside of it.
};

}  // namespace lamina::transport
