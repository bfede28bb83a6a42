// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/transport/verbs/fake_verbs.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <vector>

namespace lamina::transport {
namespace {

int PostSend(ibv_qp*, ibv_send_wr* request, ibv_send_wr** refused) {
  for (; request != nullptr; request = request->next) {
    if (fake_verbs().posts_left.fetch_sub(1) <= 0) {
      *refused = request;
      return ENOMEM;
    }
    fake_verbs().posted.fetch_add(1);
  }
  return 0;
}

int PollNothing(ibv_cq*, int, ibv_wc*) { return 0; }

ibv_context* Context() {
  static ibv_context context = [] {
    ibv_context made = {};
    made.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    made.ops.post_send = PostSend;
    made.ops.poll_cq = PollNothing;
    return made;
  }();
  return &context;
}

}  // namespace

FakeVerbs& fake_verbs() {
  static FakeVerbs fake;
  return fake;
}

VerbsLocal& FakeLocal(uint64_t message_bytes_max) {
  static auto* const kept = new std::vector<VerbsLocal*>;  // Reachable, and never destroyed.
  auto* const local = new VerbsLocal;
  kept->push_back(local);
  local->context.reset(Context());
  local->choice.reason = "a fake port";
  local->choice.mtu = 1024;
  local->options.queue = 128;
  local->message_bytes_max = message_bytes_max;
  return *local;
}

}  // namespace lamina::transport

extern "C" {

ibv_cq* ibv_create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int) {
  auto* const made = new ibv_cq{};
  made->context = context;
  return made;
}

int ibv_destroy_cq(ibv_cq* queue) {
  delete queue;
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd*, ibv_qp_init_attr* wanted) {
  static std::atomic<uint32_t> next{1};
  auto* const made = new ibv_qp{};
  made->context = wanted->send_cq->context;
  made->qp_num = next.fetch_add(1);
  lamina::transport::fake_verbs().pairs.fetch_add(1);
  return made;
}

int ibv_destroy_qp(ibv_qp* pair) {
  lamina::transport::fake_verbs().pairs.fetch_sub(1);
  delete pair;
  return 0;
}

int ibv_modify_qp(ibv_qp*, ibv_qp_attr*, int) { return 0; }

int ibv_get_async_event(ibv_context*, ibv_async_event*) { return -1; }
}
