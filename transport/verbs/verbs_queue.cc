// SPDX-License-Identifier: Apache-2.0
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/verbs/verbs_queue_internal.h"

namespace lamina::transport {
namespace {

// The largest message that one work request carries, whatever the port could.
constexpr uint64_t kMessageBytesMax = GiB(1);
// Completions taken by one call.
constexpr int kBatch = 16;

ibv_mtu MtuOf(uint32_t bytes) {
  uint32_t mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && (128u << (mtu + 1)) <= bytes) {
    ++mtu;
  }
  return static_cast<ibv_mtu>(mtu);
}

uint32_t RandomPacketNumber() {
  uint32_t number = 0;
  LAMINA_CHECK(getentropy(&number, sizeof number) == 0);
  return number & 0xff'ffff;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsLocal>> VerbsLocal::Open(const VerbsOptions& options) {
  auto local = std::make_unique<VerbsLocal>();
  local->options = options;
  LAMINA_ASSIGN_OR_RETURN(const PciPlace near, FindNear(options));
  LAMINA_ASSIGN_OR_RETURN(local->choice, ChooseVerbsPort(ListVerbsPorts(), options, near));
  LAMINA_ASSIGN_OR_RETURN(local->context, OpenVerbsDevice(local->choice.port.device));
  local->domain.reset(ibv_alloc_pd(local->context.get()));
  if (local->domain == nullptr) {
    return VerbsError("making a protection domain", errno);
  }
  const auto number = static_cast<uint8_t>(local->choice.port.port);
  ibv_gid gid = {};
  ibv_port_attr port = {};
  if (ibv_query_gid(local->context.get(), number, static_cast<int>(local->choice.gid.index),
                    &gid) != 0 ||
      ibv_query_port(local->context.get(), number, &port) != 0) {
    return VerbsError("asking the port", errno);
  }
  std::memcpy(local->gid.data(), gid.raw, local->gid.size());
  local->lid = port.lid;
  local->message_bytes_max = std::min<uint64_t>(port.max_msg_sz, kMessageBytesMax);
  return local;
}

VerbsQueue::VerbsQueue(const VerbsLocal& local, bool sends)
    : local_(local), sends_(sends), message_bytes_max_(local.message_bytes_max) {}

absl::StatusOr<std::unique_ptr<VerbsQueue>> VerbsQueue::Create(const VerbsLocal& local,
                                                               bool sends) {
  std::unique_ptr<VerbsQueue> queue(new VerbsQueue(local, sends));
  const uint32_t depth = sends ? local.options.queue : 1;
  queue->completions_.reset(
      ibv_create_cq(local.context.get(), static_cast<int>(depth), nullptr, nullptr, 0));
  if (queue->completions_ == nullptr) {
    return VerbsError("making a completion queue", errno);
  }
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = queue->completions_.get();
  wanted.recv_cq = queue->completions_.get();
  wanted.cap = {.max_send_wr = depth,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = sizeof(uint64_t)};
  wanted.qp_type = IBV_QPT_RC;
  queue->pair_.reset(ibv_create_qp(local.domain.get(), &wanted));
  if (queue->pair_ == nullptr) {
    return VerbsError(absl::StrCat("making a queue pair of ", depth, " work requests"), errno);
  }
  queue->address_ = {.number = queue->pair_->qp_num,
                     .first_packet = RandomPacketNumber(),
                     .lid = local.lid,
                     .mtu = static_cast<uint16_t>(local.choice.mtu),
                     .ethernet = local.choice.port.ethernet ? 1u : 0u,
                     .gid = local.gid};
  if (sends) {
    queue->free_ = depth;
    queue->in_flight_.resize(depth);
    queue->requests_.resize(depth);
    queue->pieces_.resize(depth);
  }
  return queue;
}

absl::Status VerbsQueue::Connect(const QueueAddress& peer) {
  if ((peer.ethernet != 0) != local_.choice.port.ethernet) {
    return absl::FailedPreconditionError(
        absl::StrCat("verbs: this end is ", local_.choice.port.ethernet ? "Ethernet" : "InfiniBand",
                     " (", local_.choice.reason, "), the peer is not: name the ports, as in ",
                     "verbs://mlx5_0?port=1"));
  }
  LAMINA_RETURN_IF_ERROR(ToInit());
  LAMINA_RETURN_IF_ERROR(ToReceive(peer));
  return sends_ ? ToSend() : absl::OkStatus();
}

absl::Status VerbsQueue::ToInit() {
  ibv_qp_attr wanted = {};
  wanted.qp_state = IBV_QPS_INIT;
  wanted.port_num = static_cast<uint8_t>(local_.choice.port.port);
  wanted.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error = ibv_modify_qp(
      pair_.get(), &wanted, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? absl::OkStatus() : VerbsError("initialising a queue pair", error);
}

absl::Status VerbsQueue::ToReceive(const QueueAddress& peer) {
  ibv_qp_attr wanted = {};
  wanted.qp_state = IBV_QPS_RTR;
  wanted.path_mtu = MtuOf(std::min<uint32_t>(peer.mtu, local_.choice.mtu));
  wanted.dest_qp_num = peer.number;
  wanted.rq_psn = peer.first_packet & 0xff'ffff;
  wanted.max_dest_rd_atomic = 1;
  wanted.min_rnr_timer = 12;
  wanted.ah_attr.port_num = static_cast<uint8_t>(local_.choice.port.port);
  wanted.ah_attr.dlid = peer.lid;
  wanted.ah_attr.is_global = 1;
  std::memcpy(wanted.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  wanted.ah_attr.grh.sgid_index = static_cast<uint8_t>(local_.choice.gid.index);
  wanted.ah_attr.grh.hop_limit = 64;
  const int error =
      ibv_modify_qp(pair_.get(), &wanted,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  return error == 0 ? absl::OkStatus()
                    : VerbsError(absl::StrCat("finding the way to the peer's GID from ",
                                              local_.choice.reason),
                                 error);
}

absl::Status VerbsQueue::ToSend() {
  ibv_qp_attr wanted = {};
  wanted.qp_state = IBV_QPS_RTS;
  wanted.timeout = static_cast<uint8_t>(local_.options.timeout);
  wanted.retry_cnt = static_cast<uint8_t>(local_.options.retries);
  wanted.rnr_retry = static_cast<uint8_t>(local_.options.rnr_retries);
  wanted.sq_psn = address_.first_packet;
  wanted.max_rd_atomic = 1;
  const int error = ibv_modify_qp(pair_.get(), &wanted,
                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? absl::OkStatus() : VerbsError("readying a queue pair", error);
}

absl::Status VerbsQueue::Post(const Write& write, absl::Span<const Signal> signals,
                              ViewState* view) {
  uint32_t count = 0;
  const auto add = [&](uint64_t remote, uint32_t rkey, const void* from, size_t bytes,
                       uint32_t lkey, unsigned flags) {
    ibv_sge& piece = pieces_[count];
    piece = {.addr = reinterpret_cast<uint64_t>(from),
             .length = static_cast<uint32_t>(bytes),
             .lkey = lkey};
    ibv_send_wr& request = requests_[count];
    request = {};
    request.wr_id = head_;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = flags;
    request.wr.rdma.remote_addr = remote;
    request.wr.rdma.rkey = rkey;
    if (count > 0) {
      requests_[count - 1].next = &request;
    }
    ++count;
  };
  for (size_t at = 0; at < write.source.size(); at += message_bytes_max_) {
    add(write.remote_address + at, write.rkey, write.source.data() + at,
        std::min<size_t>(message_bytes_max_, write.source.size() - at), write.lkey, 0);
  }
  for (const Signal& signal : signals) {
    add(signal.remote_address, signal.rkey, &signal.value, sizeof signal.value, 0, IBV_SEND_INLINE);
  }
  requests_[count - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(pair_.get(), requests_.data(), &refused);
  if (error != 0) {
    if (refused != requests_.data()) {
      // Some of it was posted, and no completion will ever say when that is over: only the last
      // one asks for one. Without its queue pair the rest is over now.
      Destroy();
    }
    return VerbsError("posting", error);
  }
  in_flight_[head_ % in_flight_.size()] = {.view = view, .cost = count};
  ++head_;
  free_ -= count;
  return absl::OkStatus();
}

void VerbsQueue::CompleteOldest() {
  const InFlight& oldest = in_flight_[tail_ % in_flight_.size()];
  oldest.view->pending.store(oldest.view->pending.load(std::memory_order_relaxed) - 1);
  free_ += oldest.cost;
  ++tail_;
}

absl::StatusOr<uint32_t> VerbsQueue::Poll() {
  std::array<ibv_wc, kBatch> done;
  uint32_t completed = 0;
  for (;;) {
    const int count = ibv_poll_cq(completions_.get(), kBatch, done.data());
    if (count < 0) {
      return VerbsError("polling completions", errno);
    }
    for (int i = 0; i < count; ++i) {
      const ibv_wc& one = done[static_cast<size_t>(i)];
      if (one.status != IBV_WC_SUCCESS) {
        return absl::UnavailableError(
            absl::StrCat("verbs: a write failed: ", ibv_wc_status_str(one.status),
                         "; the peer is gone, or ", local_.choice.reason, " does not reach it"));
      }
      // In order, so this one stands for all before it.
      while (tail_ <= one.wr_id) {
        CompleteOldest();
        ++completed;
      }
    }
    if (count < kBatch) {
      return completed;
    }
  }
}

void VerbsQueue::Destroy() {
  pair_.reset();
  completions_.reset();
  while (tail_ < head_) {
    CompleteOldest();
  }
}

}  // namespace lamina::transport
