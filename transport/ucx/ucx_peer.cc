// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "transport/ucx/ucx_region_internal.h"

namespace lamina::transport {
namespace {

// UCX promises that a forced close ends all that is under way.
constexpr Nanos kCutMax = Seconds(10);

void OnEndpointError(void* peer, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxPeer*>(peer)->Fail(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxPeer>> UcxPeer::Connect(ucp_worker_h worker, const WatchId& id,
                                                          const std::string& address) {
  std::unique_ptr<UcxPeer> peer(new UcxPeer(worker, id));
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &OnEndpointError, .arg = peer.get()};
  const ucs_status_t status = ucp_ep_create(worker, &params, &peer->endpoint_);
  if (status != UCS_OK) {
    return absl::UnavailableError(absl::StrCat(
        UcsError("making an endpoint", status).message(),
        ": no transport of UCX reaches the peer; `ucx_info -d` on both hosts lists what there is"));
  }
  const EndpointLanes lanes = DescribeEndpoint(peer->endpoint_);
  peer->lanes_ = lanes.names;
  peer->has_remote_writes_ = lanes.has_remote_writes;
  return peer;
}

UcxPeer::~UcxPeer() { Cut(); }

void UcxPeer::Cut() {
  if (endpoint_ == nullptr) {
    return;
  }
  Fail(UCS_ERR_CANCELED);
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &params);
  const auto under_way = [&] {
    return pending > 0 ||
           (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS);
  };
  for (const Nanos end = RealClock().Now() + kCutMax; under_way() && RealClock().Now() < end;) {
    ucp_worker_progress(worker_);
  }
  LAMINA_CHECK(!under_way());
  if (UCS_PTR_IS_PTR(request)) {
    ucp_request_free(request);
  }
}

bool UcxPeer::IsDirect(ucp_rkey_h key, uint64_t address) const {
  void* mapped = nullptr;
  return has_remote_writes_ || ucp_rkey_ptr(key, address, &mapped) == UCS_OK;
}

}  // namespace lamina::transport
