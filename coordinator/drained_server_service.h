// SPDX-License-Identifier: Apache-2.0
//
// DrainedServer: ends a gRPC server when the engine has drained. The engine goes on answering until
// the server has ended: calls that are still open may wait for its thread.
//
// Threading: as written with the functions.

#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>

#include "coordinator/engine.h"

namespace lamina::coordinator {

class DrainedServer {
 public:
  // Both must outlive it and every call of Stop().
  DrainedServer(Engine& engine, grpc::Server& server) : engine_(engine), server_(server) {}
  // Ends the server at once if Wait() has not, as where something else could not start: the
  // library's own end would wait for streams of nodes, which do not end.
  ~DrainedServer();
  DrainedServer(const DrainedServer&) = delete;
  DrainedServer& operator=(const DrainedServer&) = delete;

  // Refuses new requests and lets Wait() go on when the running ones have finished. Once, from any
  // thread; does not wait.
  void Stop();

  // Waits for that, calls `drained` if it is one, then ends the server: calls still open have
  // `grace` before they are cancelled. From any thread but the engine's.
  void Wait(std::chrono::milliseconds grace, const std::function<void()>& drained = nullptr);

 private:
  Engine& engine_;
  grpc::Server& server_;
  // Shared with the engine's thread, which may still be leaving it when Wait() returns.
  const std::shared_ptr<std::promise<void>> drained_ = std::make_shared<std::promise<void>>();
};

}  // namespace lamina::coordinator
