// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/streams.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/support/cuda_emulation/device_heap.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lamina::cuda_emulation {

// Does the work of one stream, in order.
class StreamThread {
 public:
  StreamThread() : thread_([this] { Run(); }) {}
  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;
  ~StreamThread() { Finish(); }

  // Does what is there, and ends.
  void Finish() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void Push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      works_.push_back(std::move(work));
      ++pushed_;
    }
    changed_.notify_all();
  }

  uint64_t pushed() {
    const std::lock_guard lock(mutex_);
    return pushed_;
  }
  bool IsDone() {
    const std::lock_guard lock(mutex_);
    return done_ == pushed_;
  }
  void WaitFor(uint64_t works) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= works; });
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !works_.empty(); });
      if (works_.empty()) {
        return;
      }
      const std::function<void()> work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      {
        const DeviceAccess access;
        work();
      }
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  bool ends_ = false;
  std::thread thread_;  // Last: it uses all the others.
};

namespace {

std::atomic<int> threaded{0};

// The driver's lock, and what it guards.
struct Driver {
  std::mutex mutex;
  std::vector<std::weak_ptr<StreamThread>> threads;
};

Driver& TheDriver() {
  static auto* const driver = new Driver;  // Lives as long as the threads of any test.
  return *driver;
}

void WaitForAll(Driver& driver) {
  const std::lock_guard lock(driver.mutex);
  std::erase_if(driver.threads, [](const auto& thread) { return thread.expired(); });
  for (const std::weak_ptr<StreamThread>& each : driver.threads) {
    if (const auto thread = each.lock(); thread != nullptr) {
      thread->WaitFor(thread->pushed());
    }
  }
}

// Those that this thread captures.
thread_local std::vector<cudaStream_t> capturing;
std::atomic<bool> instantiations_fail{false};

cudaError_t Spoil(cudaError_t error) {
  for (const cudaStream_t stream : capturing) {
    stream->spoilt = true;
  }
  return error;
}

}  // namespace

ThreadedStreams::ThreadedStreams() { ++threaded; }
ThreadedStreams::~ThreadedStreams() { --threaded; }

cudaStream_t CreateStream() {
  WaitForAll(TheDriver());
  auto* const stream = new EmulatedStream;
  if (threaded.load() > 0) {
    stream->thread = std::make_shared<StreamThread>();
    Driver& driver = TheDriver();
    const std::lock_guard lock(driver.mutex);
    driver.threads.push_back(stream->thread);
  }
  return stream;
}

void DestroyStream(cudaStream_t stream) {
  if (stream->thread != nullptr) {
    stream->thread->Finish();  // Events may still name it.
  }
  delete stream;
}

cudaError_t Query(cudaStream_t stream) {
  if (stream != nullptr && stream->capture != nullptr) {
    stream->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream != nullptr && stream->thread != nullptr && !stream->thread->IsDone()) {
    return cudaErrorNotReady;
  }
  return TakeFailure() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr && !capturing.empty()) {
    return Spoil(cudaErrorStreamCaptureImplicit);
  }
  if (stream == nullptr || stream->capture == nullptr) {
    if (stream != nullptr && stream->thread != nullptr) {
      const std::lock_guard lock(TheDriver().mutex);
      stream->thread->Push(std::move(work));
    } else {
      const DeviceAccess access;
      work();
    }
    return cudaSuccess;
  }
  if (stream->spoilt) {
    return cudaErrorStreamCaptureInvalidated;
  }
  stream->capture->work.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t CheckNotCapturing() {
  return capturing.empty() ? cudaSuccess : Spoil(cudaErrorStreamCaptureUnsupported);
}

cudaError_t WaitForDevice() {
  const cudaError_t error = CheckNotCapturing();
  if (error == cudaSuccess) {
    WaitForAll(TheDriver());
  }
  return error;
}

cudaError_t BeginCapture(cudaStream_t stream) {
  if (stream == nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream->capture != nullptr) {
    return cudaErrorInvalidValue;
  }
  stream->capture = std::make_unique<EmulatedGraph>();
  stream->spoilt = false;
  capturing.push_back(stream);
  return cudaSuccess;
}

cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || stream->capture == nullptr) {
    return cudaErrorInvalidValue;
  }
  capturing.erase(std::remove(capturing.begin(), capturing.end(), stream), capturing.end());
  const std::unique_ptr<EmulatedGraph> captured = std::move(stream->capture);
  if (stream->spoilt) {
    return cudaErrorStreamCaptureInvalidated;
  }
  *graph = new EmulatedGraph(std::move(*captured));
  return cudaSuccess;
}

cudaError_t Synchronize(cudaStream_t stream) {
  if (stream != nullptr && stream->capture != nullptr) {
    stream->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream != nullptr && stream->thread != nullptr) {
    stream->thread->WaitFor(stream->thread->pushed());
  }
  CloseDevice();
  return TakeFailure() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t RecordEvent(cudaEvent_t event, cudaStream_t stream) {
  event->captured = stream != nullptr && stream->capture != nullptr;
  event->thread = stream != nullptr && !event->captured ? stream->thread : nullptr;
  event->behind = event->thread != nullptr ? event->thread->pushed() : 0;
  return cudaSuccess;
}

cudaError_t SynchronizeEvent(cudaEvent_t event) {
  if (event->thread != nullptr) {
    event->thread->WaitFor(event->behind);
  }
  return event->captured ? Spoil(cudaErrorCapturedEvent) : cudaSuccess;
}

cudaError_t Instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  if (const cudaError_t error = WaitForDevice(); error != cudaSuccess) {
    return error;
  }
  if (instantiations_fail.load()) {
    return cudaErrorMemoryAllocation;
  }
  *executable = new EmulatedGraphExec{.work = graph->work};
  return cudaSuccess;
}

void FailInstantiations(bool fail) { instantiations_fail.store(fail); }

}  // namespace lamina::cuda_emulation
