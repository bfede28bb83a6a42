// SPDX-License-Identifier: Apache-2.0
#include "control/epoch_thread.h"

#include <utility>

#include "common/log.h"
#include "common/thread_pool.h"

namespace lamina::control {

void EpochThread::Start(const std::vector<int>& cores, uint64_t epoch, Work work,
                        NodeReporter* reporter) {
  thread_ = std::thread([cores, epoch, work = std::move(work), reporter] {
    if (!cores.empty() && !PinThisThread(cores)) {
      LogWarning("could not pin the worker to its cores");
    }
    std::string blamed;
    const absl::Status status = work(blamed);
    if (!status.ok() && reporter != nullptr) {
      LogError("epoch ", epoch, " failed ", status.message());
      reporter->ReportFault(epoch, status, blamed);
    }
  });
}

void EpochThread::Join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace lamina::control
