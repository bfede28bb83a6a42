// SPDX-License-Identifier: Apache-2.0
#include "coordinator/drained_server_service.h"

namespace lamina::coordinator {

// Without effect on a server that has ended.
DrainedServer::~DrainedServer() { server_.Shutdown(std::chrono::system_clock::now()); }

void DrainedServer::Stop() {
  engine_.Drain([drained = drained_] { drained->set_value(); });
}

void DrainedServer::Wait(std::chrono::milliseconds grace, const std::function<void()>& drained) {
  drained_->get_future().wait();
  if (drained != nullptr) {
    drained();
  }
  server_.Shutdown(std::chrono::system_clock::now() + grace);
  server_.Wait();
}

}  // namespace lamina::coordinator
