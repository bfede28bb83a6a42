// SPDX-License-Identifier: Apache-2.0
#include "bench/ucp_peer.h"

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstring>

#include "common/check.h"

namespace lamina::bench {
namespace {

constexpr size_t kWordBytes = 64;  // Before the data, so that it has a cache line of its own.

class Peer final : public UcpPeer {
 public:
  Peer(const std::string& transports, size_t bytes_max, const ExchangeFn& exchange) {
    ucp_config_t* config = nullptr;
    LAMINA_CHECK(ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
    if (!transports.empty()) {
      LAMINA_CHECK(ucp_config_modify(config, "TLS", transports.c_str()) == UCS_OK);
    }
    // As ucx:// has it: without it shared memory is not offered to endpoints that report errors.
    // Not every version of UCX knows it.
    static_cast<void>(ucp_config_modify(config, "MM_ERROR_HANDLING", "y"));
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA;
    LAMINA_CHECK(ucp_init(&params, config, &context_) == UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t worker = {};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    LAMINA_CHECK(ucp_worker_create(context_, &worker, &worker_) == UCS_OK);
    target_ = Map(kWordBytes + bytes_max, target_bytes_);
    source_ = Map(kWordBytes + bytes_max, source_bytes_);
    Connect(exchange);
  }

  // The process ends with it.
  ~Peer() override = default;

  void PutFencePut(size_t bytes) override {
    Track(ucp_put_nbx(endpoint_, source_bytes_ + kWordBytes, bytes, address_ + kWordBytes, key_,
                      &put_));
    LAMINA_CHECK(ucp_worker_fence(worker_) == UCS_OK);
    ++sent_;
    std::memcpy(source_bytes_, &sent_, sizeof sent_);
    Track(ucp_put_nbx(endpoint_, source_bytes_, sizeof sent_, address_, key_, &put_));
  }

  void Await() override {
    ++seen_;
    std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(target_bytes_));
    while (word.load(std::memory_order_acquire) < seen_) {
      ucp_worker_progress(worker_);
    }
  }

 private:
  ucp_mem_h Map(size_t bytes, std::byte*& address) {
    ucp_mem_map_params_t params = {};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.length = bytes;
    params.flags = UCP_MEM_MAP_ALLOCATE;
    ucp_mem_h memory = nullptr;
    LAMINA_CHECK(ucp_mem_map(context_, &params, &memory) == UCS_OK);
    ucp_mem_attr_t attributes = {};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    LAMINA_CHECK(ucp_mem_query(memory, &attributes) == UCS_OK);
    address = static_cast<std::byte*>(attributes.address);
    std::memset(address, 0, bytes);
    return memory;
  }

  void Connect(const ExchangeFn& exchange) {
    ucp_address_t* address = nullptr;
    size_t address_bytes = 0;
    LAMINA_CHECK(ucp_worker_get_address(worker_, &address, &address_bytes) == UCS_OK);
    const std::string peer = exchange({reinterpret_cast<const char*>(address), address_bytes});
    ucp_worker_release_address(worker_, address);
    void* packed = nullptr;
    size_t packed_bytes = 0;
    LAMINA_CHECK(ucp_rkey_pack(context_, target_, &packed, &packed_bytes) == UCS_OK);
    const std::string key = exchange({static_cast<const char*>(packed), packed_bytes});
    ucp_rkey_buffer_release(packed);
    const auto own = reinterpret_cast<uint64_t>(target_bytes_);
    const std::string there = exchange({reinterpret_cast<const char*>(&own), sizeof own});
    std::memcpy(&address_, there.data(), sizeof address_);
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
    LAMINA_CHECK(ucp_ep_create(worker_, &params, &endpoint_) == UCS_OK);
    LAMINA_CHECK(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_) == UCS_OK);
  }

  static void Track(ucs_status_ptr_t request) {
    LAMINA_CHECK(!UCS_PTR_IS_ERR(request));
    if (UCS_PTR_IS_PTR(request)) {
      ucp_request_free(request);  // Once it is done.
    }
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h target_ = nullptr;
  ucp_mem_h source_ = nullptr;
  std::byte* target_bytes_ = nullptr;
  std::byte* source_bytes_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  uint64_t address_ = 0;  // Address of the peer's word.
  uint64_t sent_ = 0;
  uint64_t seen_ = 0;
  const ucp_request_param_t put_ = {};
};

}  // namespace

bool UcpPeer::IsBuilt() { return true; }

std::unique_ptr<UcpPeer> UcpPeer::Make(const std::string& transports, size_t bytes_max,
                                       const ExchangeFn& exchange) {
  return std::make_unique<Peer>(transports, bytes_max, exchange);
}

}  // namespace lamina::bench
