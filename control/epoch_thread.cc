// SPDX-License-Identifier: Apache-2.0
#include "control/epoch_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "common/log.h"
#include "common/thread_pool.h"
#include "control/blame.h"

namespace lamina::control {

void EpochThread::Start(const std::vector<int>& cores, uint64_t epoch, Work work,
                        NodeReporter* reporter) {
  std::promise<void> ended;
  ended_ = ended.get_future();
  beat_.Begin(ThreadActivity::kWorking);
  thread_ = std::thread(
      [cores, epoch, work = std::move(work), reporter, ended = std::move(ended), this]() mutable {
        pthread_setname_np(pthread_self(), kName);
        if (!cores.empty() && !PinThisThread(cores)) {
          LogWarning("could not pin the worker to its cores");
        }
        const absl::Status status = work();
        if (!status.ok() && reporter != nullptr) {
          LogError("epoch ", epoch, " failed ", status.message());
          reporter->ReportFault(epoch, status);
        }
        beat_.Begin(ThreadActivity::kNone);
        ended.set_value();
      });
}

void EpochThread::Join(std::chrono::nanoseconds most) {
  if (!thread_.joinable()) {
    return;
  }
  constexpr int kLooks = 10;  // Within `most`.
  uint64_t moves = Moves();
  for (int looks = 0, still = 0; ended_.wait_for(most / kLooks) == std::future_status::timeout;) {
    still = std::exchange(moves, Moves()) == moves ? still + 1 : 0;
    if (still == kLooks || ++looks == kLooks * kEndsAtMost) {
      LogError("the data thread was told to stop and has not for ",
               std::chrono::duration<double>(still == kLooks ? most : kEndsAtMost * most).count(),
               " s; this process ends");
      FlushLog();
      _exit(1);
    }
  }
  thread_.join();
}

}  // namespace lamina::control
